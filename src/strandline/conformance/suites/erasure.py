"""Erasure and redaction: what must leave the store leaves it, with a record of that."""

from strandline.conformance.case import Suite
from strandline.conformance.check import call, each_raises, equal, raises
from strandline.conformance.fixture import BackendFixture
from strandline.conformance.suites.given import counted, seqs, total
from strandline.errors import NotFoundError
from strandline.persist import (
    Append,
    Backend,
    Compacted,
    Event,
    UsageError,
    append,
    append_once,
    checkpoint,
    commit,
    consumer,
    count,
    erase_stream,
    global_pos,
    hold,
    kv_get,
    kv_items,
    kv_put,
    last_seq,
    read,
    read_global,
    redact,
    snapshot_exists,
    snapshots,
    stream_exists,
    streams_all,
    truncate_through,
    verify,
)
from strandline.persist.core.lift import atomic

ERASURE = Suite("erasure", expected=17)


@ERASURE.case("P-ERA-1")
def an_erased_stream_is_empty_and_keeps_its_mark(b: Backend) -> None:
    counted(b, "person-1", 4)

    erase_stream(b, "person-1", 99, reason="asked to")

    equal((read(b, "person-1"), count(b, "person-1"), last_seq(b, "person-1")), ([], 0, 4))
    equal((stream_exists(b, "person-1"), append(b, "person-1", "new", 100, {}).seq), (True, 5))


@ERASURE.case("P-ERA-1")
def an_erasure_is_recorded(b: Backend) -> None:
    counted(b, "person-1", 4)

    record = erase_stream(b, "person-1", 99, reason="asked to")

    wanted = Event("$erased", 1, "erased", 99, {"stream": "person-1", "through": 4, "reason": "asked to"})
    equal((record, read(b, "$erased")), (wanted, [wanted]))


@ERASURE.case("P-ERA-1")
def an_erasure_goes_past_every_hold(b: Backend) -> None:
    counted(b, "person-1", 4)
    hold(b, "person-1", "exporter", 0)
    consumer(b, "mailer", "person-1")

    erase_stream(b, "person-1", 99, reason="asked to")

    equal(count(b, "person-1"), 0)


@ERASURE.case("P-ERA-1")
def the_snapshots_of_an_erased_stream_go(b: Backend) -> None:
    counted(b, "person-1", 4)
    counted(b, "person-2", 4)
    checkpoint(b, "person-1", "total-1", total, 0)
    checkpoint(b, "person-2", "total-2", total, 0)

    erase_stream(b, "person-1", 99, reason="asked to")

    equal((snapshot_exists(b, "total-1"), snapshots(b, "person-1")), (False, []))
    equal((snapshot_exists(b, "total-2"), count(b, "person-2")), (True, 4))


@ERASURE.case("P-ERA-1", "P-IDM-7")
def a_repeat_of_an_erased_append_once_writes_nothing(b: Backend) -> None:
    append_once(b, "person-1", "k", "named", 1, {"name": "ann"})
    erase_stream(b, "person-1", 99, reason="asked to")

    outcome = append_once(b, "person-1", "k", "named", 2, {"name": "ann"})

    equal((outcome.reason, outcome.actual), ("KEY_REUSED", Compacted("person-1", 1)))  # type: ignore[union-attr]  # a Conflict
    equal(last_seq(b, "person-1"), 1)


@ERASURE.case("P-ERA-1")
def digests_of_commits_over_several_streams_go_too(b: Backend) -> None:
    writes = [Append("other", "t", 1, {}), Append("person-1", "named", 1, {"name": "ann"})]
    commit(b, [], writes, once=("other", "k"))

    erase_stream(b, "person-1", 99, reason="asked to")

    outcome = commit(b, [], writes, once=("other", "k"))
    equal(outcome.reason, "KEY_REUSED")  # type: ignore[union-attr]  # a Conflict
    markers = [value for _, value in kv_items(b, prefix="$once/", reserved=True)]
    about_it = [marker for marker in markers if any(run[0] == "person-1" for run in marker["runs"])]
    equal([marker["digest"] for marker in about_it], [None])


@ERASURE.case("P-ERA-1", "P-GLB-9")
def pointers_to_erased_events_stay_and_say_so(b: Backend) -> None:
    counted(b, "person-1", 2, globally=True)
    counted(b, "person-2", 1, globally=True)

    erase_stream(b, "person-1", 99, reason="asked to")

    equal(read_global(b), [Compacted("person-1", 1), Compacted("person-1", 2), *read(b, "person-2")])
    equal(global_pos(b), 3)


@ERASURE.case("P-ERA-1")
def erasing_twice_is_harmless(b: Backend) -> None:
    counted(b, "person-1", 2)

    erase_stream(b, "person-1", 1, reason="first")
    erase_stream(b, "person-1", 2, reason="again")

    equal(
        ([event.data["reason"] for event in read(b, "$erased")], last_seq(b, "person-1")),
        (["first", "again"], 2),
    )


