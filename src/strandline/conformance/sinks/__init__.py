"""What any sink must pass: cases over the real delivery code, a store in memory and a table in memory.

    from strandline.conformance.sinks import CASES, SinkUnderTest

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_my_sink(case, tmp_path):
        sink = MySink(tmp_path / "out", unit_rows=5)
        case(SinkUnderTest(sink, stored=lambda dataset, source: ...))

Each case wants a destination that is empty. No Spark is needed, and no time passes but that of the
destination.
"""

from strandline.conformance.sinks.bench import NODE, UNIT_ROWS, SinkUnderTest
from strandline.conformance.sinks.cases import CASES, SinkCase

__all__ = ["CASES", "NODE", "UNIT_ROWS", "SinkCase", "SinkUnderTest"]
