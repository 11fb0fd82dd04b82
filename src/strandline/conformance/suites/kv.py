"""Current values: presence rather than truth, upserts, updates, a space that the store keeps for itself."""

from typing import Any

from strandline.conformance.case import Suite
from strandline.conformance.check import call, each_raises, equal, raises, truthy
from strandline.conformance.suites.given import counted, total
from strandline.persist import (
    Backend,
    Delete,
    NotStorable,
    Put,
    ReservedName,
    append,
    append_once,
    checkpoint,
    commit,
    consumer,
    count,
    hold,
    kv_cas,
    kv_delete,
    kv_get,
    kv_get_or,
    kv_has,
    kv_items,
    kv_keys,
    kv_keys_all,
    kv_put,
    kv_put_new,
    kv_update,
    last_seq,
    streams_all,
    truncate_through,
)

KV = Suite("kv", expected=22, floor=13)


@KV.case("P-KV-1")
def an_absent_key_reads_as_none(b: Backend) -> None:
    equal(kv_get(b, "theme"), None)


@KV.case("P-KV-1")
def has_tells_presence(b: Backend) -> None:
    equal(kv_has(b, "theme"), False)

    kv_put(b, "theme", "dark")

    equal(kv_has(b, "theme"), True)


@KV.case("P-KV-2")
def put_returns_the_value(b: Backend) -> None:
    equal(kv_put(b, "theme", {"name": "dark"}), {"name": "dark"})


@KV.case("P-KV-2")
def a_put_value_reads_back(b: Backend) -> None:
    kv_put(b, "theme", {"name": "dark", "tags": ["a", 1]})

    equal(kv_get(b, "theme"), {"name": "dark", "tags": ["a", 1]})


@KV.case("P-KV-2")
def put_overwrites(b: Backend) -> None:
    kv_put(b, "theme", "dark")
    kv_put(b, "theme", "light")

    equal((kv_get(b, "theme"), kv_keys(b)), ("light", ["theme"]))


@KV.case("P-KV-3")
def delete_removes_the_key(b: Backend) -> None:
    kv_put(b, "theme", "dark")

    kv_delete(b, "theme")

    equal((kv_has(b, "theme"), kv_get(b, "theme"), kv_keys(b)), (False, None, []))


@KV.case("P-KV-3")
def deleting_an_absent_key_does_nothing(b: Backend) -> None:
    kv_put(b, "theme", "dark")

    kv_delete(b, "other")

    equal(kv_keys(b), ["theme"])


@KV.case("P-KV-4", "P-BKD-8")
def keys_lists_each_key_once_in_order(b: Backend) -> None:
    for key in ("b", "a", "c", "a"):
        kv_put(b, key, 1)

    equal(kv_keys(b), ["a", "b", "c"])


@KV.case("P-KV-5")
def get_or_gives_the_default_for_an_absent_key(b: Backend) -> None:
    equal(kv_get_or(b, "theme", "none"), "none")
    equal(kv_has(b, "theme"), False)


@KV.case("P-KV-5")
def get_or_goes_by_presence_not_by_truth(b: Backend) -> None:
    for key, value in (("none", None), ("zero", 0), ("empty", ""), ("no", False), ("list", [])):
        kv_put(b, key, value)
        equal(kv_get_or(b, key, "default"), value, key)


@KV.case("P-KV-6")
def update_starts_from_the_default_and_returns_what_it_stored(b: Backend) -> None:
    equal(kv_update(b, "visits", 10, lambda n: n + 1), 11)
    equal(kv_get(b, "visits"), 11)


@KV.case("P-KV-6")
def n_updates_are_n_increments(b: Backend) -> None:
    for _ in range(7):
        kv_update(b, "visits", 0, lambda n: n + 1)

    equal(kv_get(b, "visits"), 7)


@KV.case("P-KV-8", "P-BKD-5")
def keys_make_no_streams(b: Backend) -> None:
    append(b, "cart-1", "opened", 1, {})

    kv_put(b, "cart-1", "x")
    kv_put(b, "other", "x")
    kv_delete(b, "cart-1")

    equal((streams_all(b), count(b, "cart-1"), last_seq(b, "cart-1")), (["cart-1"], 1, 1))


