"""Transcripts of coding assistants as rows of messages: samples of our own making, of every kind of line."""

import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from strandline.config.datasets import built_in
from strandline.config.sources import default_provider
from strandline.errors import NotFoundError
from strandline.rows.validate import accept
from strandline.sources.provider import Item, ProviderOptions, Window
from strandline.sources.registry import ProviderTypeUnknown, make_provider
from strandline.sources.transcript import Transcripts

SAMPLES = Path(__file__).with_name("transcripts")
EVER = Window()


def made(kind: str, folder: Path) -> Transcripts:
    options = ProviderOptions(kind, {"path": str(folder), "dataset": "messages"}, folder)
    provider = make_provider(kind, options)
    assert isinstance(provider, Transcripts)
    return provider


def rows_of(provider: Transcripts) -> list[dict[str, Any]]:
    return [row for item in provider.items(EVER) for chunk in provider.rows(item) for row in chunk]


def told(rows: list[dict[str, Any]]) -> list[tuple[str, str, str, str | None]]:
    return [(row["part_id"], row["role"], row["kind"], row.get("text")) for row in rows]


def test_claude_code_lines_become_parts_of_messages() -> None:  # L-BF-1
    provider = made("claude-code", SAMPLES / "claude-code" / "projects")

    rows = rows_of(provider)

    assert told(rows) == [
        ("summary:u9#0", "system", "summary", "Prices with tax"),
        ("u1#0", "user", "text", "Add tax to the prices, please. Größe: 5 €"),
        ("msg_01#0", "assistant", "thinking", "Where are prices made?"),
        ("msg_01#1", "assistant", "text", "I look at the prices."),
        ("msg_01#2", "assistant", "tool_use", None),
        ("msg_01#1", "assistant", "text", "I look at the prices."),  # tried again: the same part
        ("u5#0", "user", "tool_result", "def price(): ..."),
        ("msg_side#0", "assistant", "text", "I search for usages."),
        ("u7#0", "user", "text", "Go on."),
        ("u7#1", "user", "image", None),
        ("msg_02#0", "assistant", "text", "Done."),
        ("u9#0", "system", "system", "Conversation compacted"),
    ]
    by_id = {row["part_id"]: row for row in rows}
    assert by_id["msg_01#2"]["content"]["input"] == {"file_path": "/srv/shop/price.py"}
    assert by_id["msg_side#0"]["attributes"]["sidechain"] is True
    assert by_id["u1#0"]["ts"] == datetime(2026, 3, 4, 10, tzinfo=UTC)
    assert "ts" not in by_id["u7#0"]  # its time was none
    assert {row["conversation_id"] for row in rows} == {"11111111-1111-4111-8111-111111111111"}
    assert provider.skipped == {
        "file-history-snapshot": 1,
        "progress": 1,
        "broken line": 1,
        "unfinished last line": 1,
    }


def test_codex_lines_become_parts_of_messages() -> None:  # L-BF-1
    provider = made("codex", SAMPLES / "codex" / "sessions")

    rows = rows_of(provider)

    new, old = "22222222-2222-4222-8222-222222222222", "33333333-3333-4333-8333-333333333333"
    assert told(rows) == [
        (f"{new}:3#0", "user", "text", "Run the tests"),
        (f"{new}:3#1", "user", "input_image", None),
        (f"{new}:5#0", "assistant", "thinking", "**Running tests**"),
        ("call_1#0", "assistant", "tool_use", None),
        ("call_1#0", "assistant", "tool_use", None),
        ("call_1:output#0", "tool", "tool_result", '{"output":"3 passed"}'),
        ("item_7#0", "assistant", "text", "All pass."),
        (f"{old}:3#0", "user", "text", "An older file"),
        ("old_1#0", "assistant", "text", "Read all the same"),
    ]
    assert {row["conversation_id"] for row in rows} == {new, old}
    assert provider.skipped == {
        "turn_context": 1,
        "event_msg": 1,
        "response_item": 1,
        "no type": 1,
        "broken line": 1,
        "unfinished last line": 1,
    }


@pytest.mark.parametrize(("kind", "folder"), [("claude-code", "projects"), ("codex", "sessions")])
def test_every_row_of_a_transcript_fits_the_dataset_that_ships(kind: str, folder: str) -> None:  # L-SPOOL-8
    declared = built_in("messages")
    assert declared is not None

    judged = accept(declared.dataset, rows_of(made(kind, SAMPLES / kind / folder)))

    assert judged.refusals == []
    assert judged.dataset == declared.dataset
    assert set(judged.table["source"].to_pylist()) == {kind}


def test_a_last_line_that_is_finished_later_comes_then_behind_the_same_rows(
    tmp_path: Path,
) -> None:  # L-BF-10
    shutil.copytree(SAMPLES / "codex" / "sessions", tmp_path, dirs_exist_ok=True)
    first = rows_of(made("codex", tmp_path))
    (path,) = tmp_path.rglob("*11-00-00*.jsonl")
    with path.open("a") as file:
        file.write(
            '.000Z","type":"response_item","payload":{"type":"message","role":"user","content":"More"}}\n'
        )

    again = rows_of(made("codex", tmp_path))

    assert again[:7] == first[:7]
    assert again[7]["text"] == "More"
    assert len(again) == len(first) + 1


def test_a_line_that_is_too_long_is_passed_by_and_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("strandline.sources.transcript.MAX_LINE_BYTES", 200)
    (tmp_path / "s.jsonl").write_text(
        '{"type": "summary", "summary": "' + "x" * 500 + '"}\n{"type": "summary", "summary": "y"}\n'
    )
    provider = made("claude-code", tmp_path)

    assert [row["text"] for row in rows_of(provider)] == ["y"]
    assert provider.skipped == {"broken line": 1}


def test_the_window_chooses_transcripts_by_their_last_change(tmp_path: Path) -> None:  # L-BF-11
    (tmp_path / "s.jsonl").write_text('{"type": "summary", "summary": "y"}\n')
    provider, now = made("claude-code", tmp_path), datetime.now(UTC)

    assert [item.id for item in provider.items(Window(now - timedelta(hours=1)))] == ["s.jsonl"]
    assert list(provider.items(Window(now + timedelta(hours=1)))) == []
    assert list(provider.items(Window(until=now - timedelta(hours=1)))) == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        list(made("codex", tmp_path / "nowhere").items(EVER))


def test_assistants_can_be_run_without_being_configured() -> None:
    found = default_provider("claude-code")

    assert found is not None
    assert (found.enabled, found.keys["dataset"]) == (False, "messages")
    assert default_provider("files") is None


def test_a_provider_that_nobody_brings_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ProviderTypeUnknown, match=r"no provider of type 'carrier-pigeon'; there are claude-code"
    ):
        make_provider("carrier-pigeon", ProviderOptions("x", {}, tmp_path))


def test_an_item_says_where_it_is_and_how_large(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "s.jsonl").write_text("{}\n")
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "notes.txt").write_text("no transcript")

    (item,) = made("codex", tmp_path).items(EVER)

    assert (item.id, item.dataset, item.size) == ("a/s.jsonl", "messages", 3)
    assert isinstance(item, Item)
