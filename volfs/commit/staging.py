"""Staged files: local copies that hold writes which are not committed yet.

It owns the staging directory's descriptor and the files in it. It does not know
paths of the volume (the journal does) nor when to commit (`core.schedule`).

*Concurrency:* a write of up to 64 KiB into the page cache costs less than the
switch to a thread and is made in the trio thread; everything larger goes to one.
The caller holds the file's lock over each call that changes it.
"""

from __future__ import annotations

import os
import stat as _stat
from uuid import uuid4

import trio

from volfs.errors import StagedLost, from_os_error
from volfs.store.attributes import apply_changes, to_stat
from volfs.store.base import Changes, Owner, Stat
from volfs.store.copying import write_all

__all__ = ["INLINE_BYTES", "StagedFile", "Staging"]

#: Up to here a copy into the page cache (about 10 us) is cheaper than waking a thread (about 60 us).
INLINE_BYTES = 64 << 10


class StagedFile:
    """One open staged file. It is gone when it was published by rename or discarded."""

    __slots__ = ("_closing", "_staging", "_users", "fd", "name")

    def __init__(self, staging: Staging, name: str, fd: int) -> None:
        self._staging = staging
        self.name = name
        self.fd = fd
        self._users = 0
        self._closing = False

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

    async def write(self, offset: int, data: bytes) -> None:
        try:
            if len(data) <= INLINE_BYTES:
                write_all(self.fd, memoryview(data), offset)
            else:
                await trio.to_thread.run_sync(write_all, self.fd, memoryview(data), offset)
        except OSError as error:
            raise from_os_error(error) from error

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self.fd, size)
        except OSError as error:
            raise from_os_error(error) from error

    def change(self, changes: Changes) -> None:
        try:
            apply_changes(self.fd, changes)
        except OSError as error:
            raise from_os_error(error) from error

    def own(self, mode: int, owner: Owner, parent: Stat) -> None:
        """Owner and mode of a file that is created: the caller's, the group from a set-gid directory."""
        gid = parent.gid if owner.gid is not None and parent.mode & _stat.S_ISGID else owner.gid
        self.change(Changes(mode=mode, uid=owner.uid, gid=gid))

    def getxattr(self, name: bytes) -> bytes:
        try:
            return os.getxattr(self.fd, name)
        except OSError as error:
            raise from_os_error(error) from error

    def setxattr(self, name: bytes, value: bytes) -> None:
        try:
            os.setxattr(self.fd, name, value)
        except OSError as error:
            raise from_os_error(error) from error

    def removexattr(self, name: bytes) -> None:
        try:
            os.removexattr(self.fd, name)
        except OSError as error:
            raise from_os_error(error) from error

    def listxattr(self) -> list[bytes]:
        try:
            return [os.fsencode(name) for name in os.listxattr(self.fd)]
        except OSError as error:
            raise from_os_error(error) from error

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
    """A directory of staged files. `in_store`: it lies in the store, so that a commit is a rename."""

    def __init__(self, directory: int, *, in_store: bool) -> None:
        self.directory = directory
        self.in_store = in_store

    def create(self) -> StagedFile:
        """A new empty staged file, readable by the daemon only until it is given its owner and mode."""
        name = uuid4().hex
        try:
            fd = os.open(
                name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=self.directory
            )
        except OSError as error:
            raise from_os_error(error) from error
        return StagedFile(self, name, fd)

    def open(self, name: str) -> StagedFile:
        """One that an earlier daemon left; StagedLost if it is not there."""
        try:
            fd = os.open(name, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=self.directory)
        except OSError as error:
            raise StagedLost(f"staged file {name} is gone: {error}") from error
        return StagedFile(self, name, fd)

    def remove(self, name: str) -> None:
        try:
            os.unlink(name, dir_fd=self.directory)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise from_os_error(error) from error

    def names(self) -> list[str]:
        return sorted(os.listdir(self.directory))
