"""What a terminal is shown while something goes on, and what a pipe is not."""

import io

import pytest

from strandline.cli.show import bar


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_tells_how_much_is_done_of_how_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts that go on side by side make one bar."""
    terminal = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("sys.stderr", terminal)
    with bar("delivering rows", lambda: 8) as shown:
        shown.show("centre", 2)
        shown.show("[archive]", 1)
        shown.show("centre", 4)

    assert "delivering rows" in terminal.getvalue()
    assert "━" in terminal.getvalue()
    assert "5 of 8" in terminal.getvalue()


def test_nothing_is_counted_or_shown_where_no_terminal_is(monkeypatch: pytest.MonkeyPatch) -> None:
    piped = io.StringIO()
    monkeypatch.setattr("sys.stderr", piped)

    def total() -> int:
        raise AssertionError("it is counted")

    with bar("delivering rows", total) as shown:
        shown.show("centre", 4)

    assert piped.getvalue() == ""
