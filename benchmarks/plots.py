"""The ratios of a question as a picture: each contender of ours by those it is set against."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from benchmarks.aims import Standing
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
        if row.name.split(",")[0] not in row.ratios and not f"{row.name}, ".startswith(f"{other}, ")
    ]
    if bars:
        is_time = tables[0].unit in _LESS_IS_BETTER
        _draw(bars, path, "less is better" if is_time else "more is better")
    return bool(bars)


def plot_aims(found: "Sequence[Standing]", path: Path) -> None:
    """How much of its aim each ratio has reached."""
    shown = [(each, each.ours) for each in reversed(found) if each.aim.against and each.ours is not None]
    plt = _pyplot(path)
    figure, axis = plt.subplots(figsize=(9, 1 + _BAR * len(shown)))
    for place, (each, ours) in enumerate(shown):
        share = each.share(ours.median)
        axis.barh(place, share, color="tab:orange" if "missed" in each.verdict else "tab:blue", height=0.6)
        axis.annotate(f" {ours.median:.2f}x", (share, place), va="center", fontsize=7)
        if each.peer is not None:
            axis.plot(each.share(each.peer.median), place, "D", color="grey", markersize=4)
    axis.set_yticks(range(len(shown)), [each.aim.text for each, _ in shown], fontsize=6)
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_xlim(0, 2)
    axis.set_xlabel("share of its aim; the figure beside a bar is the ratio that was measured")
    _save(figure, path)


def _draw(bars: "Sequence[tuple[str, Spread, bool]]", path: Path, better: str) -> None:
    plt = _pyplot(path)
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
    _save(figure, path)


def _pyplot(path: Path) -> Any:
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = path.name  # the same figures give the same file
    from matplotlib import pyplot as plt

    return plt


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    _pyplot(path).close(figure)
