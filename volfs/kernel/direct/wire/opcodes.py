"""What can be asked over /dev/fuse: the kernel's requests, our notifications, the device's own calls.

Names are the header's (`linux/fuse.h`) without their prefix. Numbers only; how a
request is laid out is in `layouts`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

__all__ = ["UNANSWERED", "Ioctl", "Notice", "Opcode"]


class Opcode(IntEnum):
    """FUSE_*: what the kernel asks for."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    SETATTR = 4
    READLINK = 5
    SYMLINK = 6
    MKNOD = 8
    MKDIR = 9
    UNLINK = 10
    RMDIR = 11
    RENAME = 12
    LINK = 13
    OPEN = 14
    READ = 15
    WRITE = 16
    STATFS = 17
    RELEASE = 18
    FSYNC = 20
    SETXATTR = 21
    GETXATTR = 22
    LISTXATTR = 23
    REMOVEXATTR = 24
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    FSYNCDIR = 30
    GETLK = 31
    SETLK = 32
    SETLKW = 33
    ACCESS = 34
    CREATE = 35
    INTERRUPT = 36
    BMAP = 37
    DESTROY = 38
    IOCTL = 39
    POLL = 40
    NOTIFY_REPLY = 41
    BATCH_FORGET = 42
    FALLOCATE = 43
    READDIRPLUS = 44
    RENAME2 = 45
    LSEEK = 46
    COPY_FILE_RANGE = 47
    SETUPMAPPING = 48
    REMOVEMAPPING = 49
    SYNCFS = 50
    TMPFILE = 51
    STATX = 52
    COPY_FILE_RANGE_64 = 53


#: Nobody waits for a reply to these; one that is written all the same is refused (ENOENT). INTERRUPT may be
#: answered with EAGAIN, to be asked again.
UNANSWERED: Final = frozenset({Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INTERRUPT, Opcode.NOTIFY_REPLY})


class Notice(IntEnum):
    """FUSE_NOTIFY_*: what the kernel is told without having asked."""

    POLL = 1
    INVAL_INODE = 2
    INVAL_ENTRY = 3
    STORE = 4
    RETRIEVE = 5
    DELETE = 6
    RESEND = 7  # 7.40
    INC_EPOCH = 8  # 7.44
    PRUNE = 9  # 7.45


class Ioctl:
    """FUSE_DEV_IOC_*: ioctl(2) on the device. Powerpc, MIPS and SPARC encode the numbers otherwise."""

    CLONE: Final = 2 << 30 | 4 << 16 | 229 << 8 | 0  #: reads a u32, the descriptor of the device to join
    BACKING_OPEN: Final = 1 << 30 | 16 << 16 | 229 << 8 | 1  #: takes a `layouts.BACKING_MAP`; answers the id
    BACKING_CLOSE: Final = 1 << 30 | 4 << 16 | 229 << 8 | 2  #: takes the id, a u32
