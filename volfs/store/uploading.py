"""New versions on their way into a directory store: a copy, then the step that gives it a name.

The step must not overwrite what somebody else put there since it was looked at
(W7). `renameat2` has no compare-and-swap, but RENAME_EXCHANGE is half of one: what
came out is looked at, and if it is not what was expected it goes back. Where a
file system has no exchange (NFS), look and rename are done under a lock file in
`.volfs/locks`, which all volfs mounts of the volume take; an edit by others
between the two, a matter of one round trip, goes unseen there.

Blocking; called from worker threads or, on local file systems, from the trio thread.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Protocol, TypeVar

import xxhash

from volfs import crash
from volfs.core.versions import Version
from volfs.errors import StoreTimeout, VersionChanged
from volfs.store import beneath
from volfs.store.attributes import same_but_for_ctime, to_stat
from volfs.store.base import RESERVED, Expected, Stat
from volfs.store.beneath import renameat2
from volfs.store.copies import COPY_PREFIX, SWAP_PREFIX, Copy, copy_staged, discard, new_name
from volfs.store.exchanges import Trace, keep_beside, keep_stranger

__all__ = ["CopiedUpload", "StagedUpload"]

T = TypeVar("T")

_NOREPLACE: Final = 1
_EXCHANGE: Final = 2

#: What a file system that knows no rename flags answers.
_NO_FLAGS: Final = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}

#: Lock files, so that commits of different files seldom wait for each other.
_LOCKS: Final = 64


class _MadeAgain(VersionChanged):
    """The copy that is there now, under this name, is not the one that was made first."""

    def __init__(self, message: str, name: str, st: Stat) -> None:
        super().__init__(message)
        self.name = name
        self.stat = st


class Place(Protocol):
    """What an upload needs of its store."""

    @property
    def root(self) -> int: ...

    @property
    def staging(self) -> int: ...

    async def call(self, function: Callable[..., T], *args: object, ended: Callable[[], None] = ...) -> T: ...

    def let_go(self, fd: int) -> None: ...


class StagedUpload:
    """`store.base.Upload` of a staged file in the store's own staging directory: it is renamed."""

    def __init__(self, place: Place, name: str, staged: int, version: Version) -> None:
        self._place = place
        self._name = name
        self._staged = staged  # the bytes; the descriptor is the caller's, and open as long as we are used
        self._version = version

    async def show(self, path: bytes, expected: Version | Expected) -> Stat:
        place = self._place
        return await place.call(_show, place.root, place.staging, self._name, self._staged, path, expected)

    def is_shown(self, st: Stat) -> bool:
        return same_but_for_ctime(st, self._version)

    def trace(self, expected: Version | Expected) -> str:
        return ""

    def descriptor(self) -> int | None:
        return None

    async def discard(self) -> None:
        pass


class CopiedUpload(StagedUpload):
    """As StagedUpload, of a copy that is ours alone, and stays open until it is taken or discarded."""

    def __init__(self, place: Place, copy: Copy, staged: int, version: Version) -> None:
        super().__init__(place, copy.name, staged, version)
        self._directory = copy.directory
        self._fd: int | None = copy.fd
        self._number = copy.number
        self._showing = 0  # calls that have not returned, those included that were left behind
        self._unsure: tuple[Trace, bytes] | None = None  # an exchange of which nobody knows what became

    def trace(self, expected: Version | Expected) -> str:
        trace = self._trace(expected)
        return "" if trace is None else trace.text()

    def _trace(self, expected: Version | Expected) -> Trace | None:
        """Nothing comes out of a rename that expects nothing, or does not look."""
        if isinstance(expected, Expected):
            return None
        return Trace(_swapped(self._name), self._number, expected)

    async def show(self, path: bytes, expected: Version | Expected) -> Stat:
        place, trace = self._place, self._trace(expected)
        if trace is not None and trace.name != self._name:
            await place.call(_swap_name, self._directory, self._name, trace.name)
            self._name = trace.name
        self._unsure = None if trace is None else (trace, path)
        self._showing += 1
        try:
            st = await place.call(
                _show,
                place.root,
                self._directory,
                self._name,
                self._staged,
                path,
                expected,
                ended=self._ended,
            )
        except _MadeAgain as error:
            self._let_go()  # what is open is the first copy
            self._name, self._number, self._version = error.name, error.stat.number, error.stat.version
            self._unsure = None
            raise
        except VersionChanged:
            self._unsure = None
            raise
        self._unsure = None
        return st

    def _ended(self) -> None:
        self._showing -= 1

    def descriptor(self) -> int | None:
        fd, self._fd = self._fd, None
        return fd

    async def discard(self) -> None:
        """StoreTimeout if what is there now may be another's in the next moment: then the trace stays."""
        self._let_go()
        if self._showing:
            raise StoreTimeout("a copy is still being given its name")
        if self._unsure is not None:
            trace, path = self._unsure
            await self._place.call(keep_stranger, self._place.root, self._directory, trace, path)
            self._unsure = None
        await self._place.call(discard, self._directory, self._name)

    def _let_go(self) -> None:
        fd = self.descriptor()
        if fd is not None:
            self._place.let_go(fd)


