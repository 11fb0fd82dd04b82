"""Every line of every instance, folded along the global order. Standing keeps it caught up."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from strandline.base.ranges import RangeSet, pairs_of, ranges_of
from strandline.persist import Event
from strandline.rows.dataset import Strand, decode_source
from strandline.state.sink_progress import (
    Instance,
    SinkProgress,
    SinkStop,
    intent_data,
    intent_of,
    trouble_data,
    trouble_of,
    with_event,
    with_instance_event,
)
from strandline.state.strand_entries import ControlUnreadable

UNREADABLE = "control_unreadable"


class Lines:
    """By instance and strand. Damage in a strand's stream holds that strand, and nothing else.

    One thread folds while others ask, so what is asked goes over copies.
    """

    def __init__(self) -> None:
        self._instances: dict[str, Instance] = {}
        self._lines: dict[str, dict[Strand, SinkProgress]] = {}

    def take(self, event: Event) -> None:
        """An event of a stream `sink/…`."""
        name, _, rest = event.stream.removeprefix("sink/").partition("/")
        if not rest:
            self._take_instance(name, event)
            return
        dataset, _, source = rest.partition("/")
        strand = Strand(dataset, decode_source(source))
        line = self.line(name, strand)
        is_readable = line.hold is None or line.hold.kind != UNREADABLE
        if is_readable or event.type == "moved":  # an operator says where it is: that ends the damage
            try:
                line = with_event(line, event)
            except ControlUnreadable as error:
                line = replace(line, hold=SinkStop(UNREADABLE, str(error), int(event.at)), event=event.seq)
        else:
            line = replace(line, event=event.seq)
        self._lines.setdefault(name, {})[strand] = line

    def _take_instance(self, name: str, event: Event) -> None:
        before = self._instances.get(name, Instance())
        try:
            after = with_instance_event(before, event)
        except ControlUnreadable as error:
            after = replace(before, hold=SinkStop(UNREADABLE, str(error), int(event.at)), event=event.seq)
        if event.type == "forgotten":
            self._lines[name] = {
                strand: SinkProgress(
                    epoch=after.epoch, last_epoch=max(after.epoch, line.last_epoch), event=line.event
                )
                for strand, line in self._lines.get(name, {}).items()
            }
        self._instances[name] = after

    # What can be asked

    def instance(self, name: str) -> Instance:
        return self._instances.get(name, Instance())

    def instances(self) -> list[str]:
        """Those that are open."""
        return sorted(name for name, each in list(self._instances.items()) if each.is_open)

    def line(self, instance: str, strand: Strand) -> SinkProgress:
        if (known := self._lines.get(instance, {}).get(strand)) is not None:
            return known
        epoch = self.instance(instance).epoch
        return SinkProgress(epoch=epoch, last_epoch=epoch)

    def last_epoch(self, strand: Strand) -> int:
        """The highest in which any instance ever delivered a strand: two that deliver to one destination
        must not take each other's rows for a repeat."""
        used = [lines[strand].last_epoch for lines in list(self._lines.values()) if strand in lines]
        return max([*used, *(each.epoch for each in list(self._instances.values()))], default=0)

    def of(self, instance: str) -> Mapping[Strand, SinkProgress]:
        return dict(self._lines.get(instance, {}))

    def count(self) -> int:
        return sum(map(len, self._lines.values()))

    # As data

    def data(self) -> dict[str, Any]:
        return {
            "instances": [
                [name, each.fingerprint, _hold_data(each.hold), each.epoch, each.event, each.is_open]
                for name, each in self._instances.items()
            ],
            "lines": [
                [name, strand.dataset, strand.source, _line_data(line)]
                for name, lines in self._lines.items()
                for strand, line in lines.items()
            ],
        }

    def load(self, data: Mapping[str, Any]) -> None:
        for name, fingerprint, hold, epoch, event, is_open in data["instances"]:
            self._instances[name] = Instance(fingerprint, _hold(hold), epoch, event, is_open)
        for name, dataset, source, line in data["lines"]:
            self._lines.setdefault(name, {})[Strand(dataset, source)] = _line(line)


def _line_data(line: SinkProgress) -> dict[str, Any]:
    trouble = line.trouble
    return {
        "mark": line.mark,
        "chain_hi": line.chain_hi,
        "epoch": line.epoch,
        "last_epoch": line.last_epoch,
        "intent": None if line.intent is None else {**intent_data(line.intent), "at": line.intent.at},
        "done": pairs_of(line.done.ranges),
        "newest": line.newest,
        "is_told": line.is_told,
        "withheld": pairs_of(line.withheld.ranges),
        "released": pairs_of(line.released.ranges),
        "letters": list(line.letters),
        "trouble": None if trouble is None else {**trouble_data(trouble), "at": trouble.at},
        "hold": _hold_data(line.hold),
        "rows": line.rows,
        "bytes": line.bytes,
        "high": line.high,
        "event": line.event,
        "at": line.at,
        "evicted": line.evicted,
    }


def _line(data: Mapping[str, Any]) -> SinkProgress:
    intent, trouble = data["intent"], data["trouble"]
    return SinkProgress(
        **{
            **data,
            "intent": None if intent is None else intent_of(intent, intent["at"]),
            "done": _set(data["done"]),
            "withheld": _set(data["withheld"]),
            "released": _set(data.get("released", ())),
            "letters": tuple(data["letters"]),
            "trouble": None if trouble is None else trouble_of(trouble),
            "hold": _hold(data["hold"]),
        }
    )


def _hold_data(hold: SinkStop | None) -> list[Any] | None:
    return None if hold is None else list(hold)


def _hold(data: Iterable[Any] | None) -> SinkStop | None:
    return None if data is None else SinkStop(*data)


def _set(pairs: Iterable[Any]) -> RangeSet:
    return RangeSet(ranges_of(pairs))
