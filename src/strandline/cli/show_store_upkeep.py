"""What tidying the store has done, told after `strandline maintain`."""

from typing import TYPE_CHECKING

from strandline.cli.command_group import exit_code, tell
from strandline.cli.node_options import note
from strandline.cli.show import print_json

if TYPE_CHECKING:
    from strandline.maintenance.store_upkeep import Tidied


def tell_tidied(path: str, done: "Tidied", *, as_json: bool) -> list[int]:
    """Its exit codes. With --json one object: tidied (segments, bytes, waiting, blobs, leftovers, paused,
    requests, loads, fences, events, held)."""
    facts = {
        "segments": done.segments.segments,
        "bytes": done.segments.bytes + done.strays.bytes,
        "waiting": done.segments.waiting,
        "blobs": done.strays.blobs,
        "leftovers": done.strays.leftovers,
        "paused": done.strays.is_paused,
        "requests": done.markers.requests,
        "loads": done.markers.loads,
        "fences": done.markers.fences,
        "events": done.folded.events,
        "held": done.is_held,
    }
    if as_json:
        print_json({"tidied": facts})
    elif done.is_held:
        note("another process tidies the store right now")
    else:
        blobs = done.segments.segments + done.strays.blobs
        note(f"{blobs:,} blobs ({facts['bytes']:,} bytes) removed, {done.folded.events:,} events folded")
    if done.strays.is_paused:
        note("what a restored store does not know stays until `strandline maintain --confirm-restore`")
    return [tell(path, each.kind, each.message, each.hint, exit_code(each)) for each in done.errors]
