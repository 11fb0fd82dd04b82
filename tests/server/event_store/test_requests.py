"""One request against one store, without a socket: what fits into an answer, and what is no request."""

from collections.abc import Iterator
from typing import Any

import pytest

from strandline.errors import HistoryGap, StrandlineError, UnknownOp, UsageError
from strandline.persist import (
    Append,
    Event,
    Truncate,
    append_batch,
    gappend,
    kv_put,
    mem_backend,
    truncate_through,
)
from strandline.persist.backend import StreamHead, Write
from strandline.persist.backends.memory import MemoryBackend
from strandline.persist.core.prepare import prepare
from strandline.persist.durable import OPS, req_commit
from strandline.persist.value import MAX_SEQ, encode_wire
from strandline.persist.wire import commit_answer, commit_body, commit_outcome, read_answer
from strandline.server.event_store import requests
from strandline.server.event_store.requests import read_request, run


@pytest.fixture
def b() -> MemoryBackend:
    return mem_backend()


def ask(b: Any, op: str, *args: Any) -> Any:
    body = encode_wire({"op": op, "args": list(args)})
    return read_answer(200, run(b, read_request(body)))


@pytest.fixture
def small_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "_ROOM", 1000)


def test_pages_are_cut_to_fit_and_go_on(b: MemoryBackend, small_answers: None) -> None:  # P-DUR-16, P-BKD-7
    written = append_batch(b, "s", [("t", n, "x" * 100) for n in range(30)])
    for n in range(30):
        gappend(b, f"g{n:02}", "t", n, "y" * 100)
        kv_put(b, f"k{n:02}", "z" * 100)

    found: list[Event] = []
    while page := ask(b, "persist/read-range", "s", len(found) + 1, MAX_SEQ, 500, None, None, None):
        assert 1 <= len(page) < 30
        found += page
    positions: list[int] = []
    while page := ask(b, "persist/global-range", len(positions) + 1, 500):
        positions += [item[0] for item in page]
    keys = [""]
    while page := ask(b, "persist/kv-scan", "k", keys[-1], 500):
        keys += [key for key, _ in page]
    names = [""]
    while page := ask(b, "persist/stream-scan", "g", names[-1], 500):
        names += [head[0] for head in page]

    assert found == written
    assert positions == [*range(1, 31)]
    assert keys[1:] == [f"k{n:02}" for n in range(30)]
    assert names[1:] == [f"g{n:02}" for n in range(30)]


@pytest.mark.parametrize("n", [-1, 0, 1, MAX_SEQ + 1])
def test_a_truncation_beside_an_append_is_known_again_over_http(b: MemoryBackend, n: int) -> None:
    writes: list[Write] = [Append("s", "t", 1, {}), Truncate("s", n)]  # P-BKD-10
    once = ("s", "key")
    first = b.commit([], writes, once=once)

    sent = prepare([], writes, once, is_sent=True)
    repeat = commit_outcome(read_answer(200, run(b, read_request(commit_body(sent)))), sent)

    assert repeat == first == [Event("s", 1, "t", 1, {})]


@pytest.mark.parametrize(
    ("op", "args", "paged"),
    [
        ("persist/read", ["s"], "persist/read-range"),
        ("persist/streams", [], "persist/stream-scan"),
        ("persist/kv-keys", [], "persist/kv-scan"),
    ],
)
def test_what_has_no_pages_is_refused_with_the_name_of_what_has(
    b: MemoryBackend, small_answers: None, op: str, args: list[str], paged: str
) -> None:  # P-DUR-16
    for n in range(100):
        b.commit([], [Append("s", "t", 1, "x" * 10), Append(f"stream-{n}", "t", 1, 1)])
        kv_put(b, f"a-long-key-{n}", n)

    with pytest.raises(UsageError) as caught:
        ask(b, op, *args)
    assert paged in str(caught.value.hint)


