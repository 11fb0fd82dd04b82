"""Every case as a test: for whoever writes a backend and has pytest.

With Strandline installed pytest knows this plugin. Give a fixture `backend_fixture` and one test:

    # conftest.py
    @pytest.fixture(scope="session")
    def backend_fixture():
        fixture = MyFixture()      # see strandline.conformance.fixture.BackendFixture
        yield fixture
        fixture.close()

    # test_conformance.py
    def test_conformance(conformance_case, backend_fixture):
        conformance_case(backend_fixture)

The test is run once for each case, as `test_conformance[log/the-first-event-of-a-stream-has-seq-1]`, each
time on a fresh store; what the fixture declares as missing is skipped with its reason. `-k kv/` chooses by
suite. The cases run in the process of pytest, so a case that hangs needs a limit (pytest-timeout), and the
level reached is stated by `strandline conformance run` alone.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

    from strandline.conformance.case import Case
    from strandline.conformance.fixture import BackendFixture


class CaseCall:
    """A case as a test calls it."""

    def __init__(self, case: "Case") -> None:
        self.case = case

    def __call__(self, fixture: "BackendFixture") -> None:
        import pytest

        from strandline.conformance.check import CaseFailed

        reason = self.case.reason_against(fixture)
        if reason is not None:
            pytest.skip(reason)
        try:
            self.case.run(fixture)
        except CaseFailed as failed:
            rules = ", ".join(self.case.rules)
            pytest.fail(
                f"{self.case.title} ({rules})\nexpected: {failed.expected}\n  actual: {failed.actual}"
            )


def pytest_generate_tests(metafunc: "pytest.Metafunc") -> None:
    """Where a test asks for `conformance_case` it gets every one; nothing is imported where none does."""
    if "conformance_case" not in metafunc.fixturenames:
        return
    from strandline.conformance.suites import ALL

    cases = [case for suite in ALL for case in suite.cases]
    metafunc.parametrize(
        "conformance_case", [CaseCall(case) for case in cases], ids=[case.id for case in cases]
    )
