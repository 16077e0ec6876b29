"""One file on its way: copied under a temporary name beside its target, verified, then renamed.

It knows neither threads nor trees; ranges of one file may be moved by several threads.

*Invariants:* the target is the old file or the whole new one. What is published has the size
that the source had, and the source had that size and time before and after it was read.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from volfs_client import temporary
from volfs_client.durable import sync_directory

__all__ = ["CHUNK_BYTES", "KEPT_MODE", "Changed", "Transfer", "copy_link", "is_same", "refusal"]

#: The largest request that the kernel makes of a FUSE file system.
CHUNK_BYTES: Final = 1 << 20

#: Granularities of the times of file systems, in ns: SMB and NTFS, most remote ones, old ones.
_GRAINS_NS: Final = (100, 1_000, 1_000_000, 1_000_000_000)

#: Set-id bits mean the owner, and the owner is not kept.
KEPT_MODE: Final = 0o1777

_KINDS: Final = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class Changed(Exception):
    """The source changed while it was read."""


class Transfer:
    """A regular file that is being copied. `publish` or `abandon` ends it.

    An OSError names the file that it is of. Opens the source and creates the
    temporary file; EOPNOTSUPP if the source is no regular file.
    """

    def __init__(self, source: str, target: str) -> None:
        self.source, self.target = source, target
        self.moved = 0  # bytes
        # A pipe that took the file's place must not keep us waiting.
        self._reading = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        self._writing = -1
        self._named = 0  # the inode, once it has the target's name and may still fail
        self._temporary = os.path.join(os.path.dirname(target), temporary.name())
        try:
            self._before = os.fstat(self._reading)
            if not stat.S_ISREG(self._before.st_mode):
                raise refusal(self._before, source)
            # Not with O_EXCL, for which a mount asks the store first: the name is taken by nobody.
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._writing = os.open(self._temporary, flags, 0o600)
        except BaseException:
            os.close(self._reading)
            temporary.done(os.path.basename(self._temporary))
            raise
        self.size = self._before.st_size
        self._sparse = self._before.st_blocks * 512 < self.size

    def move(self, begin: int, end: int, buffer: memoryview, moved: Callable[[int], None]) -> None:
        """Copy the range, and tell after each chunk how many bytes that was.

        What `moved` raises ends it. Raises Changed if the source ends too early.
        """
        with self._descriptors(begin, end) as (reading, writing):
            for first, last in self._extents(reading, begin, end):
                position = first
                while position < last:
                    count = self._read(reading, buffer[: last - position], position)
                    self._write(writing, buffer[:count], position)
                    position += count
                    moved(count)

    @contextmanager
    def _descriptors(self, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """What to read and write the range with.

        A part has a pair of its own: file systems over a network fetch ahead, and limit the rate, by the
        descriptor, and to them ranges in turns on one look like reads in no order.
        """
        if (begin, end) == (0, self.size):
            yield self._reading, self._writing
            return
        reading = os.open(self.source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if _identity(os.fstat(reading)) != _identity(self._before):
                raise Changed
            writing = os.open(self._temporary, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except BaseException:
            os.close(reading)
            raise
        try:
            yield reading, writing
        finally:
            os.close(reading)
            with _naming(self.target):
                os.close(writing)

    def publish(self, *, fsync: bool, early: bool) -> None:
        """Give the file its name, if the source is what it was; Changed if not. `abandon` after any error.

        `early`: before it is closed. For a mount where nothing is at the target: it commits a file whole, at
        its close, then once and not under two names, which over a network halves the time of a small file.
        """
        with _naming(self.source):
            after = os.fstat(self._reading)
        if _version(after) != _version(self._before):
            raise Changed
        with _naming(self.target):
            if self._sparse:
                os.ftruncate(self._writing, self.size)
            os.fchmod(self._writing, self._before.st_mode & KEPT_MODE)
            os.utime(self._writing, ns=(self._before.st_atime_ns, self._before.st_mtime_ns))
            if fsync:
                os.fsync(self._writing)
            elif early:
                self._named = os.fstat(self._writing).st_ino
                os.replace(self._temporary, self.target)
            # The store's errors come here.
            writing, self._writing = self._writing, -1
            os.close(writing)
            size = os.lstat(self.target if self._named else self._temporary).st_size
            if size != self.size:
                raise OSError(errno.EIO, f"the copy has {size} of {self.size} bytes", self.target)
            if not self._named:
                os.replace(self._temporary, self.target)
            if fsync:
                sync_directory(os.path.dirname(self.target) or ".")
        os.close(self._reading)
        temporary.done(os.path.basename(self._temporary))

    def abandon(self) -> None:
        """Leave nothing. Never fails."""
        for fd in (self._reading, self._writing):
            try:
                if fd >= 0:
                    os.close(fd)
            except OSError:
                pass  # it could not be written, which is known
        try:
            if not self._named:
                os.unlink(self._temporary)
            elif os.lstat(self.target).st_ino == self._named:
                os.unlink(self.target)
        except OSError:
            pass  # the next run does it
        temporary.done(os.path.basename(self._temporary))

    def _extents(self, reading: int, begin: int, end: int) -> Iterator[tuple[int, int]]:
        """Where the range has data: a hole stays one."""
        if not self._sparse:
            yield begin, end
            return
        position = begin
        while position < end:
            try:
                first = os.lseek(reading, position, os.SEEK_DATA)
                last = os.lseek(reading, first, os.SEEK_HOLE)
            except OSError as error:
                if error.errno == errno.ENXIO:
                    return  # nothing but a hole follows
                raise OSError(error.errno, error.strerror, self.source) from error
            if first >= end:
                return
            yield first, min(last, end)
            position = last

    def _read(self, reading: int, buffer: memoryview, position: int) -> int:
        try:
            count = os.preadv(reading, [buffer], position)
        except OSError as error:
            if error.errno == errno.ESTALE:  # replaced, and the old bytes are gone
                raise Changed from error
            raise OSError(error.errno, error.strerror, self.source) from error
        if not count:
            raise Changed
        return count

    def _write(self, writing: int, data: memoryview, position: int) -> None:
        with _naming(self.target):
            while data:
                count = os.pwrite(writing, data, position)
                position += count
                data = data[count:]


@contextmanager
def _naming(path: str) -> Iterator[None]:
    """An error of a descriptor, which has no name, says which file it is of."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def copy_link(source: str, target: str, st: os.stat_result) -> bool:
    """Copy a symlink as one; False if it is there already. OSError."""
    leads_to = os.readlink(source)
    try:
        if os.readlink(target) == leads_to:
            return False
    except OSError:
        pass  # there is none
    made = os.path.join(os.path.dirname(target), temporary.name())
    os.symlink(leads_to, made)
    try:
        try:
            os.utime(made, ns=(st.st_atime_ns, st.st_mtime_ns), follow_symlinks=False)
        except OSError:
            pass  # not every file system keeps times of links
        os.replace(made, target)
    except BaseException:
        os.unlink(made)
        raise
    finally:
        temporary.done(os.path.basename(made))
    return True


def is_same(source: os.stat_result, target: os.stat_result) -> bool:
    """Whether the target is a copy of the source: size and time, as exact as the target's times are."""
    if not stat.S_ISREG(target.st_mode) or source.st_size != target.st_size:
        return False
    wanted, has = source.st_mtime_ns, target.st_mtime_ns
    return wanted == has or any(wanted - wanted % grain == has for grain in _GRAINS_NS)


def refusal(st: os.stat_result, path: str) -> OSError:
    """The error of what is none of the things that are copied."""
    kind = _KINDS.get(stat.S_IFMT(st.st_mode), "of another kind")
    return OSError(errno.EOPNOTSUPP, f"it is {kind}; only files, directories and symlinks are copied", path)


def _identity(st: os.stat_result) -> tuple[int, ...]:
    return st.st_dev, st.st_ino, *_version(st)


def _version(st: os.stat_result) -> tuple[int, int]:
    return st.st_size, st.st_mtime_ns