@ERASURE.case("P-ERA-1")
def an_erasure_needs_a_reason(b: Backend) -> None:
    counted(b, "person-1", 2)

    each_raises(
        UsageError,
        {
            "empty": call(erase_stream, b, "person-1", 1, reason=""),
            "redaction": call(redact, b, "person-1", 1, ["n"], 1, reason=""),
        },
    )
    equal((count(b, "person-1"), streams_all(b)), (2, ["person-1"]))


@ERASURE.case("P-ERA-2", "P-LOG-10", needs=["redact"])
def a_redaction_puts_none_in_one_place(b: Backend) -> None:
    append(b, "person-1", "named", 5, {"name": "ann", "mail": ["a@x", "b@x"], "n": 1})

    redact(b, "person-1", 1, ["name"], 9, reason="asked to")
    redact(b, "person-1", 1, ["mail", 1], 9, reason="asked to")

    equal(
        read(b, "person-1"), [Event("person-1", 1, "named", 5, {"name": None, "mail": ["a@x", None], "n": 1})]
    )


@ERASURE.case("P-ERA-2", needs=["redact"])
def a_redaction_is_recorded(b: Backend) -> None:
    append(b, "person-1", "named", 5, {"name": "ann"})

    redact(b, "person-1", 1, ["name"], 9, reason="asked to")

    data = {"stream": "person-1", "seq": 1, "path": ["name"], "reason": "asked to"}
    equal(read(b, "$erased"), [Event("$erased", 1, "redacted", 9, data)])


@ERASURE.case("P-ERA-2", needs=["redact"])
def a_redaction_names_the_snapshots_that_have_folded_it(b: Backend) -> None:
    counted(b, "person-1", 2)
    checkpoint(b, "person-1", "early", total, 0)
    counted(b, "person-1", 2, start=3)
    checkpoint(b, "person-1", "late", total, 0)

    equal(redact(b, "person-1", 3, ["n"], 9, reason="asked to").snapshots, ["late"])
    equal(redact(b, "person-1", 1, ["n"], 9, reason="asked to").snapshots, ["early", "late"])


@ERASURE.case("P-ERA-2", "P-IDM-7", needs=["redact"])
def a_redacted_append_once_cannot_be_guessed_at(b: Backend) -> None:
    append_once(b, "person-1", "k", "named", 1, {"name": "ann"})
    redact(b, "person-1", 1, ["name"], 9, reason="asked to")

    outcome = append_once(b, "person-1", "k", "named", 1, {"name": "ann"})

    equal(outcome.reason, "KEY_REUSED")  # type: ignore[union-attr]  # a Conflict
    equal(outcome.actual, Event("person-1", 1, "named", 1, {"name": None}))  # type: ignore[union-attr]  # a Conflict


@ERASURE.case("P-ERA-2", needs=["redact"])
def a_redaction_of_nothing_is_refused(b: Backend) -> None:
    append(b, "person-1", "named", 5, {"name": "ann", "list": [1]})

    each_raises(
        UsageError,
        {
            "no such key": call(redact, b, "person-1", 1, ["mail"], 9, reason="x"),
            "no such index": call(redact, b, "person-1", 1, ["list", 3], 9, reason="x"),
            "negative index": call(redact, b, "person-1", 1, ["list", -1], 9, reason="x"),
            "through a text": call(redact, b, "person-1", 1, ["name", 0], 9, reason="x"),
            "odd path": call(redact, b, "person-1", 1, [1.5], 9, reason="x"),
        },
    )
    with raises(NotFoundError):
        redact(b, "person-1", 2, ["name"], 9, reason="x")
    equal((read(b, "person-1")[0].data, streams_all(b)), ({"name": "ann", "list": [1]}, ["person-1"]))


@ERASURE.case("P-ERA-2", "P-INT-1", needs=["redact", "verify"])
def a_redacted_event_has_a_checksum_of_its_own(b: Backend) -> None:
    counted(b, "person-1", 3, globally=True)

    redact(b, "person-1", 2, [], 9, reason="asked to")

    equal((verify(b), read(b, "person-1")[1].data), ([], None))


@ERASURE.case("P-ERA-2", needs=["redact", "reopen"])
def a_redaction_survives_a_restart(b: Backend, f: BackendFixture) -> None:
    append(b, "person-1", "named", 5, {"name": "ann"})
    redact(b, "person-1", 1, ["name"], 9, reason="asked to")

    equal(read(f.crash(), "person-1")[0].data, {"name": None})


@ERASURE.case("P-ERA-3")
def a_scrub_leaves_what_is_there(b: Backend) -> None:
    counted(b, "s", 50)
    kv_put(b, "k", 1)
    truncate_through(b, "s", 40)

    atomic(b).scrub()
    atomic(b).scrub(rewrite=True)

    equal((seqs(read(b, "s")), last_seq(b, "s"), kv_get(b, "k")), (list(range(41, 51)), 50, 1))
    equal(append(b, "s", "t", 1, {}).seq, 51)
