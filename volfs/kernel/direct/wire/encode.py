"""From values to the bytes of a reply, for one write of the device.

`reply` and `error` are whole messages; the other functions are the part of a
reply that its request asks for: `os.writev(device, reply(unique, entry(...)))`.
READDIR's part is in `entries`, INIT's in `handshake`.

A value that its field cannot hold raises `struct.error`: nothing was written
then, and the request is still to be answered.
"""

from __future__ import annotations

import errno
from struct import Struct
from typing import Final, NamedTuple

from volfs.kernel.direct.wire import layouts

__all__ = [
    "Attr",
    "Buffer",
    "Statfs",
    "Statx",
    "attributes",
    "copied",
    "created",
    "entry",
    "error",
    "lock",
    "opened",
    "reply",
    "sought",
    "statfs",
    "statx",
    "validity",
    "written",
    "xattr_size",
]

#: Of single bytes, contiguous.
Buffer = bytes | bytearray | memoryview

_HEADER: Final = layouts.OUT_HEADER.size
_header = layouts.OUT_HEADER.struct.pack

#: What the kernel takes as the error of a reply; for another one the caller would wait for ever.
_LAST_ERRNO: Final = 511

#: In seconds, 68 years: for ever, and within every kernel's arithmetic.
_FOREVER_S: Final = (1 << 31) - 1


class Attr(NamedTuple):
    """`layouts.ATTR`: what stat(2) shows. Times in seconds and nanoseconds, `blocks` of 512 bytes."""

    ino: int
    size: int
    blocks: int
    atime: int
    mtime: int
    ctime: int
    atimensec: int
    mtimensec: int
    ctimensec: int
    mode: int
    nlink: int
    uid: int
    gid: int
    rdev: int = 0
    blksize: int = 4096
    flags: int = 0


class Statfs(NamedTuple):
    """`layouts.STATFS_OUT`: what statvfs(3) shows. `blocks` of `frsize` bytes."""

    blocks: int
    bfree: int
    bavail: int
    files: int
    ffree: int
    bsize: int
    namelen: int
    frsize: int


class Statx(NamedTuple):
    """`layouts.STATX_OUT` after its validity: what statx(2) shows; `mask` says which fields are meant."""

    mask: int
    blksize: int
    attributes: int
    nlink: int
    uid: int
    gid: int
    mode: int
    ino: int
    size: int
    blocks: int
    attributes_mask: int
    atime: int
    atimensec: int
    btime: int
    btimensec: int
    ctime: int
    ctimensec: int
    mtime: int
    mtimensec: int
    rdev_major: int = 0
    rdev_minor: int = 0
    dev_major: int = 0
    dev_minor: int = 0


# -- messages ------------------------------------------------------------------------


def reply(unique: int, *parts: Buffer) -> list[Buffer]:
    """Success: the buffers for one writev(2). Without parts, that it is done."""
    length = _HEADER
    for part in parts:
        length += len(part)
    return [_header(length, 0, unique), *parts]


def error(unique: int, number: int) -> bytes:
    """Failure with this errno; EIO in place of one that the kernel would refuse."""
    if not 0 < number <= _LAST_ERRNO:
        number = errno.EIO
    return _header(_HEADER, -number, unique)


# -- parts ---------------------------------------------------------------------------


def validity(seconds: float) -> tuple[int, int]:
    """How long something may be believed, as whole seconds and nanoseconds. Infinity is for ever."""
    if not seconds > 0:
        return 0, 0
    if seconds >= _FOREVER_S:
        return _FOREVER_S, 0
    whole = int(seconds)
    return whole, int((seconds - whole) * 1_000_000_000)


_entry = layouts.ENTRY_OUT.struct.pack
_attributes = layouts.ATTR_OUT.struct.pack
_open = layouts.OPEN_OUT.struct.pack
_ENTRY_AND_OPEN: Final = Struct(layouts.ENTRY_OUT.struct.format + layouts.OPEN_OUT.struct.format[1:])


def entry(nodeid: int, attr: Attr, entry_s: float, attr_s: float, generation: int = 0) -> bytes:
    """For LOOKUP, MKNOD, MKDIR, SYMLINK, LINK: the node, and for how long its name and attributes hold.

    The pair (nodeid, generation) must never come again for another node. Node 0 says that there is no
    such name, and lets the kernel remember that.
    """
    name_s, name_ns = validity(entry_s)
    hold_s, hold_ns = validity(attr_s)
    return _entry(nodeid, generation, name_s, hold_s, name_ns, hold_ns, *attr)


def attributes(attr: Attr, attr_s: float) -> bytes:
    """For GETATTR, SETATTR."""
    return _attributes(*validity(attr_s), *attr)


def statx(stat: Statx, attr_s: float) -> bytes:
    """For STATX."""
    return layouts.STATX_OUT.struct.pack(*validity(attr_s), 0, *stat)


def opened(fh: int, open_flags: int = 0, backing_id: int = 0) -> bytes:
    """For OPEN, OPENDIR: the handle and Fopen's flags; the id of a backing file with Fopen.PASSTHROUGH."""
    return _open(fh, open_flags, backing_id)


def created(
    nodeid: int,
    attr: Attr,
    entry_s: float,
    attr_s: float,
    fh: int,
    open_flags: int = 0,
    backing_id: int = 0,
    generation: int = 0,
) -> bytes:
    """For CREATE, TMPFILE: as `entry` and `opened`."""
    name_s, name_ns = validity(entry_s)
    hold_s, hold_ns = validity(attr_s)
    return _ENTRY_AND_OPEN.pack(
        nodeid, generation, name_s, hold_s, name_ns, hold_ns, *attr, fh, open_flags, backing_id
    )


def written(size: int) -> bytes:
    """For WRITE, and for COPY_FILE_RANGE: how many bytes."""
    return layouts.WRITE_OUT.struct.pack(size)


def copied(size: int) -> bytes:
    """For COPY_FILE_RANGE_64: how many bytes."""
    return layouts.COPY_FILE_RANGE_OUT.struct.pack(size)


def statfs(capacity: Statfs) -> bytes:
    """For STATFS."""
    return layouts.STATFS_OUT.struct.pack(*capacity)


def xattr_size(size: int) -> bytes:
    """For GETXATTR and LISTXATTR that asked with size 0; otherwise the part is the value itself."""
    return layouts.GETXATTR_OUT.struct.pack(size)


def sought(offset: int) -> bytes:
    """For LSEEK."""
    return layouts.LSEEK_OUT.struct.pack(offset)


def lock(start: int, end: int, kind: int, pid: int) -> bytes:
    """For GETLK: the lock in the way, or F_UNLCK as its kind. `end` is its last byte."""
    return layouts.LK_OUT.struct.pack(start, end, kind, pid)
