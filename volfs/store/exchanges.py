"""What an exchange of a copy and a name brought out, and what is done if that is another's version.

For the moment between an exchange and the look at what came out, a version that
somebody was promised may lie under the name of one of our copies. If nobody looks any
more, because the daemon was killed or the store failed, the trace that the commit left
tells the two apart: a copy has the inode number that it was made with, and what was
to be replaced has its version. Anything else is kept beside the name that it had.

Not here: the exchange itself (`store.uploading`), and who remembers traces
(`commit.journal`).

Blocking; called from worker threads or, on local file systems, from the trio thread.

*Invariants:* nothing is deleted here. Inode numbers tell for sure, because both
files live, the one at the name and the other in our hands.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from itertools import count
from typing import Final, NamedTuple

import structlog

from volfs.core.conflicts import conflict_name
from volfs.core.versions import Version
from volfs.store import beneath
from volfs.store.attributes import same_but_for_ctime, to_stat
from volfs.store.beneath import renameat2

__all__ = ["Trace", "keep_beside", "keep_left", "keep_stranger"]

log = structlog.get_logger(__name__)

_NOREPLACE: Final = 1


class Trace(NamedTuple):
    """Of a copy that is about to be exchanged: its name and inode number, and the version to be replaced."""

    name: str
    number: int
    expected: Version

    def text(self) -> str:
        """For `parse`; versions are ASCII."""
        return f"{self.name} {self.number:x} {self.expected.decode('ascii')}"

    @classmethod
    def parse(cls, text: str) -> Trace:
        name, number, expected = text.split(" ")
        return cls(name, int(number, 16), Version(expected.encode("ascii")))


def keep_left(root: int, staging: int, places: list[str], text: str, path: bytes) -> bytes | None:
    """As `store.base.Store.keep_left`. `places`: where copies may be, what stands before their names."""
    trace = Trace.parse(text)
    for place in places:
        kept_as = keep_stranger(root, staging, trace._replace(name=place + trace.name), path)
        if kept_as is not None:
            return kept_as
    return None


def keep_stranger(root: int, directory: int, trace: Trace, path: bytes) -> bytes | None:
    """Keep what has the copy's name beside `path` if it is neither the copy nor what was to be replaced; its
    path then.
    """
    try:
        st = to_stat(os.stat(trace.name, dir_fd=directory, follow_symlinks=False))
    except FileNotFoundError:
        return None
    if st.number == trace.number or same_but_for_ctime(st, trace.expected):
        return None
    above, target = beneath.split(path)
    parent, above = _nearest(root, above)
    try:
        with suppress(FileNotFoundError):  # somebody else, a call that was left behind, has just kept it
            return _join(above, keep_beside(directory, os.fsencode(trace.name), parent, target))
    finally:
        if parent != root:
            os.close(parent)
    return None


def _nearest(root: int, path: bytes) -> tuple[int, bytes]:
    """A directory, or the next one above it that is still there; open, and its path."""
    while path:
        with suppress(FileNotFoundError, NotADirectoryError):
            return beneath.open_directory(root, path), path
        path, _ = beneath.split(path)
    return root, path


def _join(directory: bytes, name: bytes) -> bytes:
    return directory + b"/" + name if directory else name


def keep_beside(directory: int, name: bytes, parent: int, target: bytes) -> bytes:
    """Give another's version, which is in our hands, a name beside `target` in `parent`; that name."""
    now = time.time()
    for attempt in count():
        beside = conflict_name(target, socket.gethostname(), now, attempt)
        with suppress(FileExistsError):
            renameat2(directory, name, parent, beside, _NOREPLACE)
            log.warning("conflict: a version was replaced while it was compared", kept_as=beside)
            return beside
    raise AssertionError("unreachable: there is always another name")
