"""Bytes of a store that change on the disk."""

from tests.faults.flipping import log_file, main_file


def test_a_flipped_byte_of_a_store_is_never_read_as_data_and_verify_names_it() -> None:  # P-INT-2, P-INT-3
    count = main_file(stride=97)

    told = count.tried.copy()
    assert count.broken == []
    assert told.pop("bytes flipped") == sum(told.values()) > 300
    assert set(told) - {"refused to open: usage", "refused to open: unsupported_format"} == {
        "refused to open: corruption",
        "told by reads and verify",
        "told by verify alone",
    }


def test_a_flipped_byte_of_a_log_that_a_kill_left_gives_a_prefix_of_the_commits() -> None:  # P-REC-9
    count = log_file(stride=211)

    assert count.broken == []
    assert count.tried["bytes flipped"] > 300
