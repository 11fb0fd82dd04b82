"""The page of faults: made of what was counted, with nothing broken."""

import pytest

from tests.faults.bugs import BUGS
from tests.faults.publish import FAULTS, PAGE, TOTALS, counted, kept, main, page, total_table, tried


def test_the_page_is_made_of_the_counts() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(kept())


def test_every_fault_was_counted_and_no_promise_was_broken() -> None:
    counts = kept()["counts"]

    assert set(counts) == set(FAULTS)
    assert [fault for each in counts.values() for count in each for fault in count["broken"]] == []


def test_every_planted_bug_of_the_list_was_tried_and_caught() -> None:
    (count,) = kept()["counts"]["bugs"]

    assert [case[:2] for case in count["cases"]] == [[bug.name, bug.caught_by] for bug in BUGS]
    assert all(said for _, _, said in count["cases"])


def test_all_was_counted_on_one_state_of_the_code_and_in_full() -> None:
    counts = [count for each in kept()["counts"].values() for count in each]

    assert len({count["code"] for count in counts}) == 1
    assert [count["command"] for count in counts if "--share" in count["command"]] == []


def test_each_total_is_of_something() -> None:
    _, _, *rows, _ = total_table(kept()["counts"])

    assert len(rows) == len(TOTALS)
    assert [row for row in rows if "| 0 |" in row.removesuffix("| 0 |")] == []


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", FAULTS)
def test_no_promise_is_broken_at_the_full_count(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:  # P-REC-1, P-REC-2, P-REC-9, P-INT-2, P-DUR-9, P-DUR-10, P-GLB-4, P-CAS-5, P-LOG-11, C-15
    counts = counted(name, 1)

    with capsys.disabled():
        print(*(f"\n{count['name']}: {tried(count)} in {count['seconds']:,.0f} s" for count in counts))
    assert [fault for count in counts for fault in count["broken"]] == []


def test_a_fault_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["flood"])

    assert "there is no fault 'flood'" in capsys.readouterr().err
