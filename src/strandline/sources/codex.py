"""Transcripts of Codex: `sessions/YYYY/MM/DD/rollout-<time>-<session>.jsonl`, one JSON object a line.

    {"timestamp": …, "type": "session_meta", "payload": {"id": …, "cwd": …, "cli_version": …}}
    {"timestamp": …, "type": "response_item", "payload": {"type": "message", "role": "user",
     "content": [{"type": "input_text" | "output_text", "text": …}]}}
    … "payload": {"type": "reasoning", "summary": [{"type": "summary_text", "text": …}], …}
    … "payload": {"type": "function_call", "name": …, "arguments": "…", "call_id": …}
    … "payload": {"type": "function_call_output", "call_id": …, "output": "…"}
    {"timestamp": …, "type": "event_msg" | "turn_context", …}        what is shown meanwhile; not a message

Most items have no id of their own; then session and line number are one, since a rollout only grows. Older
files have the payloads themselves as lines.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Final

from strandline.sources.provider import ProviderOptions
from strandline.sources.transcript import TranscriptLine, Transcripts, blocks_of, part, text, text_of

APP: Final = "codex"

# What kind of part an item is, and who it is from.
_CALLS: Final = ("function_call", "custom_tool_call", "local_shell_call", "web_search_call")
_OUTPUTS: Final = ("function_call_output", "custom_tool_call_output")
_TEXTS: Final = ("input_text", "output_text", "text")


class Codex:
    def session(self, path: str) -> "_Session":
        return _Session(PurePosixPath(path).stem)


@dataclass(slots=True)
class _Session:
    name: str
    facts: dict[str, Any] = field(default_factory=dict)

    def rows(self, line: TranscriptLine) -> list[dict[str, Any]] | None:
        payload = line.data.get("payload")
        kind = line.data.get("type")
        if kind == "session_meta" and isinstance(payload, dict):
            self._begin(payload)
            return []
        if kind == "response_item" and isinstance(payload, dict):
            return self._item(line, payload)
        if payload is None and kind is None and text(line.data.get("id")):  # the head of an older file
            self._begin(line.data)
            return []
        return self._item(line, line.data) if payload is None else None

    def _begin(self, meta: Mapping[str, Any]) -> None:
        self.name = text(meta.get("id")) or self.name
        self.facts = {
            "cwd": meta.get("cwd"),
            "version": meta.get("cli_version"),
            "originator": meta.get("originator"),
        }

    def _item(self, line: TranscriptLine, item: dict[str, Any]) -> list[dict[str, Any]] | None:
        kind = item.get("type")
        id_ = text(item.get("id")) or f"{self.name}:{line.number}"
        call = text(item.get("call_id"))
        if kind == "message":
            return self._message(line, id_, item)
        if kind == "reasoning":
            said = text_of(item.get("summary")) or text_of(item.get("content"))
            return [self._part(line, id_, 0, "assistant", "thinking", said, item)]
        if kind in _CALLS:
            return [self._part(line, call or id_, 0, "assistant", "tool_use", None, item)]
        if kind in _OUTPUTS:
            id_ = f"{call}:output" if call else id_
            return [self._part(line, id_, 0, "tool", "tool_result", _output(item.get("output")), item)]
        return None

    def _message(self, line: TranscriptLine, id_: str, item: dict[str, Any]) -> list[dict[str, Any]]:
        role = text(item.get("role")) or "unknown"
        rows = []
        for index, block in enumerate(blocks_of(item.get("content"))):
            kind = text(block.get("type")) or "unknown"
            is_text = kind in _TEXTS
            rows.append(
                self._part(
                    line,
                    id_,
                    index,
                    role,
                    "text" if is_text else kind,
                    text(block.get("text")),
                    None if is_text else block,
                )
            )
        return rows

    def _part(
        self,
        line: TranscriptLine,
        id_: str,
        index: int,
        role: str,
        kind: str,
        said: str | None,
        content: dict[str, Any] | None,
    ) -> dict[str, Any]:
        return part(
            id_,
            index,
            conversation=self.name,
            app=APP,
            at=line.data.get("timestamp"),
            role=role,
            kind=kind,
            text=said,
            content=content,
            attributes=self.facts,
        )


def _output(output: object) -> str | None:
    if isinstance(output, dict):
        return text_of(output.get("content"))
    return text_of(output)


def configure(options: ProviderOptions) -> Transcripts:
    root = options.home / Path(str(options.keys["path"])).expanduser()
    return Transcripts(root, options.keys["dataset"], Codex())
