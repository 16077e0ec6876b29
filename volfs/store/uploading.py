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
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from typing import Final, Protocol, TypeVar
from uuid import uuid4

import structlog
import xxhash

from volfs import crash
from volfs.core.conflicts import conflict_name
from volfs.core.versions import Version
from volfs.errors import VersionChanged
from volfs.store import beneath
from volfs.store.attributes import copy_attributes, same_but_for_ctime, to_stat
from volfs.store.base import RESERVED, Expected, Observer, Stat
from volfs.store.beneath import renameat2
from volfs.store.copying import copy_bytes

__all__ = ["COPY_PREFIX", "CopiedUpload", "StagedUpload", "copy_over", "copy_staged"]

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: Names of copies that were not shown yet. Their bytes are staged elsewhere: they may always be deleted.
COPY_PREFIX: Final = "copy-"

_NOREPLACE: Final = 1
_EXCHANGE: Final = 2

#: What a file system that knows no rename flags answers.
_NO_FLAGS: Final = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}

#: Lock files, so that commits of different files seldom wait for each other.
_LOCKS: Final = 64


class Place(Protocol):
    """What an upload needs of its store."""

    @property
    def root(self) -> int: ...

    @property
    def staging(self) -> int: ...

    async def call(self, function: Callable[..., T], *args: object, thread: bool = False) -> T: ...


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

    async def discard(self) -> None:
        pass


class CopiedUpload(StagedUpload):
    """As StagedUpload, of a copy that is ours alone."""

    async def discard(self) -> None:
        await self._place.call(_discard, self._place.staging, self._name)


def copy_staged(staged: int, directory: int, observe: Observer | None) -> tuple[str, Stat]:
    """Copy bytes and attributes into a new durable file of the staging directory; its name and attributes."""
    name = f"{COPY_PREFIX}{uuid4().hex}"
    return name, _copy(staged, directory, name, observe)


def _copy(staged: int, directory: int, name: str, observe: Observer | None) -> Stat:
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        crash.point("upload.created")
        copy_bytes(staged, fd, observe)
        crash.point("upload.copied")
        copy_attributes(staged, fd)
        os.fsync(fd)
        st = to_stat(os.fstat(fd))
    except BaseException:
        with suppress(OSError):  # the first error says more
            os.unlink(name, dir_fd=directory)
        raise
    finally:
        os.close(fd)
    crash.point("upload.synced")
    return st


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


def _discard(directory: int, name: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)


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
        _keep_beside(staging, source, parent, target)
        _copy(staged, staging, name, None)
    raise VersionChanged("somebody else changed the file meanwhile")


def _keep_beside(staging: int, name: bytes, parent: int, target: bytes) -> None:
    """Give another's version, which is in our hands, a name beside its own."""
    now = time.time()
    for attempt in count():
        beside = conflict_name(target, socket.gethostname(), now, attempt)
        with suppress(FileExistsError):
            renameat2(staging, name, parent, beside, _NOREPLACE)
            log.warning("conflict: a version was replaced while it was compared", kept_as=beside)
            return


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
