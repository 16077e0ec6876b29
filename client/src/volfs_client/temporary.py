"""Names for what is not finished yet, and whose run has died.

A name says which process made it: the boot and process namespace, the process id and its
start. So the next run can take away what a killed one left, and leaves alone what a live
one is writing. It neither makes nor removes anything.

*Concurrency:* any thread; one call adds or removes one name.

*Invariants:* no two names are equal, on all machines. What another machine made counts as
abandoned only when nothing has changed in it for a day: that process cannot be looked at.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import time
from functools import cache
from pathlib import Path
from typing import Final

__all__ = ["OWNER", "done", "is_abandoned", "is_alive", "is_ours", "name", "owner"]

#: Hidden, and independent of the target's name: that may be as long as a name can be.
_PREFIX: Final = ".volfs-tmp"

#: An owner in a name: the boot and process namespace, the process id, its start.
OWNER: Final = r"[0-9a-f]{16}-\d+-\d+"
_NAME: Final = re.compile(rf"{re.escape(_PREFIX)}-({OWNER})-\d+")

#: Seconds. Whoever writes changes something much more often.
_SILENCE_S: Final = 86_400.0

_numbers = itertools.count(1)

#: Those of this process. Its parent's may be among them after a fork, and are never asked for.
_in_use: set[str] = set()


def name() -> str:
    """A new name, of this process, until it is `done`."""
    made = f"{_PREFIX}-{owner()}-{next(_numbers)}"
    _in_use.add(made)
    return made


def done(name: str) -> None:
    """The name is not used any more. What has it still, because it could not be removed, is abandoned."""
    _in_use.discard(name)


def is_ours(name: str) -> bool:
    """Whether the name is one of these."""
    return _NAME.fullmatch(name) is not None


def is_abandoned(name: str, found: os.stat_result) -> bool:
    """Whether nobody will finish what has this name and this state."""
    match = _NAME.fullmatch(name)
    if match is None:
        return False
    alive = is_alive(match[1])
    if alive is None:
        return time.time() - max(found.st_mtime, found.st_ctime) > _SILENCE_S
    return not alive or (match[1] == owner() and name not in _in_use)


def owner() -> str:
    """This process, as it stands in names."""
    return f"{_place()}-{_started(os.getpid())}"


def is_alive(owner: str) -> bool | None:
    """Whether the process that an owner stands for runs; None: it is one of another machine or boot."""
    place, pid, start = owner.split("-")
    return _start(int(pid)) == int(start) if place == _place() else None


@cache
def _place() -> str:
    """Where process ids mean what they mean here."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        place = boot + os.readlink("/proc/self/ns/pid").encode()
    except OSError:  # a sandbox that shows no /proc
        place = os.uname().nodename.encode()
    return hashlib.sha256(place).hexdigest()[:16]


@cache
def _started(pid: int) -> str:
    return f"{pid}-{_start(pid)}"


def _start(pid: int) -> int:
    """When the process began, in clock ticks since the boot; 0 if there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    state, *fields = text.rpartition(b")")[2].split()
    # A zombie has let go of its files.
    return 0 if state in b"ZX" else int(fields[18])
