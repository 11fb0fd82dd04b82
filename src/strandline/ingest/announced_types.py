"""The types that another node announces for the columns of rows that it sends (strandline.rows.unit).

On the wire a time, a date, a decimal or bytes are texts. A column that the dataset lacks gets the announced
type, so that they are read as what they are; a column that it has must not take them for something else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from strandline.errors import UsageError
from strandline.rows.dataset import Column, Dataset, Refusal, SchemaBreaking

_AS_TEXT: Final = ("timestamp", "date", "decimal", "binary")


def with_announced(dataset: Dataset, rows: Sequence[Any], types: Mapping[str, str]) -> Dataset:
    """The dataset and those columns that it lacks and that some row has a value in."""
    known = {column.name.lower() for column in dataset.columns}
    added = []
    for name, type_ in types.items():
        if name.lower() in known or not any(row.get(name) is not None for row in rows):
            continue
        try:
            added.append(Column(name, type_))
        except UsageError:
            continue  # no name for a column: its rows are refused for that
        known.add(name.lower())
    if not added:
        return dataset
    return replace(dataset, columns=(*dataset.columns, *added), version=dataset.version + 1)


def misread(dataset: Dataset, rows: Sequence[Any], types: Mapping[str, str]) -> list[Refusal]:
    """Values that would be taken for what they are not: a time for a text, a text for base64."""
    return [
        Refusal(
            place, column.name, f"{types[column.name]} from another node", column.type, SchemaBreaking.kind
        )
        for column in dataset.columns
        if _is_misread(types.get(column.name, column.type), column.type)
        for place, row in enumerate(rows)
        if row.get(column.name) is not None
    ]


def _is_misread(announced: str, have: str) -> bool:
    if announced == have:
        return False
    if have in ("string", "json"):
        return announced.startswith(_AS_TEXT) or (announced, have) == ("json", "string")
    return have == "binary"
