"""Asks every question: `make bench`. `--only store`, `tables`, `delivery` or `keeping` asks some."""

from benchmarks import (
    does_a_flush_slow_down,
    does_a_store_slow_down,
    how_do_threads_share,
    how_fast_are_rows_end_to_end,
    how_fast_are_six_writers,
    how_fast_does_a_receiver_accept,
    how_fast_is_a_backfill,
    how_fast_is_a_batch,
    how_fast_is_a_blob,
    how_fast_is_a_compaction,
    how_fast_is_a_flush,
    how_fast_is_a_forward,
    how_fast_is_a_load,
    how_fast_is_a_read,
    how_fast_is_an_append,
    how_fast_is_an_append_of_rows,
    how_fast_is_an_import,
    how_long_is_a_cold_start,
    how_much_does_a_backlog_cost,
    how_much_does_a_read_open,
    how_much_does_a_tick_open,
    how_much_does_an_idle_tick_cost,
    how_much_does_http_cost,
    how_much_is_a_shared_sync_worth,
    how_soon_does_a_follower_wake,
    how_soon_does_a_query_answer,
    where_does_an_append_go,
)
from benchmarks.frame import main

STORE = (
    how_fast_is_an_append,
    how_fast_is_a_batch,
    where_does_an_append_go,
    how_do_threads_share,
    how_much_is_a_shared_sync_worth,
    how_fast_are_six_writers,
    how_fast_is_a_read,
    does_a_store_slow_down,
    how_soon_does_a_follower_wake,
    how_fast_is_an_import,
    how_much_does_http_cost,
)
TABLES = (
    how_fast_is_an_append_of_rows,
    how_fast_is_a_flush,
    does_a_flush_slow_down,
    how_fast_is_a_load,
    how_much_does_a_read_open,
    how_much_does_a_backlog_cost,
    how_long_is_a_cold_start,
    how_soon_does_a_query_answer,
    how_fast_are_rows_end_to_end,
)
DELIVERY = (
    how_fast_is_a_forward,
    how_fast_is_a_blob,
    how_much_does_a_tick_open,
    how_much_does_an_idle_tick_cost,
    how_fast_does_a_receiver_accept,
)

KEEPING = (how_fast_is_a_compaction, how_fast_is_a_backfill)

if __name__ == "__main__":
    main(
        {question.QUESTION: question.ask for question in (*STORE, *TABLES, *DELIVERY, *KEEPING)},
        {
            "store": [question.QUESTION for question in STORE],
            "tables": [question.QUESTION for question in TABLES],
            "delivery": [question.QUESTION for question in DELIVERY],
            "keeping": [question.QUESTION for question in KEEPING],
        },
    )
