"""Telling systemd how the daemon is: `Type=notify-reload` and `WatchdogSec=` in its unit.

Where nobody listens, since nothing was started by systemd, nothing is told.
"""

import os
import socket
import time
from typing import Final

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
ALIVE: Final = "WATCHDOG=1"


def reloading() -> str:
    """systemd compares the time with that of the signal it sent."""
    return f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}"


def notify(text: str) -> bool:
    """Whether somebody was told."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return False
    place = "\0" + address[1:] if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as told:
        try:
            told.sendto(text.encode(), place)
        except OSError:
            return False  # it has gone away; what it is told is for its own sake
    return True
