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

__all__ = ["done", "is_abandoned", "is_ours", "name"]

#: Hidden, and independent of the target's name: that may be as long as a name can be.
_PREFIX: Final = ".volfs-tmp"
_NAME: Final = re.compile(rf"{re.escape(_PREFIX)}-([0-9a-f]{{16}})-(\d+)-(\d+)-\d+")

#: Seconds. Whoever writes changes something much more often.
_SILENCE_S: Final = 86_400.0

_numbers = itertools.count(1)

#: Those of this process. Its parent's may be among them after a fork, and are never asked for.
_in_use: set[str] = set()


def name() -> str:
    """A new name, of this process, until it is `done`."""
    made = f"{_PREFIX}-{_place()}-{_owner(os.getpid())}-{next(_numbers)}"
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
    place, pid, start = match.groups()
    if place == _place():
        if int(pid) == os.getpid():
            return name not in _in_use
        return _start(int(pid)) != int(start)
    return time.time() - max(found.st_mtime, found.st_ctime) > _SILENCE_S


@cache
def _place() -> str:
    """Where process ids mean what they mean here."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    return hashlib.sha256(boot + os.readlink("/proc/self/ns/pid").encode()).hexdigest()[:16]


@cache
def _owner(pid: int) -> str:
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
