"""Copies of staged files on their way into a directory store: new files under `.volfs`, without a name yet.

It owns how a copy is made, byte by byte; what gives it its name is `store.uploading`.

Blocking; called from worker threads or, on local file systems, from the trio thread.

*Invariants:* the name of a copy begins with COPY_PREFIX, so that one that a crash left
is swept, or with SWAP_PREFIX before it is exchanged with a name. A copy that was
finished is durable.
"""

from __future__ import annotations

import os
import stat as _stat
from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from uuid import uuid4

from volfs import crash
from volfs.core.spans import Extent
from volfs.store.attributes import copy_attributes, dress, to_stat
from volfs.store.base import Observer, Stat
from volfs.store.copying import copy_bytes
from volfs.store.writing import PIECE_BYTES, WideWriter

__all__ = ["COPY_PREFIX", "SWAP_PREFIX", "Copy", "copy_over", "copy_staged", "discard", "new_name"]

#: Names of copies that were not shown yet. Their bytes are staged elsewhere: they may always be deleted.
COPY_PREFIX: Final = "copy-"

#: Names of copies that may be exchanged with a version, and so of versions that came out of an exchange: only
#: the mount that has the trace of the copy knows what such a file is (see `store.exchanges`).
SWAP_PREFIX: Final = "swap-"


def new_name(prefix: str) -> str:
    """A name that no other copy has."""
    return f"{prefix}{uuid4().hex}"


class Copy:
    """One copy, open. `directory` is where it lies, by a descriptor of the store's.

    `parallel`: the store is slow enough for several streams to pay off.
    """

    __slots__ = ("_made", "_writer", "directory", "fd", "name")

    def __init__(self, directory: int, *, parallel: bool, mode: int = 0o600, name: str | None = None) -> None:
        self.directory = directory
        self.name = name or new_name(COPY_PREFIX)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self.fd = os.open(self.name, flags, mode, dir_fd=directory)
        self._writer = WideWriter(self.fd, parallel=parallel)
        self._made = os.fstat(self.fd)
        crash.point("upload.created")

    @property
    def number(self) -> int:
        """Its inode number."""
        return self._made.st_ino

    def bring(self, staged: int, extents: Sequence[Extent], observe: Observer | None) -> int:
        """Copy parts of the staged file; how many bytes."""
        self._writer.bring(staged, extents, observe)
        crash.point("upload.brought")
        return sum(extent.size for extent in extents)

    def finish(self, staged: int) -> Stat:
        """All parts are here: size, attributes, and it survives a power cut."""
        self._writer.close()
        size = os.fstat(staged).st_size
        if self._writer.size != size:
            os.ftruncate(self.fd, size)
        crash.point("upload.copied")
        dress(staged, self.fd, self._made)
        os.fsync(self.fd)
        st = to_stat(os.fstat(self.fd))
        crash.point("upload.synced")
        return st

    def take(self) -> list[int]:
        """The descriptors, for the caller to close."""
        return [*self._writer.take(), self.fd]

    def close(self) -> None:
        for fd in self.take():
            with suppress(OSError):  # it is not shown: nobody misses what was not written
                os.close(fd)

    def discard(self) -> None:
        """Take it away; it must be closed."""
        discard(self.directory, self.name)


def discard(directory: int, name: str) -> None:
    """Take a copy away, if it is still there."""
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


def copy_staged(
    staged: int,
    directory: int,
    observe: Observer | None,
    *,
    parallel: bool,
    name: str | None = None,
    replaces: bool = False,
) -> tuple[Copy, Stat]:
    """A whole copy, and its attributes. A small one is created with the mode that it is to have, and if it
    `replaces` a version with the name that an exchange needs: each saves a round trip. A large one is not, so
    that a crash while it is copied leaves nothing that only its own mount may sweep.
    """
    st = os.fstat(staged)
    small = st.st_size <= PIECE_BYTES
    mode = _stat.S_IMODE(st.st_mode) & 0o777 if small else 0o600
    if name is None and replaces and small:
        name = new_name(SWAP_PREFIX)
    copy = Copy(directory, parallel=parallel, mode=mode, name=name)
    try:
        copy.bring(staged, [Extent(0, st.st_size)], observe)
        return copy, copy.finish(staged)
    except BaseException:
        copy.close()
        with suppress(OSError):  # the first error says more
            copy.discard()
        raise


def copy_over(staged: int, target: int, observe: Observer | None) -> Stat:
    """Give the open file `target` the bytes and attributes of `staged`, in place and durable; closes it."""
    try:
        copy_bytes(staged, target, observe)
        os.ftruncate(target, os.fstat(staged).st_size)
        copy_attributes(staged, target)
        os.fsync(target)
        return to_stat(os.fstat(target))
    finally:
        os.close(target)
