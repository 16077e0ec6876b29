"""Staged files: local copies that hold writes which are not committed yet.

It owns the staging directory's descriptor, the files in it, and the account of what
they take on the local disk. It does not know paths of the volume (the journal does),
nor when to commit (`core.schedule`), nor what to do when the disk is full (`room`).

*Concurrency:* a write of up to 64 KiB into the page cache costs less than the
switch to a thread and is made in the trio thread; everything larger goes to one.
The caller holds the file's lock over each call that changes it.

*Invariants:* a write that failed leaves the file as long as it was, so that the
application may try it again: FUSE can say an errno or a count, not both. `allocated`
is the sum over the files that have a name in a directory outside the store.
"""

from __future__ import annotations

import errno as _errno
import os
import stat as _stat
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final
from uuid import uuid4

import trio

from volfs import crash
from volfs.cache.fill import DISK_FULL
from volfs.commit.owed import Discardable
from volfs.core.spans import INODE_BYTES
from volfs.errors import StagedLost, StoreError, from_os_error
from volfs.store.attributes import apply_changes, to_stat
from volfs.store.base import Changes, Owner, Stat
from volfs.store.copying import write_all
from volfs.store.reserved import is_of_copies

__all__ = ["INLINE_BYTES", "DiskFull", "StagedFile", "Staging"]

#: Up to here a copy into the page cache (about 10 us) is cheaper than waking a thread (about 60 us).
INLINE_BYTES = 64 << 10

#: A block of `st_blocks`, whatever the file system's own are.
_SECTOR: Final = 512

#: Attempts that are remembered: the answer that was lost is one of the last.
_ATTEMPTS = 8


class DiskFull(StoreError):
    """The disk of the staged files has no space, or our quota on it: ENOSPC or EDQUOT.

    A type of its own, because the store's ENOSPC is nothing that anybody here can mend.
    """

    errno = _errno.ENOSPC


def _refusal(error: OSError) -> StoreError:
    if error.errno in DISK_FULL:
        return DiskFull(str(error), errno=error.errno)
    return from_os_error(error)


class StagedFile:
    """One open staged file. It is gone when it was published by rename or discarded."""

    __slots__ = ("_closing", "_staging", "_users", "attempts", "beside", "fd", "name", "unsettled")

    def __init__(self, staging: Staging, name: str, fd: int) -> None:
        self._staging = staging
        self.name = name
        self.fd = fd
        self._users = 0
        self._closing = False
        #: Commits that failed, or whose answer was lost: each knows what it may have put into the store.
        self.attempts: deque[Callable[[Stat], bool]] = deque(maxlen=_ATTEMPTS)
        #: Names of conflict copies that these may have made.
        self.beside: deque[bytes] = deque(maxlen=_ATTEMPTS)
        #: The copy of the last of these: another's version may be in its place until it is discarded.
        self.unsettled: Discardable | None = None

    def stat(self) -> Stat:
        """Attributes as the file will have them; link count 0 means that its only name is gone."""
        return to_stat(os.fstat(self.fd))

    @property
    def size(self) -> int:
        return os.fstat(self.fd).st_size

    async def read(self, offset: int, size: int) -> bytes:
        self._users += 1
        try:
            if size <= INLINE_BYTES:
                return os.pread(self.fd, size, offset)
            return await trio.to_thread.run_sync(os.pread, self.fd, size, offset)
        except OSError as error:
            raise StagedLost(f"staged file {self.name} cannot be read: {error}") from error
        finally:
            self._users -= 1
            if self._closing and not self._users:
                os.close(self.fd)

    async def write(self, offset: int, data: bytes | memoryview) -> None:
        """All of it, or the file keeps its size (what was overwritten up to the failure stays so)."""
        size = self.size
        try:
            if len(data) <= INLINE_BYTES:
                write_all(self.fd, memoryview(data), offset)
            else:
                await trio.to_thread.run_sync(write_all, self.fd, memoryview(data), offset)
        except OSError as error:
            with suppress(OSError):  # the first one says why
                if self.size > size:
                    os.ftruncate(self.fd, size)
            raise _refusal(error) from error
        finally:
            self._staging.measure(self)

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self.fd, size)
        except OSError as error:
            raise _refusal(error) from error
        finally:
            self._staging.measure(self)

    def change(self, changes: Changes) -> None:
        try:
            apply_changes(self.fd, changes)
        except OSError as error:
            raise _refusal(error) from error

    def own(self, mode: int, owner: Owner, parent: Stat) -> None:
        """Owner and mode of a file that is created: the caller's, the group from a set-gid directory."""
        gid = parent.gid if owner.gid is not None and parent.mode & _stat.S_ISGID else owner.gid
        self.change(Changes(mode=mode, uid=owner.uid, gid=gid))

    def getxattr(self, name: bytes) -> bytes:
        try:
            return os.getxattr(self.fd, name)
        except OSError as error:
            raise _refusal(error) from error

    def setxattr(self, name: bytes, value: bytes) -> None:
        try:
            os.setxattr(self.fd, name, value)
        except OSError as error:
            raise _refusal(error) from error

    def removexattr(self, name: bytes) -> None:
        try:
            os.removexattr(self.fd, name)
        except OSError as error:
            raise _refusal(error) from error

    def listxattr(self) -> list[bytes]:
        try:
            return [os.fsencode(name) for name in os.listxattr(self.fd)]
        except OSError as error:
            raise _refusal(error) from error

    def discard(self) -> None:
        """Delete it: its bytes are committed elsewhere or belong to no name."""
        self._staging.remove(self.name)
        self.close()

    def published(self) -> int:
        """It was renamed into the store: its descriptor, which the caller owns from here on."""
        if not self._users:
            return self.fd
        fd = os.dup(self.fd)
        self.close()
        return fd

    def close(self) -> None:
        """Let go of the descriptor; a read that is under way ends well."""
        self._closing = True
        if not self._users:
            os.close(self.fd)


