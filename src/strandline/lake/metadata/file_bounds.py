"""What the data files of a table say of their rows, from its manifests alone: no Spark, no data file."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from strandline.base.ranges import Range
from strandline.config.lake_settings import LakeSettings
from strandline.lake.metadata.iceberg import BoundsMissing, live_files, load_table
from strandline.lake.ports.prune import PER_UNIT, FileBounds, TableFiles, TimeBounds, TimeColumn

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.types import NestedField

DAY_US: Final = 86_400_000_000
UNKNOWN: Final = TimeBounds(-(2**62), 2**62, has_null=True)
NOTHING: Final = TimeBounds(None, None, has_null=True)  # no row of the file has a value there
_MEASURED: Final = 100  # columns of which Iceberg keeps bounds, unless it is told otherwise


def file_bounds(lake: LakeSettings, dataset: str, times: Sequence[TimeColumn] = ()) -> TableFiles:
    """The live files of the current snapshot. Raises as `load_table` does, and BoundsMissing for a file that
    something else wrote."""
    table = load_table(lake, dataset)
    read = _Reader(dataset, table, times)
    names = frozenset(field.name for field in table.schema().fields)
    return TableFiles(table.metadata_location, tuple(map(read.bounds, live_files(table))), names)


class _Reader:
    def __init__(self, dataset: str, table: "Table", times: Sequence[TimeColumn]) -> None:
        self._dataset = dataset
        schema = table.schema()
        self._source, self._seq, self._at = (
            schema.find_field(name) for name in ("source", "_sl_seq", "_sl_at")
        )
        places = {field.name: place for place, field in enumerate(schema.fields)}
        self._times = [
            (schema.find_field(each.name), each, places[each.name] < _MEASURED)
            if each.name in places
            else None
            for each in times
        ]

    def bounds(self, file: "DataFile") -> FileBounds:
        seqs, at, sources = (self._both(file, field) for field in (self._seq, self._at, self._source))
        return FileBounds(
            sources=sources,
            seqs=Range(seqs[0] - 1, seqs[1]),
            at=at,
            times=tuple(self._time(file, each) for each in self._times),
            rows=file.record_count,
            bytes=file.file_size_in_bytes,
        )

    def _both(self, file: "DataFile", field: "NestedField") -> Any:
        found = _values(file, field)
        if found is None:
            raise BoundsMissing(self._dataset, file.file_path, field.name)
        return found

    def _time(self, file: "DataFile", column: "tuple[NestedField, TimeColumn, bool] | None") -> TimeBounds:
        if column is None:
            return NOTHING
        field, time, is_measured = column
        values = (file.value_counts or {}).get(field.field_id)
        nulls = (file.null_value_counts or {}).get(field.field_id)
        if values is None:  # a file from before the column was there, or nobody measured it
            return NOTHING if is_measured else UNKNOWN
        odd = (file.nan_value_counts or {}).get(field.field_id, 0)
        if nulls is not None and nulls + odd == values:
            return NOTHING
        found = _values(file, field)
        if nulls is None or found is None:
            return UNKNOWN
        micros = _micros(time)
        return TimeBounds(micros(found[0]), micros(found[1]) + 1, has_null=nulls + odd > 0)


def _values(file: "DataFile", field: "NestedField") -> tuple[Any, Any] | None:
    from pyiceberg.conversions import from_bytes

    low = (file.lower_bounds or {}).get(field.field_id)
    high = (file.upper_bounds or {}).get(field.field_id)
    if low is None or high is None:
        return None
    # A bound may be older than a column that was widened since: it is as long as the type was then.
    kind: Any = field.field_type
    return from_bytes(_as_written(kind, low), low), from_bytes(_as_written(kind, high), high)


def _as_written(kind: Any, bound: bytes) -> Any:
    from pyiceberg.types import DoubleType, FloatType, IntegerType, LongType

    narrow = 4
    if len(bound) == narrow and isinstance(kind, LongType):
        return IntegerType()
    return FloatType() if len(bound) == narrow and isinstance(kind, DoubleType) else kind


def _micros(time: TimeColumn) -> Callable[[Any], int]:
    """How a bound of a column is a time; what is no number is no bound either."""
    if time.unit is not None:
        above, below = PER_UNIT[time.unit]
        return lambda value: _held(value) * below // above
    if time.type == "date":
        return lambda value: int(value) * DAY_US
    return int


def _held(value: Any) -> int:
    """A float may be infinite."""
    return int(max(min(value, 2**62), -(2**62)))
