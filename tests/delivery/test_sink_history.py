"""The history of a sink between two times: both ends are included."""

from strandline.delivery.owed import Terms
from strandline.delivery.run import sync
from strandline.delivery.session import Sender
from strandline.delivery.sink_history import history
from strandline.flush.flush import flush
from strandline.ingest.append import append
from strandline.state.context import Site
from tests.delivery.destinations import Server, ServerSink, TableCourier
from tests.simulation import DATASET, World


def test_a_history_includes_what_happened_at_its_first_and_at_its_last_time(
    world: World, site: Site, server: Server
) -> None:  # L-OBS-2
    for number in (1, 2):
        append(site, DATASET, [{"key": str(number)}], source="a")
        flush(site, world.table, DATASET)
        world.now_us += 1_000_000
        sender = Sender("origin", "edge", lambda name: name)
        sync(site, lambda: TableCourier(world), ServerSink(server), Terms("centre"), sender)
    moments = list(history(site, "centre", dataset=DATASET))
    first, last = moments[0].at, moments[-1].at
    assert first < last

    assert list(history(site, "centre", dataset=DATASET, since=first, until=last)) == moments
    assert {each.at for each in history(site, "centre", dataset=DATASET, until=first)} == {first}
    assert {each.at for each in history(site, "centre", dataset=DATASET, since=last)} == {last}
    assert list(history(site, "centre", dataset=DATASET, since=last + 1)) == []