class Staging:
    """A directory of staged files. `in_store`: it lies in the store, so that a commit is a rename.

    `allocated`: what the files take on the local disk, those of earlier daemons
    included; 0 where they lie in the store.
    """

    def __init__(self, directory: int, *, in_store: bool) -> None:
        self.directory = directory
        self.in_store = in_store
        self.allocated = 0
        self.owed: deque[Discardable] = deque()  # copies in the store that could not be taken away
        self._sizes: dict[str, int] = {}  # of `allocated`, by name
        if not in_store:
            for name in self.names():
                st = os.stat(name, dir_fd=directory, follow_symlinks=False)
                self._account(name, st.st_blocks * _SECTOR)

    def measure(self, staged: StagedFile) -> None:
        """The file has grown or shrunk. One fstat, which counts what delayed allocation promised, too."""
        if staged.name in self._sizes:
            self._account(staged.name, os.fstat(staged.fd).st_blocks * _SECTOR)

    def allocated_of(self, staged: StagedFile) -> int:
        """The part of `allocated` that is this file's."""
        return self._sizes.get(staged.name, 0)

    def _account(self, name: str, size: int) -> None:
        size += INODE_BYTES
        self.allocated += size - self._sizes.get(name, 0)
        self._sizes[name] = size

    def _forget(self, name: str) -> None:
        self.allocated -= self._sizes.pop(name, 0)

    def create(self) -> StagedFile:
        """A new empty staged file, readable by the daemon only until it is given its owner and mode."""
        name = uuid4().hex
        try:
            fd = os.open(
                name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self.directory
            )
        except OSError as error:
            raise _refusal(error) from error
        crash.point("staging.created")
        if not self.in_store:
            self._account(name, 0)
        return StagedFile(self, name, fd)

    def open(self, name: str) -> StagedFile:
        """One that an earlier daemon left; StagedLost if it is not there."""
        try:
            fd = os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self.directory)
        except FileNotFoundError as error:
            raise StagedLost(f"staged file {name} is gone: {error}") from error
        except OSError as error:
            raise from_os_error(error) from error
        return StagedFile(self, name, fd)

    def remove(self, name: str) -> None:
        """Delete the file; one that has become a cache file is not here any more, and not counted."""
        try:
            os.unlink(name, dir_fd=self.directory)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _refusal(error) from error
        crash.point("staging.removed")
        self._forget(name)

    def has(self, name: str) -> bool:
        """Whether the file is still here."""
        try:
            os.stat(name, dir_fd=self.directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def names(self) -> list[str]:
        """Of the staged files. Where they lie in the store there may be copies, too, of an earlier mount that
        staged elsewhere.
        """
        return sorted(name for name in os.listdir(self.directory) if not is_of_copies(name))
