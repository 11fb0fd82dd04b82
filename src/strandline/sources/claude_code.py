"""Transcripts of Claude Code: `projects/<project>/<session>.jsonl`, one JSON object a line.

    {"type": "user", "uuid": …, "parentUuid": …, "sessionId": …, "timestamp": …, "isSidechain": false,
     "cwd": …, "version": …, "message": {"role": "user", "content": "…" | [{"type": "tool_result", …}]}}
    {"type": "assistant", …, "message": {"id": "msg_…", "role": "assistant", "model": …, "usage": {…},
     "content": [{"type": "text" | "thinking" | "tool_use", …}]}}
    {"type": "summary", "summary": …, "leafUuid": …}

An assistant's message stands in as many lines as it has blocks, all with its id: a block's index is its place
among the different blocks of the message. A block that comes again (the program wrote it twice, or tried
again) is the same part.
"""

from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, Final

import orjson

from strandline.sources.provider import ProviderOptions
from strandline.sources.transcript import TranscriptLine, Transcripts, blocks_of, part, text, text_of

APP: Final = "claude-code"

_SAID: Final = {"text": "text", "thinking": "thinking", "tool_result": "content"}  # where a kind has its text


class ClaudeCode:
    def session(self, path: str) -> "_Session":
        return _Session(PurePosixPath(path).stem)


@dataclass(slots=True)
class _Session:
    name: str
    blocks: dict[str, list[bytes]] = field(
        default_factory=dict
    )  # of each message, digests of those that came

    def rows(self, line: TranscriptLine) -> list[dict[str, Any]] | None:
        data = line.data
        kind = data.get("type")
        if kind in ("user", "assistant") and isinstance(data.get("message"), dict):
            return self._message(line, data["message"], kind)
        if kind == "summary" and (said := text(data.get("summary"))):
            id_ = f"summary:{data.get('leafUuid') or f'{self.name}:{line.number}'}"
            return [self._part(line, id_, 0, "system", "summary", said, None, {})]
        if kind == "system" and (said := text(data.get("content"))):
            facts = {"subtype": data.get("subtype"), "level": data.get("level")}
            return [self._part(line, self._uuid(line), 0, "system", "system", said, None, facts)]
        return None

    def _message(self, line: TranscriptLine, message: dict[str, Any], kind: str) -> list[dict[str, Any]]:
        own_id = text(message.get("id"))
        id_ = own_id or self._uuid(line)
        role = text(message.get("role")) or kind
        facts = {
            "model": message.get("model"),
            "stop_reason": message.get("stop_reason"),
            "usage": message.get("usage"),
        }
        rows = []
        for place, block in enumerate(blocks_of(message.get("content"))):
            index = self._index(id_, block) if own_id else place
            rows.append(self._block(line, id_, index, role, block, facts))
        return rows

    def _index(self, message: str, block: dict[str, Any]) -> int:
        known = self.blocks.setdefault(message, [])
        written = sha256(orjson.dumps(block, option=orjson.OPT_SORT_KEYS)).digest()
        if written not in known:
            known.append(written)
        return known.index(written)

    def _block(
        self,
        line: TranscriptLine,
        id_: str,
        index: int,
        role: str,
        block: dict[str, Any],
        facts: dict[str, Any],
    ) -> dict[str, Any]:
        kind = text(block.get("type")) or "unknown"
        said = text_of(block.get(_SAID.get(kind, "")))
        content = None if kind == "text" else block
        return self._part(line, id_, index, role, kind, said, content, facts)

    def _part(
        self,
        line: TranscriptLine,
        id_: str,
        index: int,
        role: str,
        kind: str,
        said: str | None,
        content: dict[str, Any] | None,
        facts: dict[str, Any],
    ) -> dict[str, Any]:
        data = line.data
        return part(
            id_,
            index,
            conversation=text(data.get("sessionId")) or self.name,
            app=APP,
            at=data.get("timestamp"),
            role=role,
            kind=kind,
            text=said,
            content=content,
            attributes={
                "uuid": data.get("uuid"),
                "parent_uuid": data.get("parentUuid"),
                "sidechain": True if data.get("isSidechain") else None,
                "agent": data.get("agentId"),
                "cwd": data.get("cwd"),
                "branch": data.get("gitBranch"),
                "version": data.get("version"),
                "request": data.get("requestId"),
                **facts,
            },
        )

    def _uuid(self, line: TranscriptLine) -> str:
        return text(line.data.get("uuid")) or f"{self.name}:{line.number}"


def configure(options: ProviderOptions) -> Transcripts:
    root = options.home / Path(str(options.keys["path"])).expanduser()
    return Transcripts(root, options.keys["dataset"], ClaudeCode())