@KV.case("P-KV-8", "P-BKD-5")
def events_make_no_visible_keys(b: Backend) -> None:
    counted(b, "cart-1", 3, globally=True)
    append_once(b, "cart-1", "k", "added", 4, {"n": 4})
    checkpoint(b, "cart-1", "total", total, 0)
    hold(b, "cart-1", "exporter", 1)
    consumer(b, "mailer", "cart-1")
    truncate_through(b, "cart-1", 1)

    equal(kv_keys(b), [])


@KV.case("P-KV-1", "P-KV-5", "P-CAS-2")
def a_stored_none_is_there(b: Backend) -> None:
    kv_put(b, "theme", None)

    equal((kv_has(b, "theme"), kv_get(b, "theme"), kv_get_or(b, "theme", 1)), (True, None, None))
    equal(kv_keys(b), ["theme"])


@KV.case("P-KV-6")
def update_of_a_stored_none_sees_none_and_not_the_default(b: Backend) -> None:
    kv_put(b, "theme", None)

    equal(kv_update(b, "theme", "default", lambda value: [value]), [None])


@KV.case("P-KV-7")
def an_update_whose_function_raises_writes_nothing(b: Backend) -> None:
    kv_put(b, "visits", 3)

    with raises(ZeroDivisionError):
        kv_update(b, "visits", 0, lambda n: n // 0)
    with raises(NotStorable):
        kv_update(b, "visits", 0, lambda n: {n})

    equal(kv_get(b, "visits"), 3)


@KV.case("P-KV-7")
def an_update_that_was_overtaken_runs_again_on_the_new_value(b: Backend) -> None:
    seen_values: list[Any] = []

    def overtaken(value: Any) -> Any:
        if not seen_values:
            kv_put(b, "visits", 100)  # another writer, between our look and our write
        seen_values.append(value)
        return value + 1

    equal(kv_update(b, "visits", 0, overtaken), 101)
    equal(seen_values, [0, 100])


@KV.case("P-KV-4")
def applications_may_not_write_to_reserved_keys(b: Backend) -> None:
    each_raises(
        ReservedName,
        {
            "put": call(kv_put, b, "$mine", 1),
            "delete": call(kv_delete, b, "$snapshot/s"),
            "update": call(kv_update, b, "$mine", 0, lambda n: n),
            "cas": call(kv_cas, b, "$mine", None, 1),
            "put_new": call(kv_put_new, b, "$mine", 1),
            "commit put": call(commit, b, [], [Put("$mine", 1)]),
            "commit delete": call(commit, b, [], [Delete("$mine")]),
        },
    )
    equal(kv_keys_all(b), [])


@KV.case("P-KV-4")
def what_the_store_keeps_for_itself_is_listed_only_on_request(b: Backend) -> None:
    counted(b, "cart-1", 2)
    checkpoint(b, "cart-1", "total", total, 0)
    kv_put(b, "mine", 1)

    every = kv_keys_all(b)

    equal(kv_keys(b), ["mine"])
    equal([key for key in every if not key.startswith("$")], ["mine"])
    truthy(len(every) > 1, "reserved keys in kv_keys_all")


@KV.case("P-KV-4", "P-LOG-13")
def items_page_through_more_keys_than_fit_one_page(b: Backend) -> None:
    commit(b, [], [Put(f"user/{i:04}", i) for i in range(1_100)])
    kv_put(b, "zebra", "last")

    equal([value for _, value in kv_items(b, prefix="user/")], list(range(1_100)))
    equal(len(list(kv_items(b))), 1_101)
    equal(kv_items(b, prefix="user/0999"), [("user/0999", 999)])


@KV.case("P-KV-4")
def a_prefix_is_plain_text_and_no_pattern(b: Backend) -> None:
    for key in ("a%b", "a_b", "axb", "a*b", "a\\b", "A%b"):
        kv_put(b, key, 1)

    equal([key for key, _ in kv_items(b, prefix="a%")], ["a%b"])
    equal([key for key, _ in kv_items(b, prefix="a_")], ["a_b"])
    equal([key for key, _ in kv_items(b, prefix="a\\")], ["a\\b"])
