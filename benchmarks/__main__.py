"""Asks every question: `make bench`."""

from benchmarks import (
    how_do_threads_share,
    how_fast_is_a_batch,
    how_fast_is_a_read,
    how_fast_is_an_append,
    how_fast_is_an_import,
    how_much_does_http_cost,
    how_soon_does_a_follower_wake,
)
from benchmarks.frame import main

QUESTIONS = (
    how_fast_is_an_append,
    how_fast_is_a_batch,
    how_do_threads_share,
    how_fast_is_a_read,
    how_soon_does_a_follower_wake,
    how_fast_is_an_import,
    how_much_does_http_cost,
)

if __name__ == "__main__":
    main({question.QUESTION: question.ask for question in QUESTIONS})
