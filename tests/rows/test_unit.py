"""Units on the wire: what the sender writes is what the receiver reads (L-FWD-3, L-FWD-4)."""

from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from strandline.base.ranges import Range
from strandline.rows.unit import UnitHead, read_unit, unit_headers

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
UNITS = st.builds(
    UnitHead,
    origin=st.text("0123456789abcdef", min_size=32, max_size=32),
    epoch=st.integers(0, 10**17),
    dataset=st.from_regex(r"[A-Za-z][A-Za-z0-9_.-]{0,127}", fullmatch=True),
    source=TEXTS,
    range=st.tuples(st.integers(0, 2**62), st.integers(1, 10**6)).map(lambda each: Range(each[0], sum(each))),
    rows=st.just(1),
    sha256=st.text("0123456789abcdef", min_size=64, max_size=64),
    node=TEXTS,
    instance=TEXTS,
    schema=st.dictionaries(TEXTS, st.sampled_from(["string", "decimal(38,2)", "json"])),
    intent=TEXTS | st.just(""),
    through=st.just(0),
)


@given(unit=UNITS)
def test_headers_give_back_the_unit_and_are_ascii(unit: UnitHead) -> None:  # L-FWD-3
    headers = unit_headers(unit)

    assert all(value.isascii() and value.isprintable() for value in headers.values())
    assert read_unit(lambda name: [headers[name]] if name in headers else []) == unit


def test_the_id_of_a_unit_names_its_rows_and_nothing_else() -> None:  # L-FWD-4, F-14
    unit = UnitHead("0f" * 16, 2, "logs", "a/b", Range(100, 200), 98, "0" * 64, "laptop", "centre", {})
    other = UnitHead(
        "0f" * 16, 2, "logs", "a/b", Range(100, 200), 1, "1" * 64, "moved", "other", {"n": "int"}
    )

    named = b"\0".join([b"0f" * 16, b"2", b"logs", b"a/b", b"100", b"200"])
    assert unit.id == other.id == sha256(named).hexdigest()[:32]
