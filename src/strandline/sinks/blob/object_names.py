"""How objects of a sink are named: by dataset, source, epoch and range, so that name order is seq order.

    logs/source=web-1/00000000000000000000-00000000000000001000.parquet
    logs/source=web-1/epoch=1/00000000000000000000-00000000000000004711.jsonl.gz

A name begins where the unit before it in the chain ended. A name that was changed in any way is no unit's.
"""

import re
from typing import Final

from strandline.base.ranges import Range
from strandline.rows.dataset import encode_source
from strandline.sinks.sink import Unit

_NAME: Final = re.compile(r"([0-9]{20})-([0-9]{20})(\.parquet|\.jsonl|\.jsonl\.gz)")
_EPOCH: Final = re.compile(r"epoch=[1-9][0-9]*/")


def folder_of(dataset: str, source: str, epoch: int) -> str:
    """Where the objects of a strand are. An epoch has a chain of its own."""
    folder = f"{dataset}/source={encode_source(source)}"
    return f"{folder}/epoch={epoch}" if epoch else folder


def name_of(unit: Unit, extension: str) -> str:
    folder = folder_of(unit.shipment.dataset.name, unit.source, unit.epoch)
    return f"{folder}/{unit.after:020}-{unit.hi:020}{extension}"


def range_in(name: str) -> Range | None:
    """What the name of an object, without its folder, says; None if it is no unit's."""
    match = _NAME.fullmatch(name)
    if match is None or int(match[1]) >= int(match[2]):
        return None
    return Range(int(match[1]), int(match[2]))


def is_of_epoch(name: str) -> bool:
    """Whether something in a strand's folder belongs to one of its later epochs."""
    return _EPOCH.match(name) is not None
