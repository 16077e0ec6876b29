"""The reserved directory `.volfs` of a directory store: this mount's staging directory, and what others left.

    .volfs/<mount id>/      staged files (cache off) and copies on their way to a name
    .volfs/owners/<id>      locked and touched by the daemon that has the directory
    .volfs/locks/           see `store.uploading`

A mount that is gone may have left copies, whose bytes are staged elsewhere: they
are swept. It may also have left staged files, which somebody was promised: only
the mount with the same cache directory may touch those.

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
from volfs.store.uploading import COPY_PREFIX

__all__ = ["HEARTBEAT_S", "Reserved"]

log = structlog.get_logger(__name__)

#: How often a daemon shows that it lives.
HEARTBEAT_S: Final = 60.0

#: A daemon that showed no life for so long is gone, or so stuck that it copies again when it wakes up.
_GONE_S: Final = 3600.0

_OWNERS: Final = b"owners"
_LOCKS: Final = b"locks"


class Reserved:
    """See the module. `staging` is the descriptor of this mount's directory."""

    def __init__(self, root: int, mount_id: str) -> None:
        self._root = root
        self._id = mount_id.encode()
        try:
            for path in (RESERVED, self._path(_OWNERS), self._path(self._id)):
                with suppress(FileExistsError):
                    os.mkdir(path, 0o700, dir_fd=root)
            self.staging = beneath.open_beneath(root, self._path(self._id), os.O_RDONLY | os.O_DIRECTORY)
            self._owner = os.open(
                self._path(_OWNERS, self._id), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600, dir_fd=root
            )
            _try_lock(self._owner)
            self._remove_copies(self.staging)  # of a daemon that was killed: ours has made none yet
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

    def close(self) -> None:
        os.close(self.staging)
        os.close(self._owner)

    def remove(self) -> None:
        """Take what is ours away if no staged file is left, and all of it if we were the last.

        Nothing is being copied any more: a copy that is there could not be discarded.
        """
        try:
            self._remove_copies(self.staging)
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
            removed = self._remove_copies(directory)
            left = len(os.listdir(directory))
        finally:
            os.close(directory)
        if removed:
            log.info("removed what a mount that is gone left in the store", mount=id_, copies=removed)
        if left:
            log.warning(
                "a mount that is gone left staged files; mount with its cache directory to commit them",
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
    def _remove_copies(directory: int) -> int:
        removed = 0
        for name in os.listdir(directory):
            if name.startswith(COPY_PREFIX):
                with suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=directory)
                    removed += 1
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
