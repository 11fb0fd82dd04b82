"""The ratios of a question as a picture: each contender of ours by those it is set against."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from benchmarks.report import Spread, Table

_LESS_IS_BETTER: Final = ("s", "ms", "bytes", "MiB", "files")
PEERS: Final = ("eventsourcing", "dlt", "Spark Structured", "OpenTelemetry")
_BAR: Final = 0.32  # inches


def plot(tables: "Sequence[Table]", path: Path) -> bool:
    """Draw those of one question that have ratios; False where none has, and nothing is drawn."""
    bars = [
        (f"{table.title}\n{row.name} / {other}", ratio, row.name.startswith(PEERS))
        for table in tables
        for row in table.rows
        for other, ratio in row.ratios.items()
        if row.name.split(",")[0] not in row.ratios and row.name != other
    ]
    if bars:
        is_time = tables[0].unit in _LESS_IS_BETTER
        _draw(bars, path, "less is better" if is_time else "more is better")
    return bool(bars)


def _draw(bars: "Sequence[tuple[str, Spread, bool]]", path: Path, better: str) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = path.name  # the same figures give the same file
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(9, 1 + 1.6 * _BAR * len(bars)))
    for place, (_, ratio, is_peer) in enumerate(reversed(bars)):
        axis.barh(place, ratio.median, color="lightgrey" if is_peer else "tab:blue", height=0.6)
        axis.plot([ratio.low, ratio.high], [place, place], color="black", linewidth=1)
        axis.annotate(
            f" {ratio.median:.2f}x", (max(ratio.high, ratio.median), place), va="center", fontsize=8
        )
    axis.set_yticks(range(len(bars)), [label for label, _, _ in reversed(bars)], fontsize=7)
    axis.axvline(1, color="grey", linewidth=0.8, linestyle="--")
    axis.set_xlabel(f"ratio ({better}), median and quartiles")
    axis.margins(x=0.15)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