def test_the_answer_to_a_commit_is_shorter_than_its_request() -> None:  # P-DUR-16
    """Runs of one event each, as short as events can be, with seqs that no stream will ever have."""
    streams = ["s", "u"] * 40
    body = encode_wire(req_commit([], [Append(stream, "t", 0, 0) for stream in streams], None))
    stored = [Event(stream, 10**15 + n // 2, "t", 0, 0) for n, stream in enumerate(streams)]

    answer = commit_answer(stored)

    assert len(answer) < len(body)
    assert read_answer(200, answer)[-1] == ["u", 10**15 + 39, 0, 1]


def test_a_read_that_a_truncation_overtakes_starts_anew(b: MemoryBackend) -> None:  # P-DUR-12
    append_batch(b, "s", [("t", n, n) for n in range(1200)])

    class Overtaken(MemoryBackend):
        pages = 0

        def read_range(self, *args: Any, **options: Any) -> Iterator[Event]:
            self.pages += 1
            if self.pages == 2:
                truncate_through(b, "s", 700)
            return b.read_range(*args, **options)

        def last_seq(self, stream: str) -> int:
            return b.last_seq(stream)

        def stream_scan(self, *args: Any, **options: Any) -> list[StreamHead]:
            return b.stream_scan(*args, **options)

    assert [event.seq for event in ask(Overtaken(), "persist/read", "s")] == [*range(701, 1201)]

    class AlwaysOvertaken(Overtaken):
        def read_range(self, *args: Any, **options: Any) -> Iterator[Event]:
            self.pages += 1
            if self.pages % 2 == 0:
                truncate_through(b, "s", b.last_seq("s"))
                append_batch(b, "s", [("t", n, n) for n in range(1200)])
            return b.read_range(*args, **options)

    with pytest.raises(HistoryGap):
        ask(AlwaysOvertaken(), "persist/read", "s")


def test_a_backend_that_cannot_look_at_its_rows_says_so() -> None:
    class Basic:
        def commit(self) -> None: ...

    for op, args in (("persist/verify", ()), ("persist/quarantine", ("s", 1, 1))):
        with pytest.raises(UsageError, match="cannot look"):
            ask(Basic(), op, *args)


EVENT = '{"$event":["s",1,"t",1,1]}'


@pytest.mark.parametrize(
    "body",
    [
        "", "null", "[]", "{", "\xff", '"persist/read"', "{}", '{"op":"persist/streams"}', '{"args":[]}',
        '{"op":"persist/streams","args":[],"more":1}', '{"op":"persist/streams","args":{}}',
        '{"op":"persist/streams","args":null}', '{"op":"persist/streams","args":[1]}',
        '{"op":"persist/read","args":[]}', '{"op":"persist/read","args":[1]}',
        '{"op":"persist/read","args":[""]}',
        '{"op":"persist/read","args":[null]}', '{"op":"persist/read","args":["a\\u0000"]}',
        '{"op":"persist/read","args":["s","t"]}', '{"op":"persist/read","args":["\\ud800"]}',
        '{"op":"persist/append","args":["s",{}]}', '{"op":"persist/append","args":["",' + EVENT + "]}",
        '{"op":"persist/append","args":["s",{"$event":["s","1","t",1,1]}]}',
        '{"op":"persist/append","args":["s",{"$event":["s",1,2,1,1]}]}',
        '{"op":"persist/append","args":["s",{"$event":["s",1,"t",null,1]}]}',
        '{"op":"persist/append","args":["s",{"$event":["s",1]}]}',
        '{"op":"persist/kv-put","args":["",1]}', '{"op":"persist/kv-put","args":["k",{"$absent":[]}]}',
        '{"op":"persist/kv-put","args":["k",{"$what":1}]}', '{"op":"persist/kv-put","args":["k"]}',
        '{"op":"persist/truncate","args":["s","1"]}', '{"op":"persist/truncate","args":["s",1.5]}',
        '{"op":"persist/truncate","args":["s",true]}', '{"op":"persist/truncate","args":["s",1e30]}',
        '{"op":"persist/read-range","args":["s",1,2,-1,null,null,null]}',
        '{"op":"persist/read-range","args":["s",1,2,1.0,null,null,null]}',
        '{"op":"persist/read-range","args":["s",1,2,1,"",null,null]}',
        '{"op":"persist/read-range","args":["s",1,2,1,null,[],null]}',
        '{"op":"persist/read-range","args":["s",1,2,1,null,null,true]}',
        '{"op":"persist/read-range","args":["s",1,99999999999999999999,1,null,null,null]}',
        '{"op":"persist/read-range","args":["s",1,2]}', '{"op":"persist/event-at","args":["s","1"]}',
        '{"op":"persist/global-range","args":["1",1]}', '{"op":"persist/stream-scan","args":[1,"",1]}',
        '{"op":"persist/kv-scan","args":["","\\u0000",1]}', '{"op":"persist/kv-scan","args":["","",null]}',
        '{"op":"persist/wait","args":["s",0,-1]}', '{"op":"persist/wait","args":["s",0,"1"]}',
        '{"op":"persist/wait","args":["s",0,true]}', '{"op":"persist/scrub","args":[1]}',
        '{"op":"persist/quarantine","args":["s",-1,1]}', '{"op":"persist/quarantine","args":["s",1,[]]}',
        '{"op":"persist/commit","args":[[],[]]}', '{"op":"persist/commit","args":[[],{},null]}',
        '{"op":"persist/commit","args":[null,[],null]}', '{"op":"persist/commit","args":[[],[],"ab"]}',
        '{"op":"persist/commit","args":[[],[],["a"]]}',
        '{"op":"persist/commit","args":[[],[],["$commit",1]]}',
        '{"op":"persist/commit","args":[[],[],["$commit",""]]}',
        '{"op":"persist/commit","args":[[],[],["s","k"]]}',
        '{"op":"persist/commit","args":[[["seq","s"]],[],null]}',
        '{"op":"persist/commit","args":[[["seq","s",-1]],[],null]}',
        '{"op":"persist/commit","args":[[["seq",1,1]],[],null]}',
        '{"op":"persist/commit","args":[[1],[],null]}',
        '{"op":"persist/commit","args":[[["key",1,1]],[],null]}',
        '{"op":"persist/commit","args":[[],[null],null]}',
        '{"op":"persist/commit","args":[[],[["append","s","t",1,1]],null]}',
        '{"op":"persist/commit","args":[[],[["append","s","t",1,1,1]],null]}',
        '{"op":"persist/commit","args":[[],[["append","s","t",null,1,false]],null]}',
        '{"op":"persist/commit","args":[[],[["append","s",1,1,1,false]],null]}',
        '{"op":"persist/commit","args":[[],[["append","$global","t",1,1,false]],null]}',
        '{"op":"persist/commit","args":[[],[["put","",1]],null]}',
        '{"op":"persist/commit","args":[[],[["put","k",{"$absent":[]}]],null]}',
        '{"op":"persist/commit","args":[[],[["delete"]],null]}',
        '{"op":"persist/commit","args":[[],[["truncate","s","1"]],null]}',
        '{"op":"persist/commit","args":[[],[["redact","s",1,"path"]],null]}',
        '{"op":"persist/commit","args":[[],[["redact","s",1,[null]]],null]}',
        '{"op":"persist/commit","args":[[],[["frob","s"]],null]}',
        "[" * 2000, '{"a":' * 900 + "1" + "}" * 900,
    ],
)  # fmt: skip
def test_a_malformed_request_is_wrong_use_and_writes_nothing(b: MemoryBackend, body: str) -> None:  # P-DUR-1
    with pytest.raises(UsageError) as caught:
        run(b, read_request(body.encode("latin-1")))

    assert caught.value.hint
    assert (b.streams(), b.kv_keys()) == ([], [])


@pytest.mark.parametrize("op", ['"persist/frob"', '""', "null", "7", "[]", "{}", '["persist/read"]'])
def test_an_unknown_operation_is_named(b: MemoryBackend, op: str) -> None:  # P-DUR-5
    with pytest.raises(UnknownOp, match="unknown operation"):
        run(b, read_request(f'{{"op":{op},"args":[]}}'.encode()))


def test_every_operation_of_the_contract_has_its_checks() -> None:  # P-BKD-7
    assert set(OPS) == set(requests._CHECKS)
    for op in OPS:
        with pytest.raises(StrandlineError):
            read_request(encode_wire({"op": op, "args": [None] * 9}))
