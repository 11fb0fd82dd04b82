"""Nodes for the examples, on the Spark of the run."""

from pathlib import Path
from typing import Final

from strandline.config.config import FILE_NAME

SPARK: Final = """
[spark]
master = "local[2]"
conf = { "spark.driver.memory" = "1g" }
"""


def home_in(folder: Path, settings: str = "version = 1\n") -> Path:
    """A node's folder with these settings, those of Spark beside them."""
    folder.mkdir(exist_ok=True)
    (folder / FILE_NAME).write_text(settings + SPARK, "utf-8")
    return folder
