"""Bytes of a store that change on the disk."""

from tests.faults.flipping import log_file, main_file


def test_a_flipped_byte_of_a_store_is_never_read_as_data() -> None:  # P-INT-2, P-INT-3
    count = main_file(stride=97)

    assert count.broken == []
    assert count.tried["noticed"] + count.tried["noticed by verify"] == count.tried["bytes flipped"] > 300


def test_a_flipped_byte_of_a_log_that_a_kill_left_gives_a_prefix_of_the_commits() -> None:  # P-REC-9
    count = log_file(stride=211)

    assert count.broken == []
    assert count.tried["bytes flipped"] > 300
