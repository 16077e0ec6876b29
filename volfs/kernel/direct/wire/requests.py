"""What the kernel asks, as values: one tuple for each kind of request, named after its structure.

Fields keep the names, the order and the units of `layouts`; names and data that
follow the structure come last. Seconds are since 1970, offsets and sizes in
bytes. Nothing here is checked: that is `decode`.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

__all__ = [
    "Access",
    "CopyFileRange",
    "Create",
    "Fallocate",
    "Flush",
    "Fsync",
    "Getattr",
    "Getxattr",
    "Init",
    "Interrupt",
    "Link",
    "Listxattr",
    "Lk",
    "Lseek",
    "Mkdir",
    "Mknod",
    "NotifyReply",
    "Open",
    "Read",
    "Release",
    "Rename",
    "Request",
    "Setattr",
    "Setxattr",
    "Statx",
    "Symlink",
    "Write",
]

Body = TypeVar("Body")


class Request(NamedTuple, Generic[Body]):
    """One request. `opcode` decides the type of `body`: see `decode`."""

    opcode: int  #: an Opcode, or what a newer kernel may send
    unique: int  #: which request this is; the reply repeats it
    nodeid: int  #: the node it is about, the parent where there is a name
    uid: int
    gid: int
    pid: int  #: of the calling thread; 0 for the kernel itself
    body: Body


class Access(NamedTuple):
    mask: int


class CopyFileRange(NamedTuple):
    fh_in: int
    off_in: int
    nodeid_out: int
    fh_out: int
    off_out: int
    len: int
    flags: int


class Create(NamedTuple):
    flags: int
    mode: int
    umask: int
    open_flags: int
    name: bytes


class Fallocate(NamedTuple):
    fh: int
    offset: int
    length: int
    mode: int


class Flush(NamedTuple):
    fh: int
    lock_owner: int


class Fsync(NamedTuple):
    fh: int
    fsync_flags: int


class Getattr(NamedTuple):
    getattr_flags: int
    fh: int


class Getxattr(NamedTuple):
    size: int  #: of the caller's buffer; 0 asks for the size of the value
    name: bytes


class Init(NamedTuple):
    major: int
    minor: int
    max_readahead: int
    flags: int  #: of InitFlag, both halves


class Interrupt(NamedTuple):
    unique: int  #: of the request that nobody waits for any more


class Link(NamedTuple):
    oldnodeid: int
    name: bytes


class Listxattr(NamedTuple):
    size: int  #: as in Getxattr


class Lk(NamedTuple):
    """`end` is the last byte, not the one after."""

    fh: int
    owner: int
    start: int
    end: int
    type: int
    pid: int
    lk_flags: int


class Lseek(NamedTuple):
    fh: int
    offset: int
    whence: int


class Mkdir(NamedTuple):
    mode: int
    umask: int
    name: bytes


class Mknod(NamedTuple):
    mode: int
    rdev: int
    umask: int
    name: bytes


class NotifyReply(NamedTuple):
    """What Notice.RETRIEVE asked for; `unique` of the request is the one that it named."""

    offset: int
    size: int
    data: memoryview  #: of the buffer that was decoded, not a copy


class Open(NamedTuple):
    flags: int
    open_flags: int


class Read(NamedTuple):
    fh: int
    offset: int
    size: int
    read_flags: int
    lock_owner: int
    flags: int


class Release(NamedTuple):
    fh: int
    flags: int
    release_flags: int
    lock_owner: int


class Rename(NamedTuple):
    newdir: int
    flags: int  #: of renameat2(2); 0 for a plain RENAME
    name: bytes
    newname: bytes


class Setattr(NamedTuple):
    valid: int
    fh: int
    size: int
    lock_owner: int
    atime: int
    mtime: int
    ctime: int
    atimensec: int
    mtimensec: int
    ctimensec: int
    mode: int
    uid: int
    gid: int


class Setxattr(NamedTuple):
    flags: int
    setxattr_flags: int
    name: bytes
    value: bytes


class Statx(NamedTuple):
    getattr_flags: int
    fh: int
    sx_flags: int
    sx_mask: int


class Symlink(NamedTuple):
    name: bytes
    target: bytes


class Write(NamedTuple):
    fh: int
    offset: int
    size: int
    write_flags: int
    lock_owner: int
    flags: int
    data: memoryview  #: of the buffer that was decoded, not a copy
