"""Tokens are whole, and belong where they are used (L-READ-5, L-READ-6)."""

import base64
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.read.token import InvalidToken, ReadToken, read_token

TOKEN = ReadToken("origin", "logs", "web-1", 4711)
ALL = ReadToken("origin", "logs", None, 12)


@given(st.text(), st.text(min_size=1).filter(lambda text: text != "*"), st.integers(0, 2**63))
def test_a_token_comes_back_as_it_was(origin: str, source: str, at: int) -> None:
    token = ReadToken(origin, "logs", source, at)

    assert read_token(token.text(), origin=origin, dataset="logs", source=source) == token


def test_a_token_over_all_sources_comes_back() -> None:
    assert read_token(ALL.text(), origin="origin", dataset="logs", source=None) == ALL


def test_the_text_is_canonical() -> None:
    prefix, packed, sum_ = TOKEN.text().split(".")

    assert prefix == "slc1"
    assert len(sum_) == 16
    assert base64.urlsafe_b64decode(packed + "==") == (
        b'{"dataset":"logs","origin":"origin","seq":"4711","source":"web-1","v":1}'
    )


@pytest.mark.parametrize(
    "place",
    [
        {"origin": "other", "dataset": "logs", "source": "web-1"},
        {"origin": "origin", "dataset": "other", "source": "web-1"},
        {"origin": "origin", "dataset": "logs", "source": "web-2"},
        {"origin": "origin", "dataset": "logs", "source": None},
    ],
)
def test_a_token_of_elsewhere_is_refused(place: dict[str, Any]) -> None:
    with pytest.raises(InvalidToken):
        read_token(TOKEN.text(), **place)


def test_a_token_of_all_sources_is_not_one_of_a_strand() -> None:
    with pytest.raises(InvalidToken):
        read_token(ALL.text(), origin="origin", dataset="logs", source="*")


def test_every_changed_character_is_noticed() -> None:
    text = TOKEN.text()
    for index, character in enumerate(text):
        other = "A" if character != "A" else "B"
        with pytest.raises(InvalidToken):
            read_token(
                text[:index] + other + text[index + 1 :], origin="origin", dataset="logs", source="web-1"
            )


@pytest.mark.parametrize("text", ["", "slc1", "slc1..", "slc2.e30.x", None, 5, "a.b.c", "slc1.é.x"])
def test_what_is_no_token_is_refused(text: Any) -> None:
    with pytest.raises(InvalidToken):
        read_token(text, origin="origin", dataset="logs", source="web-1")


@pytest.mark.parametrize("seq", ["-1", "1.5", "", "٣x", 5])
def test_a_place_that_is_no_number_is_refused(seq: Any) -> None:
    from hashlib import sha256

    body = {"v": 1, "origin": "origin", "dataset": "logs", "source": "web-1", "seq": seq}
    packed = base64.urlsafe_b64encode(orjson.dumps(body)).rstrip(b"=").decode()

    with pytest.raises(InvalidToken):
        read_token(
            f"slc1.{packed}.{sha256(packed.encode()).hexdigest()[:16]}",
            origin="origin",
            dataset="logs",
            source="web-1",
        )
