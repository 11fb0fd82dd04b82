"""The worked migration: access grants as events, on whatever backend."""

from strandline.conformance.case import Suite
from strandline.conformance.check import call, different, each_raises, equal
from strandline.conformance.fixture import BackendFixture
from strandline.persist import (
    Backend,
    Event,
    HistoryGap,
    Hub,
    append,
    compact,
    count,
    publish,
    streams,
    truncate_through,
    view_attach,
    view_lag,
    view_name,
    view_stream,
)
from strandline.persist.examples.acl import (
    acl_view,
    audit_window,
    can,
    can_fast,
    grant,
    grants,
    revoke,
    stream_for,
)

EXAMPLE_ACL = Suite("example-acl", expected=14, floor=10)


@EXAMPLE_ACL.case("P-ACL-1")
def each_resource_has_a_stream_of_its_own(b: Backend) -> None:
    different(stream_for("wiki"), stream_for("mail"))
    grant(b, "wiki", "ann", 1)

    equal(streams(b), [stream_for("wiki")])


@EXAMPLE_ACL.case("P-ACL-1", "P-ACL-2")
def a_grant_is_an_event_and_comes_back(b: Backend) -> None:
    equal(grant(b, "wiki", "ann", 5), Event(stream_for("wiki"), 1, "granted", 5, {"principal": "ann"}))
    equal(revoke(b, "wiki", "ann", 6), Event(stream_for("wiki"), 2, "revoked", 6, {"principal": "ann"}))


@EXAMPLE_ACL.case("P-ACL-2")
def what_changes_nothing_is_recorded_too(b: Backend) -> None:
    revoke(b, "wiki", "stranger", 1)
    grant(b, "wiki", "ann", 2)
    grant(b, "wiki", "ann", 3)

    equal((count(b, stream_for("wiki")), grants(b, "wiki")), (3, ["ann"]))


@EXAMPLE_ACL.case("P-ACL-3")
def grants_are_listed_in_order_once_each(b: Backend) -> None:
    for principal in ("ann", "bob", "ann", "cid"):
        grant(b, "wiki", principal, 1)

    equal(grants(b, "wiki"), ["ann", "bob", "cid"])


@EXAMPLE_ACL.case("P-ACL-3")
def a_revocation_removes_and_a_new_grant_puts_last(b: Backend) -> None:
    for principal in ("ann", "bob"):
        grant(b, "wiki", principal, 1)

    revoke(b, "wiki", "ann", 2)
    equal(grants(b, "wiki"), ["bob"])
    grant(b, "wiki", "ann", 3)

    equal(grants(b, "wiki"), ["bob", "ann"])


@EXAMPLE_ACL.case("P-ACL-4")
def without_a_grant_the_answer_is_no(b: Backend) -> None:
    equal((grants(b, "wiki"), can(b, "wiki", "ann"), can_fast(b, "wiki", "ann")), ([], False, False))


@EXAMPLE_ACL.case("P-ACL-4")
def principals_and_resources_do_not_affect_each_other(b: Backend) -> None:
    grant(b, "wiki", "ann", 1)
    grant(b, "mail", "bob", 1)
    revoke(b, "mail", "ann", 2)

    equal((can(b, "wiki", "ann"), can(b, "wiki", "bob"), can(b, "mail", "bob")), (True, False, True))


@EXAMPLE_ACL.case("P-ACL-5")
def an_attached_view_answers_fast_after_each_publish(b: Backend) -> None:
    hub = view_attach(Hub(b), acl_view("wiki"))

    publish(hub, stream_for("wiki"), "granted", 1, {"principal": "ann"})
    equal((can_fast(b, "wiki", "ann"), view_lag(b, acl_view("wiki"))), (True, 0))
    publish(hub, stream_for("wiki"), "revoked", 2, {"principal": "ann"})

    equal(can_fast(b, "wiki", "ann"), False)


@EXAMPLE_ACL.case("P-ACL-6")
def the_audit_gives_a_window_of_the_history(b: Backend) -> None:
    for at in (10, 20, 30):
        grant(b, "wiki", f"user-{at}", at)

    equal([event.at for event in audit_window(b, "wiki", 15, 30)], [20, 30])


@EXAMPLE_ACL.case("P-ACL-7", needs=["reopen"])
def grants_survive_a_restart(b: Backend, f: BackendFixture) -> None:
    grant(b, "wiki", "ann", 1)
    grant(b, "wiki", "bob", 2)
    revoke(b, "wiki", "ann", 3)

    again = f.crash()

    equal((grants(again, "wiki"), can_fast(again, "wiki", "ann")), (["bob"], False))


@EXAMPLE_ACL.case("P-ACL-3")
def unknown_events_change_nobodys_access(b: Backend) -> None:
    grant(b, "wiki", "ann", 1)

    append(b, stream_for("wiki"), "reviewed", 2, {"principal": "ann"})
    append(b, stream_for("wiki"), "renamed", 3, {"to": "docs"})

    equal(grants(b, "wiki"), ["ann"])


@EXAMPLE_ACL.case("P-ACL-8")
def the_fast_answer_never_honours_a_revoked_grant(b: Backend) -> None:
    hub = view_attach(Hub(b), acl_view("wiki"))
    publish(hub, stream_for("wiki"), "granted", 1, {"principal": "ann"})

    revoke(b, "wiki", "ann", 2)  # past the hub

    equal((can_fast(b, "wiki", "ann"), view_lag(b, acl_view("wiki"))), (False, 1))


@EXAMPLE_ACL.case("P-ACL-4", "P-PRJ-9")
def grants_stay_right_after_compaction(b: Backend) -> None:
    grant(b, "wiki", "ann", 1)
    grant(b, "wiki", "bob", 2)
    v = acl_view("wiki")
    compact(b, view_stream(v), view_name(v), v.step, v.seed)
    revoke(b, "wiki", "bob", 3)

    equal((grants(b, "wiki"), can(b, "wiki", "bob"), can_fast(b, "wiki", "ann")), (["ann"], False, True))


@EXAMPLE_ACL.case("P-ACL-4", "P-PRJ-9")
def grants_over_lost_history_are_an_error_and_no_answer(b: Backend) -> None:
    grant(b, "wiki", "ann", 1)
    revoke(b, "wiki", "ann", 2)
    truncate_through(b, stream_for("wiki"), 1)

    each_raises(HistoryGap, {"grants": call(grants, b, "wiki"), "fast": call(can_fast, b, "wiki", "ann")})
