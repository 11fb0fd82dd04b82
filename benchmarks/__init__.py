"""How fast is it? One file a question; results as JSON.

`python -m benchmarks` asks them all, `python -m benchmarks.how_fast_is_an_append` asks one; both take
`--rounds`, `--quick` and `--out`. Machines are shared and noisy, so a figure means little and a ratio within
one run means more.
"""
