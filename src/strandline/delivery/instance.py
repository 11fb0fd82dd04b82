"""An instance as a whole: when it was first seen, and which destination its name means."""

from strandline.delivery.owed import Terms, covered, owed
from strandline.errors import HeldError
from strandline.persist import ExpectSeq
from strandline.persist.backend import Write
from strandline.sinks.sink import Sink
from strandline.state.context import Site
from strandline.state.sink_progress import event_of, instance_stream, sink_stream


class DestinationChanged(HeldError):
    """An instance whose name now means another destination."""

    def __init__(self, instance: str, was: str, now: str) -> None:
        super().__init__(
            f"sink {instance!r} delivered to {was} and is now configured for {now}",
            hint=f"`strandline sink bind {instance} --keep` if it is the same place by another name, "
            "`--reset` to deliver everything to the new one",
        )
        self.instance, self.was, self.now = instance, was, now


def is_recorded(site: Site, terms: Terms) -> bool:
    """An instance that starts now must say so at once; any other is recorded with what it first delivers."""
    if site.standing.lines().instance(terms.name).is_open:
        return True
    return terms.start == "all" and not owed(site, terms)


def record_instance(site: Site, sink: Sink, terms: Terms) -> None:
    """The instance, its destination, and where its strands start."""
    while not (known := site.standing.lines().instance(terms.name)).is_open:
        at, stream = site.clock.now_us(), instance_stream(terms.name)
        writes: list[Write] = [
            event_of(stream, "opened", at, fingerprint=sink.fingerprint, start=terms.start)
        ]
        if terms.start == "now":
            writes += [
                event_of(
                    sink_stream(terms.name, strand.dataset, strand.source),
                    "started",
                    at,
                    mark=strand_state.visible_through,
                    epoch=known.epoch,
                )
                for strand, strand_state in covered(site, terms)
                if strand_state.visible_through
            ]
        site.b.commit([ExpectSeq(stream, known.event)], writes)


def check_destination(site: Site, sink: Sink, terms: Terms) -> None:
    was = site.standing.lines().instance(terms.name).fingerprint
    if not sink.is_at(was):
        raise DestinationChanged(terms.name, was, sink.fingerprint)
