"""The reserved directory `.volfs` of a directory store: this mount's staging directory, and what others left.

    .volfs/<mount id>/      staged files (cache off) and copies on their way to a name
    .volfs/<mount id>/lane-N/   further such copies, see `store.directory`
    .volfs/owners/<id>      locked and touched by the daemon that has the directory
    .volfs/locks/           see `store.uploading`

A mount that is gone may have left copies, whose bytes are staged elsewhere: they
are swept. It may also have left staged files, which somebody was promised, and what
was in the middle of an exchange (SWAP_PREFIX), which may be another's version: only
the mount with the same cache directory knows what to do with those.

Blocking; called before the mount serves, and from worker threads.

*Invariants:* nothing of a live mount is touched. It is live while its lock is
held, and where locks do not reach across hosts, while its file is touched.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from typing import Final

import structlog

from volfs.errors import SetupError
from volfs.store import beneath
from volfs.store.base import RESERVED
from volfs.store.copies import COPY_PREFIX, SWAP_PREFIX

__all__ = ["HEARTBEAT_S", "LANES", "Reserved", "is_of_copies"]

log = structlog.get_logger(__name__)

#: How often a daemon shows that it lives.
HEARTBEAT_S: Final = 60.0

#: A daemon that showed no life for so long is gone, or so stuck that it copies again when it wakes up.
_GONE_S: Final = 3600.0

#: Directories for copies. Four round trips each for the copies of a commit and its rename, of which one is in
#: a lane at a time: as many as there are commits at once, so that they seldom meet.
LANES: Final = 16
_LANE_PREFIX: Final = "lane-"

_OWNERS: Final = b"owners"
_LOCKS: Final = b"locks"


def is_of_copies(name: str) -> bool:
    """Whether a name in a staging directory is that of a copy, or of a directory of copies."""
    return name.startswith((COPY_PREFIX, SWAP_PREFIX, _LANE_PREFIX))


class Reserved:
    """See the module. `staging` is the descriptor of this mount's directory."""

    def __init__(self, root: int, mount_id: str) -> None:
        self._root = root
        self._id = mount_id.encode()
        self._lanes: dict[int, int] = {}
        try:
            for path in (RESERVED, self._path(_OWNERS), self._path(self._id)):
                with suppress(FileExistsError):
                    os.mkdir(path, 0o700, dir_fd=root)
            self.staging = beneath.open_beneath(root, self._path(self._id), os.O_RDONLY | os.O_DIRECTORY)
            self._owner = os.open(
                self._path(_OWNERS, self._id), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=root
            )
            _try_lock(self._owner)
            self._left = self._copies()  # of a daemon that was killed: ours has made none yet
        except OSError as error:
            raise SetupError(
                f"cannot write to the backing directory ({error.strerror}); "
                "mount with --read-only or make it writable"
            ) from error

    def _path(self, *names: bytes) -> bytes:
        return b"/".join((RESERVED, *names))

    def touch(self) -> None:
        """Show that this mount lives."""
        os.utime(self._owner)

    def lane(self, number: int) -> int:
        """The descriptor of one of LANES directories, made when it is first asked for. From any thread."""
        known = self._lanes.get(number)
        if known is not None:
            return known
        name = f"{_LANE_PREFIX}{number:x}"
        with suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self.staging)
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=self.staging)
        kept = self._lanes.setdefault(number, fd)
        if kept != fd:  # another thread was faster
            os.close(fd)
        return kept

    def places(self) -> list[str]:
        """Where copies may be: what stands before their names, beneath `staging`."""
        return ["", *(f"{_LANE_PREFIX}{number:x}/" for number in range(LANES))]

    def _copies(self) -> list[str]:
        """Of all copies that there are, the paths beneath `staging`."""
        found = []
        for name in os.listdir(self.staging):
            if name.startswith(_LANE_PREFIX):
                lane = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=self.staging)
                try:
                    found += [f"{name}/{copy}" for copy in os.listdir(lane)]
                finally:
                    os.close(lane)
            elif name.startswith((COPY_PREFIX, SWAP_PREFIX)):
                found.append(name)
        return found

    def clear_left(self) -> None:
        """Remove the copies that were there when this mount began. From any thread."""
        for path in self._left:
            with suppress(FileNotFoundError, IsADirectoryError):  # no copy is a directory
                os.unlink(path, dir_fd=self.staging)
        self._left = []

    def close(self) -> None:
        for fd in self._lanes.values():
            os.close(fd)
        self._lanes.clear()
        os.close(self.staging)
        os.close(self._owner)

    def remove(self) -> None:
        """Take what is ours away if no staged file is left, and all of it if we were the last.

        Nothing is being copied any more, and nothing owed: a copy that is there could not be discarded.
        """
        try:
            self._remove_copies(self.staging, COPY_PREFIX, SWAP_PREFIX)
            os.rmdir(self._path(self._id), dir_fd=self._root)
        except OSError:  # files that are kept
            return
        for remove, path in (
            (os.unlink, self._path(_OWNERS, self._id)),
            (os.rmdir, self._path(_OWNERS)),
            (os.rmdir, RESERVED),
        ):
            try:
                remove(path, dir_fd=self._root)
            except OSError:  # other mounts are there, or lock files
                return

    # -- what others left --------------------------------------------------------

    def sweep(self) -> None:
        """Remove the copies and empty directories of mounts that are gone."""
        reserved = beneath.open_beneath(self._root, RESERVED, os.O_RDONLY | os.O_DIRECTORY)
        try:
            ids = [os.fsencode(name) for name in os.listdir(reserved)]
        finally:
            os.close(reserved)
        for id_ in ids:
            if id_ not in (self._id, _OWNERS, _LOCKS):
                try:
                    self._sweep_one(id_)
                except OSError as error:  # somebody else sweeps, or the owner came back
                    log.debug("cannot sweep what a mount left", mount=id_, error=str(error))

    def _sweep_one(self, id_: bytes) -> None:
        if not self._is_gone(id_):
            return
        directory = beneath.open_beneath(self._root, self._path(id_), os.O_RDONLY | os.O_DIRECTORY)
        try:
            removed = self._remove_copies(directory, COPY_PREFIX)
            left = len(os.listdir(directory))
        finally:
            os.close(directory)
        if removed:
            log.info("removed what a mount that is gone left in the store", mount=id_, copies=removed)
        if left:
            log.warning(
                "a mount that is gone left files; mount with its cache directory to commit what is staged",
                mount=id_,
                files=left,
            )
            return
        os.rmdir(self._path(id_), dir_fd=self._root)
        with suppress(FileNotFoundError):
            os.unlink(self._path(_OWNERS, id_), dir_fd=self._root)

    def _is_gone(self, id_: bytes) -> bool:
        try:
            fd = os.open(self._path(_OWNERS, id_), os.O_RDWR | os.O_CLOEXEC, dir_fd=self._root)
        except FileNotFoundError:
            st = os.stat(self._path(id_), dir_fd=self._root, follow_symlinks=False)
            return self._age_s(st) > _GONE_S
        try:
            return _try_lock(fd) and self._age_s(os.fstat(fd)) > _GONE_S
        finally:
            os.close(fd)

    def _age_s(self, st: os.stat_result) -> float:
        """By the store's clock, which our own heartbeat shows; the hosts' may differ by hours."""
        self.touch()
        return os.fstat(self._owner).st_mtime - st.st_mtime

    @staticmethod
    def _remove_copies(directory: int, *prefixes: str) -> int:
        removed = 0
        for name in os.listdir(directory):
            if name.startswith(prefixes):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=directory)
                    removed += 1
            elif name.startswith(_LANE_PREFIX):
                lane = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
                try:
                    removed += Reserved._remove_copies(lane, *prefixes)
                finally:
                    os.close(lane)
                with suppress(OSError):  # something else is in it
                    os.rmdir(name, dir_fd=directory)
        return removed


def _try_lock(fd: int) -> bool:
    """Whether we hold the lock now; where there are no locks, the heartbeat alone decides."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
