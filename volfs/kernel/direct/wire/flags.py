"""The bits in the fields of requests and replies, and the limits of the protocol.

One class for each field that has bits; names are the header's without their
prefix. The classes hold plain integers, because an operation on a member of
`IntFlag` costs a microsecond; INIT's flags are one, for their names in messages.
"""

from __future__ import annotations

from enum import IntFlag
from typing import Final

__all__ = [
    "INVALID_ID",
    "MAJOR",
    "MINOR",
    "MIN_READ_BUFFER",
    "OLDEST_MINOR",
    "ROOT_ID",
    "UNIQUE_RESEND",
    "Attribute",
    "Fattr",
    "Fopen",
    "Fsync",
    "Getattr",
    "InitFlag",
    "InvalEntry",
    "Lock",
    "Open",
    "Read",
    "Release",
    "Setxattr",
    "Write",
]

#: The protocol that is spoken: 7.31 (Linux 5.4) to 7.45 (6.18).
MAJOR: Final = 7
MINOR: Final = 45
OLDEST_MINOR: Final = 31

#: The node of the root directory.
ROOT_ID: Final = 1

#: `uid` and `gid` of a request of a mount with mapped ids that makes nothing.
INVALID_ID: Final = (1 << 32) - 1

#: The device refuses to be read into less, in bytes.
MIN_READ_BUFFER: Final = 8192

#: In `unique` of a request that is sent again after Notice.RESEND; the reply repeats it.
UNIQUE_RESEND: Final = 1 << 63


class InitFlag(IntFlag):
    """FUSE_*: what kernel and daemon can do. Bits from 32 up travel in `flags2`, and only with INIT_EXT."""

    ASYNC_READ = 1 << 0
    POSIX_LOCKS = 1 << 1
    FILE_OPS = 1 << 2
    ATOMIC_O_TRUNC = 1 << 3
    EXPORT_SUPPORT = 1 << 4
    BIG_WRITES = 1 << 5
    DONT_MASK = 1 << 6
    SPLICE_WRITE = 1 << 7
    SPLICE_MOVE = 1 << 8
    SPLICE_READ = 1 << 9
    FLOCK_LOCKS = 1 << 10
    HAS_IOCTL_DIR = 1 << 11
    AUTO_INVAL_DATA = 1 << 12
    DO_READDIRPLUS = 1 << 13
    READDIRPLUS_AUTO = 1 << 14
    ASYNC_DIO = 1 << 15
    WRITEBACK_CACHE = 1 << 16
    NO_OPEN_SUPPORT = 1 << 17
    PARALLEL_DIROPS = 1 << 18
    HANDLE_KILLPRIV = 1 << 19
    POSIX_ACL = 1 << 20
    ABORT_ERROR = 1 << 21
    MAX_PAGES = 1 << 22
    CACHE_SYMLINKS = 1 << 23
    NO_OPENDIR_SUPPORT = 1 << 24
    EXPLICIT_INVAL_DATA = 1 << 25
    MAP_ALIGNMENT = 1 << 26
    SUBMOUNTS = 1 << 27
    HANDLE_KILLPRIV_V2 = 1 << 28
    SETXATTR_EXT = 1 << 29
    INIT_EXT = 1 << 30
    INIT_RESERVED = 1 << 31
    SECURITY_CTX = 1 << 32
    HAS_INODE_DAX = 1 << 33
    CREATE_SUPP_GROUP = 1 << 34
    HAS_EXPIRE_ONLY = 1 << 35
    DIRECT_IO_ALLOW_MMAP = 1 << 36
    PASSTHROUGH = 1 << 37
    NO_EXPORT_SUPPORT = 1 << 38
    HAS_RESEND = 1 << 39
    ALLOW_IDMAP = 1 << 40
    OVER_IO_URING = 1 << 41
    REQUEST_TIMEOUT = 1 << 42


class Fattr:
    """FATTR_*: which fields of a SETATTR are meant (`valid`)."""

    MODE: Final = 1 << 0
    UID: Final = 1 << 1
    GID: Final = 1 << 2
    SIZE: Final = 1 << 3
    ATIME: Final = 1 << 4
    MTIME: Final = 1 << 5
    FH: Final = 1 << 6
    ATIME_NOW: Final = 1 << 7
    MTIME_NOW: Final = 1 << 8
    LOCKOWNER: Final = 1 << 9
    CTIME: Final = 1 << 10
    KILL_SUIDGID: Final = 1 << 11


class Fopen:
    """FOPEN_*: how the kernel shall treat the handle that an OPEN, CREATE or OPENDIR is answered with."""

    DIRECT_IO: Final = 1 << 0
    KEEP_CACHE: Final = 1 << 1
    NONSEEKABLE: Final = 1 << 2
    CACHE_DIR: Final = 1 << 3
    STREAM: Final = 1 << 4
    NOFLUSH: Final = 1 << 5
    PARALLEL_DIRECT_WRITES: Final = 1 << 6
    PASSTHROUGH: Final = 1 << 7


class Open:
    """FUSE_OPEN_*: `open_flags` of an OPEN or CREATE."""

    KILL_SUIDGID: Final = 1 << 0


class Getattr:
    """FUSE_GETATTR_*: `getattr_flags`."""

    FH: Final = 1 << 0


class Read:
    """FUSE_READ_*: `read_flags`."""

    LOCKOWNER: Final = 1 << 1


class Write:
    """FUSE_WRITE_*: `write_flags`."""

    CACHE: Final = 1 << 0
    LOCKOWNER: Final = 1 << 1
    KILL_SUIDGID: Final = 1 << 2


class Release:
    """FUSE_RELEASE_*: `release_flags`."""

    FLUSH: Final = 1 << 0
    FLOCK_UNLOCK: Final = 1 << 1


class Fsync:
    """FUSE_FSYNC_*: `fsync_flags`."""

    FDATASYNC: Final = 1 << 0


class Lock:
    """FUSE_LK_*: `lk_flags`."""

    FLOCK: Final = 1 << 0


class Setxattr:
    """FUSE_SETXATTR_*: `setxattr_flags`."""

    ACL_KILL_SGID: Final = 1 << 0


class Attribute:
    """FUSE_ATTR_*: `flags` of the attributes of a node."""

    SUBMOUNT: Final = 1 << 0
    DAX: Final = 1 << 1


class InvalEntry:
    """FUSE_*: `flags` of a Notice.INVAL_ENTRY. EXPIRE_ONLY keeps the name and asks for it at the next use."""

    EXPIRE_ONLY: Final = 1 << 0
