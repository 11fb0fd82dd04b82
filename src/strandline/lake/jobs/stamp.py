"""What each row is stamped with, and its row id, as Spark expressions, defined here alone.

The row id is the SHA-256, in hex, of one of these texts in UTF-8:

    k<key>                                         the dataset has an identity, and the row its key
    p<bytes of source>:<source><seq>               it has an identity, and the row lacks it: equals no other
    c[<bytes of name>:<name><bytes of value>:<value>]…   it has none: the producer's columns, sorted by name

Columns that are null are left out, so a nullable column that is added later changes nothing; `source` is no
producer's column. The lengths are decimal and make the text unambiguous. A value is written by its type, and
a wider type writes it alike:

    string, json           itself (json is canonical since its append)
    int, bigint            decimal digits
    float, double          C99 hex of the double, the same on every Java: 0.1 is 0x1.999999999999ap-4; 0 and
                           -0 differ (0x0.0p0, -0x0.0p0); every NaN is NaN; Infinity, -Infinity
    boolean                true, false
    timestamp              microseconds since 1970, UTC; 1 ms is 1000
    date                   days since 1970
    decimal(p,s)           plain digits with s of them behind the point
    binary                 upper-case hex

So the row {"level": "warn", "n": 7, "host": null} has the text `c5:level4:warn1:n1:7`. The key is the key
column as a value above, or, where it is null, the legacy columns as such with the joining text in between; a
null among those leaves the row without identity.
"""

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame

from strandline.lake.jobs.table_schema import AT, FLUSH, ROW_ID, SEQ, literal, own_columns, quoted, sql_type
from strandline.rows.dataset import SOURCE, Column, Dataset

_VALUE: Final = {
    "string": "{0}",
    "json": "{0}",
    "int": "cast({0} as string)",
    "bigint": "cast({0} as string)",
    "float": "format_string('%a', cast({0} as double))",
    "double": "format_string('%a', {0})",
    "boolean": "cast({0} as string)",
    "timestamp": "cast(unix_micros({0}) as string)",
    "date": "cast(unix_date({0}) as string)",
    "binary": "hex({0})",
}
# A cast prints small decimals as 1E-8 unless ANSI is on; try_cast prints plain digits under either setting.
_DECIMAL: Final = "try_cast({0} as string)"


def row_id(dataset: Dataset) -> str:
    """The row id as SQL over the dataset's columns, `source` and `_sl_seq`."""
    if dataset.identity is None:
        return f"sha2({_content(dataset)}, 256)"
    place = f"concat('p', cast(octet_length({SOURCE}) as string), ':', {SOURCE}, cast({SEQ} as string))"
    key = key_text(dataset)
    return f"sha2(coalesce(concat('k', {key}), {place}), 256)" if key else f"sha2({place}, 256)"


def key_text(dataset: Dataset) -> str | None:
    """The identity's key as SQL, null where a row lacks it; None if the dataset has no column for it yet."""
    identity = dataset.identity
    if identity is None:
        return None
    forms = [value_text(key)] if (key := dataset.column(identity.key)) else []
    legacy = [column for name in identity.legacy if (column := dataset.column(name))]
    if legacy and len(legacy) == len(identity.legacy):
        joined = f", {literal(identity.join)}, ".join(map(value_text, legacy))
        forms.append(f"concat({joined})")
    return f"coalesce({', '.join(forms)})" if forms else None


def value_text(column: Column) -> str:
    form = _DECIMAL if column.type.startswith("decimal") else _VALUE[column.type]
    name = quoted(column.name)
    if column.type in ("float", "double"):  # format_string prints a null
        return f"if({name} is null, cast(null as string), {form.format(name)})"
    return form.format(name)


def _content(dataset: Dataset) -> str:
    """concat is null for a null value, and concat_ws leaves nulls out."""
    pieces = [
        f"concat({literal(f'{len(column.name.encode())}:{column.name}')}, "
        f"cast(octet_length({value_text(column)}) as string), ':', {value_text(column)})"
        for column in sorted(own_columns(dataset), key=lambda column: column.name)
    ]
    return f"concat_ws('', {', '.join([literal('c'), *pieces])})"


def stamped(placed: DataFrame, dataset: Dataset) -> DataFrame:
    """Rows with their place (`source`, `_sl_seq`, `_sl_at`) and flush number, with their row id besides.

    The number comes as a column: as a literal it would have Spark compile the same code anew each time.
    """
    return placed.selectExpr(
        *(f"cast({quoted(c.name)} as {sql_type(c.type)}) as {quoted(c.name)}" for c in own_columns(dataset)),
        SOURCE,
        SEQ,
        f"{row_id(dataset)} as {ROW_ID}",
        FLUSH,
        AT,
    )


# Repeats


def without_repeats(rows: DataFrame, *, is_small: bool) -> DataFrame:
    """Of rows of one strand with equal row ids the one with the lowest seq (L-STAMP-7).

    Only ids are shuffled; the rows stay where they are, in order.
    """
    rank = f"row_number() over (partition by {SOURCE}, {ROW_ID} order by {SEQ}) as place"
    repeats = rows.selectExpr(SOURCE, SEQ, rank).where("place > 1").select(SOURCE, SEQ)
    return rows.join(_small(repeats, is_small), on=[SOURCE, SEQ], how="left_anti").select(
        *map(quoted, rows.columns)
    )


def without_known(
    rows: DataFrame, committed: DataFrame, *, ids: Sequence[str] | None, is_small: bool
) -> DataFrame:
    """Rows whose row id is not committed in their strand (L-FLUSH-9).

    `ids`, where they are few, go to the scan of `committed` as a list, which the bloom filter answers.
    """
    strands = committed.select(SOURCE, ROW_ID)
    if ids is not None:
        known = strands.where(f"{ROW_ID} in ({', '.join(map(literal, ids))})") if ids else strands.limit(0)
    else:
        asked = rows.select(SOURCE, ROW_ID)
        known = strands.join(_small(asked, is_small), on=[SOURCE, ROW_ID], how="left_semi")
    return rows.join(_small(known, is_small), on=[SOURCE, ROW_ID], how="left_anti").select(
        *map(quoted, rows.columns)
    )


def _small(side: DataFrame, is_small: bool) -> DataFrame:
    return side.hint("broadcast") if is_small else side
