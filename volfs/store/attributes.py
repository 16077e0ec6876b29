"""Attributes of files: reading them into a `Stat`, setting them, carrying them from file to file.

Blocking system calls on descriptors; `/proc/self/fd/N` names the object behind
an O_PATH descriptor for the calls that take no such descriptor themselves.
"""

from __future__ import annotations

import errno
import os
import stat as _stat
from typing import Protocol

from volfs.core.versions import Version
from volfs.store.base import Changes, Owner, Stat

__all__ = [
    "apply_changes",
    "copy_attributes",
    "dress",
    "new_owner",
    "same_but_for_ctime",
    "to_stat",
    "version_of",
]


class Stamped(Protocol):
    """What tells one content of an object from another."""

    @property
    def st_ino(self) -> int: ...
    @property
    def st_size(self) -> int: ...
    @property
    def st_mtime_ns(self) -> int: ...
    @property
    def st_ctime_ns(self) -> int: ...


def to_stat(st: os.stat_result) -> Stat:
    """What stat(2) said, with the two tokens that volfs compares."""
    ino = st.st_ino
    return Stat(
        mode=st.st_mode,
        nlink=st.st_nlink,
        uid=st.st_uid,
        gid=st.st_gid,
        size=st.st_size,
        blocks=st.st_blocks,
        atime_ns=st.st_atime_ns,
        mtime_ns=st.st_mtime_ns,
        ctime_ns=st.st_ctime_ns,
        rdev=st.st_rdev,
        number=ino,
        identity=b"%x.%x" % (st.st_dev, ino),
        version=version_of(st),
    )


def version_of(st: Stamped) -> Version:
    """The token of the content alone."""
    return Version(b"%x.%x.%x.%x" % (st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns))


def same_but_for_ctime(st: Stat, version: Version) -> bool:
    """Whether the object has this version, for all that a rename leaves as it was."""
    return st.version.rpartition(b".")[0] == version.rpartition(b".")[0]


def new_owner(parent: os.stat_result, owner: Owner) -> tuple[int, int]:
    """Owner of a new file: the caller, but the directory's group where that is set-gid. -1: as it is."""
    uid = -1 if owner.uid is None else owner.uid
    if owner.gid is None:
        return uid, -1
    return uid, parent.st_gid if parent.st_mode & _stat.S_ISGID else owner.gid


def apply_changes(fd: int, changes: Changes) -> None:
    """Set what is not None on the object behind `fd`, which may be an O_PATH descriptor."""
    path = f"/proc/self/fd/{fd}"
    # chown first: the kernel clears set-uid bits with it, and a mode given in the same call is meant to stay.
    if changes.uid is not None or changes.gid is not None:
        os.chown(
            path,
            -1 if changes.uid is None else changes.uid,
            -1 if changes.gid is None else changes.gid,
        )
    if changes.mode is not None:
        os.chmod(path, changes.mode & 0o7777)
    if changes.atime_ns is not None or changes.mtime_ns is not None:
        st = os.fstat(fd)
        os.utime(
            path,
            ns=(
                st.st_atime_ns if changes.atime_ns is None else changes.atime_ns,
                st.st_mtime_ns if changes.mtime_ns is None else changes.mtime_ns,
            ),
        )


def copy_attributes(source: int, target: int) -> None:
    """Give the open file `target` the owner, mode, user xattrs and times of `source`.

    An owner that may not be given away stays ours: the daemon then runs as a
    user, and so did the file's writer.
    """
    st = os.fstat(source)
    now = os.fstat(target)
    if (st.st_uid, st.st_gid) != (now.st_uid, now.st_gid):
        _give_away(target, st)
    os.fchmod(target, _stat.S_IMODE(st.st_mode))
    _copy_xattrs(source, target)
    os.utime(target, ns=(st.st_atime_ns, st.st_mtime_ns))


def dress(source: int, target: int, made: os.stat_result) -> None:
    """As copy_attributes, for a file that we made and nobody else knows, when it was `made`.

    Only what differs is a call: over a network each is a round trip.
    """
    st = os.fstat(source)
    changed = (st.st_uid, st.st_gid) != (made.st_uid, made.st_gid)
    if changed:
        _give_away(target, st)
    # A change of owner and a write clear set-uid bits; a file is made without them.
    if changed or _stat.S_IMODE(st.st_mode) != _stat.S_IMODE(made.st_mode):
        os.fchmod(target, _stat.S_IMODE(st.st_mode))
    if _user_xattrs(source):
        _copy_xattrs(source, target)
    os.utime(target, ns=(st.st_atime_ns, st.st_mtime_ns))


def _give_away(target: int, st: os.stat_result) -> None:
    try:
        os.fchown(target, st.st_uid, st.st_gid)
    except PermissionError:
        if os.geteuid() == 0:
            raise


def _user_xattrs(fd: int) -> list[str]:
    try:
        return [name for name in os.listxattr(fd) if name.startswith("user.")]
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise
        return []


def _copy_xattrs(source: int, target: int) -> None:
    try:
        wanted = {
            name: os.getxattr(source, name) for name in os.listxattr(source) if name.startswith("user.")
        }
        if not wanted and not os.listxattr(target):
            return
        for name in os.listxattr(target):
            if name.startswith("user.") and name not in wanted:
                os.removexattr(target, name)
        for name, value in wanted.items():
            os.setxattr(target, name, value)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS):
            raise