def _swapped(name: str) -> str:
    """The name of a copy that may be exchanged."""
    return SWAP_PREFIX + name.removeprefix(COPY_PREFIX) if name.startswith(COPY_PREFIX) else name


def _swap_name(directory: int, old: str, new: str) -> None:
    os.rename(old, new, src_dir_fd=directory, dst_dir_fd=directory)


def _show(root: int, staging: int, name: str, staged: int, path: bytes, expected: Version | Expected) -> Stat:
    parent_path, target = beneath.split(path)
    parent = beneath.open_directory(root, parent_path) if parent_path else root
    try:
        ours = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=staging)
        try:
            crash.point("show.before")
            if expected is Expected.ANYTHING:
                os.rename(name, target, src_dir_fd=staging, dst_dir_fd=parent)
            elif expected is Expected.NOTHING:
                _show_new(staging, name, parent, target)
            else:
                try:
                    _show_instead(staging, name, staged, parent, target, expected)
                except OSError as error:
                    if error.errno not in _NO_FLAGS:
                        raise
                    with _Lock(root, path):
                        _check(parent, target, expected)
                        os.rename(name, target, src_dir_fd=staging, dst_dir_fd=parent)
            crash.point("show.after")
            return to_stat(_stat_of_ours(ours, parent, target))
        finally:
            os.close(ours)
    finally:
        if parent != root:
            os.close(parent)


def _stat_of_ours(ours: int, parent: int, target: bytes) -> os.stat_result:
    """What was shown. The name may be another's by now: to believe that to be ours would cost its bytes."""
    now = os.fstat(ours)
    with suppress(FileNotFoundError):
        found = os.stat(
            target, dir_fd=parent, follow_symlinks=False
        )  # as whoever looks it up next will see it
        if (found.st_dev, found.st_ino) == (now.st_dev, now.st_ino):
            return found
    return now


def _show_new(staging: int, name: str, parent: int, target: bytes) -> None:
    """Give the file a name that nobody has."""
    try:
        try:
            renameat2(staging, os.fsencode(name), parent, target, _NOREPLACE)
        except OSError as error:
            if error.errno not in _NO_FLAGS:
                raise
            os.link(name, target, src_dir_fd=staging, dst_dir_fd=parent)
            os.unlink(name, dir_fd=staging)
    except FileExistsError as error:
        raise VersionChanged("somebody else made a file of this name meanwhile") from error


def _show_instead(
    staging: int, name: str, staged: int, parent: int, target: bytes, expected: Version
) -> None:
    """Take the place of one certain version, or change nothing."""
    source = os.fsencode(name)
    ours = os.stat(name, dir_fd=staging, follow_symlinks=False).st_ino
    try:
        renameat2(staging, source, parent, target, _EXCHANGE)
    except FileNotFoundError as error:
        raise VersionChanged("somebody else removed the file meanwhile") from error
    crash.point("show.exchanged")
    if same_but_for_ctime(to_stat(os.stat(name, dir_fd=staging, follow_symlinks=False)), expected):
        os.unlink(name, dir_fd=staging)
        return
    renameat2(staging, source, parent, target, _EXCHANGE)  # not what we may replace: it goes back
    if os.stat(name, dir_fd=staging, follow_symlinks=False).st_ino != ours:
        # Ours was replaced in the moment that it was there. What came out is newer than what went back:
        # it belongs there. What went back was replaced by nobody who saw it: it is kept. Ours is made again
        # from the bytes that we still have.
        renameat2(staging, source, parent, target, _EXCHANGE)
        keep_beside(staging, source, parent, target)
        # Under another name: of this one the trace says that whatever has it came out of an exchange.
        again = new_name(SWAP_PREFIX) if name.startswith(SWAP_PREFIX) else name
        copy, st = copy_staged(staged, staging, None, parallel=False, name=again)
        copy.close()
        raise _MadeAgain("somebody else changed the file meanwhile", again, st)
    raise VersionChanged("somebody else changed the file meanwhile")


def _check(parent: int, target: bytes, expected: Version) -> None:
    try:
        st = to_stat(os.stat(target, dir_fd=parent, follow_symlinks=False))
    except FileNotFoundError as error:
        raise VersionChanged("somebody else removed the file meanwhile") from error
    if st.version != expected:
        raise VersionChanged("somebody else changed the file meanwhile")


class _Lock:
    """One of the volume's lock files, held in a `with`, if its file system has locks at all."""

    def __init__(self, root: int, path: bytes) -> None:
        with suppress(FileExistsError):
            os.mkdir(RESERVED + b"/locks", 0o700, dir_fd=root)
        name = b"%s/locks/%02x" % (RESERVED, xxhash.xxh3_64_intdigest(path) % _LOCKS)
        self._fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=root)

    def __enter__(self) -> None:
        with suppress(OSError):  # ENOLCK, EOPNOTSUPP: as good as the file system allows
            fcntl.flock(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *exc: object) -> None:
        os.close(self._fd)
