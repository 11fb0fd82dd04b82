"""The answer to a question as a picture: the ratio of each contender of ours to those it is set against, or
where a table has none, as profiles do, what was measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from benchmarks.aims import Standing
    from benchmarks.report import Spread, Table

_LESS_IS_BETTER: Final = (
    "s",
    "ms",
    "µs",
    "bytes",
    "MiB",
    "files",
    "pages",
    "% of one core",
    "times rewritten",
)
PEERS: Final = ("eventsourcing", "dlt", "Spark Structured", "OpenTelemetry")
_BESIDE: Final = ("raw ", "bare ", "by hand")  # what ours is compared with
_BAR: Final = 0.32  # inches


def plot(tables: "Sequence[Table]", path: Path) -> None:
    """Draw the tables of one question."""
    if any(not row.ratios for table in tables for row in table.rows):
        _draw_measures(tables, path)
        return
    bars = [
        (f"{table.title}\n{row.name} / {other}", ratio, row.name.startswith(PEERS))
        for table in tables
        for row in table.rows
        for other, ratio in row.ratios.items()
        if row.name.split(",")[0] not in row.ratios and not f"{row.name}, ".startswith(f"{other}, ")
    ]
    _draw_ratios(bars, path, "less is better" if tables[0].unit in _LESS_IS_BETTER else "more is better")


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


def _draw_ratios(bars: "Sequence[tuple[str, Spread, bool]]", path: Path, better: str) -> None:
    plt = _pyplot(path)
    figure, axis = plt.subplots(figsize=(9, 1 + 1.6 * _BAR * len(bars)))
    for place, (_, ratio, is_peer) in enumerate(reversed(bars)):
        _bar(axis, place, ratio, f"{ratio.median:.2f}x", is_ours=not is_peer)
    axis.set_yticks(range(len(bars)), [label for label, _, _ in reversed(bars)], fontsize=7)
    axis.axvline(1, color="grey", linewidth=0.8, linestyle="--")
    axis.set_xlabel(f"ratio ({better}), median and quartiles")
    axis.margins(x=0.15)
    _save(figure, path)


def _draw_measures(tables: "Sequence[Table]", path: Path) -> None:
    """One panel for each table, each on a scale of its own."""
    plt = _pyplot(path)
    sizes = [len(table.rows) for table in tables]
    figure, axes = plt.subplots(
        len(tables),
        figsize=(9, sum(0.9 + _BAR * size for size in sizes)),
        gridspec_kw={"height_ratios": sizes},
        squeeze=False,
    )
    for table, (axis,) in zip(tables, axes, strict=True):
        for place, row in enumerate(reversed(table.rows)):
            is_ours = not any(word in row.name for word in (*_BESIDE, *PEERS))
            _bar(axis, place, row.measure, short(row.measure.median), is_ours=is_ours)
        axis.set_yticks(range(len(table.rows)), [row.name for row in reversed(table.rows)], fontsize=7)
        unit = "" if f" {table.unit} " in table.title else f", {table.unit}"
        axis.set_title(f"{table.title}{unit}", fontsize=9, loc="left")
        axis.tick_params(axis="x", labelsize=7)
        axis.margins(x=0.15)
    axes[-1][0].set_xlabel("median and quartiles (less is better)", fontsize=8)
    _save(figure, path)


def _bar(axis: Any, place: int, spread: "Spread", text: str, *, is_ours: bool) -> None:
    axis.barh(place, spread.median, color="tab:blue" if is_ours else "lightgrey", height=0.6)
    axis.plot([spread.low, spread.high], [place, place], color="black", linewidth=1)
    axis.annotate(f" {text}", (max(spread.high, spread.median), place), va="center", fontsize=8)


def short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


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
