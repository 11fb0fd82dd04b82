"""A batch of rows as it was handed in: its columns, to be judged whole, and its rows, to be judged singly."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import countOf, itemgetter
from typing import Any, Final, TypeAlias

import pyarrow as pa

from strandline.rows.columns import (
    Unsure,
    announced_type,
    column_of_arrow,
    column_of_values,
    decoded,
    python_values,
)

_THIN: Final = 16  # of so many columns a row has one


class RowBatch:
    """Rows as mappings."""

    def __init__(self, rows: list[Any]) -> None:
        self._rows = rows
        self._values: dict[Any, list[Any]] = {}
        self.announced: Mapping[str, str] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def names(self) -> list[str]:
        if countOf(map(type, self._rows), dict) < len(self):
            raise Unsure
        self._values = self._even_values() or self._uneven_values()
        if set(map(type, self._values)) - {str}:
            raise Unsure
        return list(self._values)

    def _even_values(self) -> dict[Any, list[Any]] | None:
        """The columns, if all rows have the same: those of the first and no more."""
        first = self._rows[0] if self._rows else {}
        if countOf(map(len, self._rows), len(first)) < len(self):
            return None
        try:
            return {name: list(map(itemgetter(name), self._rows)) for name in first}
        except KeyError:
            return None

    def _uneven_values(self) -> dict[Any, list[Any]]:
        names = set().union(*self._rows)
        if len(names) * len(self) > _THIN * sum(map(len, self._rows)):
            raise Unsure  # thin rows of many columns are judged sooner one by one
        return {name: [row.get(name) for row in self._rows] for name in names}

    def column(self, name: str, declared: str | None) -> tuple[str, Any] | None:
        return column_of_values(self._values[name], declared)

    def appeared(self, name: str) -> tuple[int, int]:
        """The row that first has a value in the column, and the column's place in it."""
        row = next(row for row, value in enumerate(self._values[name]) if value is not None)
        return row, list(self._rows[row]).index(name)

    def rows(self) -> Iterable[Any]:
        return self._rows

    def given(self, rows: Sequence[int]) -> list[Any]:
        return [self._rows[row] for row in rows]


class ArrowBatch:
    """Rows as an Arrow table."""

    def __init__(self, table: Any) -> None:
        self._table = table if isinstance(table, pa.Table) else pa.Table.from_batches([table])
        for place, (name, column) in enumerate(zip(self.names(), self._table.columns, strict=True)):
            if (plain := decoded(column)) is not column:
                self._table = self._table.set_column(place, name, plain)
        self._rows: list[dict[str, Any]] = []
        types = {field.name: announced_type(field.type) for field in self._table.schema}
        self.announced = {name: type_ for name, type_ in types.items() if type_}

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def names(self) -> list[str]:
        return list(self._table.column_names)

    def column(self, name: str, declared: str | None) -> tuple[str, Any] | None:
        return column_of_arrow(self._table[name], declared)

    def appeared(self, name: str) -> tuple[int, int]:
        column, row = self._table[name], 0
        while not column[row].is_valid:
            row += 1
        return row, self._table.column_names.index(name)

    def rows(self) -> list[dict[str, Any]]:
        if not self._rows:
            names = self.names()
            columns = [python_values(self._table[name]) for name in names]
            values = zip(*columns, strict=True) if columns else repeat((), len(self))
            self._rows = [dict(zip(names, row, strict=True)) for row in values]
        return self._rows

    def given(self, rows: Sequence[int]) -> list[Any]:
        return [
            {name: value for name, value in self.rows()[row].items() if value is not None} for row in rows
        ]


Batch: TypeAlias = RowBatch | ArrowBatch


def cut(table: Any, *, rows: int, size: int) -> Iterator[Any]:
    """An Arrow table or batch in pieces of at most so many rows and bytes; a row is never cut."""
    for first in range(0, table.num_rows, rows):
        yield from _halved(table.slice(first, rows), size)


def _halved(table: Any, size: int) -> Iterator[Any]:
    if table.num_rows < 2 or table.nbytes <= size:
        yield table
        return
    middle = table.num_rows // 2
    yield from _halved(table.slice(0, middle), size)
    yield from _halved(table.slice(middle), size)
