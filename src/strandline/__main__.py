"""`python -m strandline` is the command `strandline`."""

from strandline.cli import main

main()
