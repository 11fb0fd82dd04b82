"""What a daemon says of what is over."""

from strandline.daemon.due_syncs import Ended
from strandline.daemon.loop import news_of
from strandline.errors import UnavailableError
from strandline.state.lease import LeaseHeld


def test_that_another_process_does_the_same_is_no_failure() -> None:
    """`strandline sql` flushes what is pending, beside a daemon that is about to."""
    news = news_of(Ended("flush", "logs", 0, LeaseHeld("flush/logs", "laptop pid 7", 60)))

    assert (news.error, news.is_idle) == ("", True)


def test_a_flush_that_fails_says_why() -> None:
    news = news_of(Ended("flush", "logs", 0, UnavailableError("the disk is full")))

    assert (news.what, news.name, news.is_idle) == ("flush", "logs", False)
    assert "the disk is full" in news.error
