"""A daemon that is watched, as a person runs it: metrics over HTTP, traces at a collector."""

import time
import urllib.request
from pathlib import Path

from tests.daemon.test_up import SETTINGS, post, run, up
from tests.node.test_metrics import parsed
from tests.observe.collector import collecting


def test_a_daemon_is_seen_by_prometheus_and_by_a_collector(tmp_path: Path) -> None:
    """L-OBS-4, L-OBS-6, L-OBS-7: and its counts outlive it."""
    with collecting() as collector:
        observe = f'[observe]\nmetrics = true\ntraces = "{collector.url}"\n'
        (tmp_path / "strandline.toml").write_text(SETTINGS + observe)
        token = run("server", "token", "new", "api", "--home", str(tmp_path)).stdout.strip()
        with up(tmp_path) as daemon:
            post(daemon, token, [{"message": "one"}, {"message": "two"}], "1")
            assert daemon.heard("flush")["facts"]["rows"] == 2
            began = time.perf_counter()
            with urllib.request.urlopen(f"{daemon.url}/metrics", timeout=30) as answer:
                found = parsed(answer.read())
            took_s = time.perf_counter() - began
            assert daemon.end() == 0
        names = {each.name for each in collector.spans}
        flush = next(each for each in collector.spans if each.name == "flush")
        steps = [each.name for each in collector.spans if each.parent == flush.id]

    assert found["strandline_rows_flushed_total", "logs"] == 2
    assert found["strandline_http_requests_total", "rows_appended"] == 2
    assert took_s < 5  # it starts nothing
    assert {"append", "flush"} <= names
    assert steps[:4] == ["plan", "stage", "publish", "record"]
    status = run("status", "--json", "--home", str(tmp_path)).stdout
    assert '"rows_flushed":2' in status.replace(" ", "")
