"""The page of faults: made of what was counted, with nothing broken."""

import pytest

from tests.faults.publish import FAULTS, PAGE, kept, main, page


def test_the_page_is_made_of_the_counts() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(kept())


def test_every_fault_was_counted_and_no_promise_was_broken() -> None:
    counts = kept()["counts"]

    assert set(counts) == set(FAULTS)
    assert [fault for each in counts.values() for count in each for fault in count["broken"]] == []


def test_a_fault_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["flood"])

    assert "there is no fault 'flood'" in capsys.readouterr().err
