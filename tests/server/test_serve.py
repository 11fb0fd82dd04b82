"""How a server runs in its process."""

import gc
import socket
from contextlib import closing
from typing import Any

import pytest

from strandline.errors import StoreUnavailable
from strandline.server import serve


class Nothing:
    """An application that nobody asks."""

    is_closed = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError(scope)

    def stop(self) -> None: ...

    def close(self) -> None:
        self.is_closed = True


def test_what_a_request_holds_is_not_looked_at_for_garbage_again_and_again_while_a_server_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[int, ...]] = []
    monkeypatch.setattr(serve._Server, "run", lambda *_, **__: seen.append(gc.get_threshold()))
    app, before = Nothing(), gc.get_threshold()

    with closing(socket.socket()) as listening:
        serve.serve_until_signal(app, listening, lambda: None)

    assert seen == [(serve._COLLECTED_AFTER, *before[1:])]
    assert gc.get_threshold() == before
    assert app.is_closed


def test_a_server_ends_where_its_store_has_to_be_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # P-DUR-9
    monkeypatch.setattr(serve, "_cut_off_after", lambda _: None)  # this process goes on
    app, answers = Nothing(), iter([None, None, "a commit failed"])
    said: list[str | None] = []

    def why_spent() -> str | None:
        said.append(next(answers, "a commit failed"))
        return said[-1]

    with pytest.raises(StoreUnavailable, match="cannot be used any more: a commit failed"):
        serve.serve_until_signal(app, serve.listen("127.0.0.1", 0), lambda: None, why_spent=why_spent)

    assert said[:3] == [None, None, "a commit failed"]
    assert app.is_closed
