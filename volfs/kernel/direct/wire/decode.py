"""From the bytes of one read of the device to a request; whatever comes, a Request or Malformed.

By opcode, `Request.body` is
- bytes, the name: LOOKUP, UNLINK, RMDIR, REMOVEXATTR
- a list of (nodeid, nlookup): FORGET, BATCH_FORGET
- None: READLINK, STATFS, SYNCFS, DESTROY
- Read: READ, READDIR, READDIRPLUS. Open: OPEN, OPENDIR. Release: RELEASE, RELEASEDIR. Fsync: FSYNC, FSYNCDIR.
  Create: CREATE, TMPFILE. Rename: RENAME, RENAME2. Lk: GETLK, SETLK, SETLKW. CopyFileRange: both of them
- the tuple of its own name in `requests`: all others that are known
- a memoryview of the rest: BMAP, IOCTL, POLL, the two for DAX and what is unknown, to be answered ENOSYS

A structure may be longer than it is known to be, as a later kernel might have
it; names and data must end where the request ends. Extensions (security
contexts, groups) are cut off: they come only if their InitFlag was granted.

*Concurrency:* none; nothing is kept. Data of WRITE and NOTIFY_REPLY is a view of
the caller's buffer, which must stay as it is until the data has been used.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct, error
from typing import Any, Final, TypeVar

from volfs.kernel.direct.wire import layouts, requests
from volfs.kernel.direct.wire.flags import InitFlag
from volfs.kernel.direct.wire.layouts import Layout
from volfs.kernel.direct.wire.opcodes import UNANSWERED, Opcode
from volfs.kernel.direct.wire.requests import Request

__all__ = ["Malformed", "decode"]

T = TypeVar("T", bound=tuple[Any, ...])

_Parser = Callable[[memoryview], Any]

#: Of the header, and so where a body begins.
_START: Final = layouts.IN_HEADER.size

_header = layouts.IN_HEADER.struct.unpack_from
#: A named tuple from a tuple, without the call of Python code that `_make` is.
_new = tuple.__new__


class Malformed(Exception):
    """Bytes that are no request. Where `unique` is known, EIO is the answer; else there can be none."""

    def __init__(self, reason: str, opcode: int | None = None, unique: int | None = None) -> None:
        super().__init__(f"{reason} (opcode {opcode}, unique {unique})")
        self.reason = reason
        self.opcode = opcode
        self.unique = unique


class _Unreadable(Exception):
    """Why a body was not understood."""


def decode(buffer: memoryview) -> Request[Any]:
    """The request that fills `buffer`, a contiguous view of bytes. Raises Malformed, and nothing else."""
    try:
        length, opcode, unique, nodeid, uid, gid, pid, extensions = _header(buffer)
    except error:
        raise _without_header(buffer) from None
    try:
        if length != len(buffer):
            raise _Unreadable(f"says it has {length} bytes, has {len(buffer)}")
        if not unique and opcode not in UNANSWERED:
            raise _Unreadable("has no number to answer to")
        if extensions:
            buffer = _without_extensions(buffer, extensions)
        body = _PARSERS.get(opcode, _rest)(buffer)
    except error:
        reason = f"ends within its structure, after {len(buffer)} bytes"
        raise Malformed(reason, opcode, _answerable(opcode, unique)) from None
    except _Unreadable as why:
        raise Malformed(str(why), opcode, _answerable(opcode, unique)) from None
    return _new(Request, (opcode, unique, nodeid, uid, gid, pid, body))


def _without_header(buffer: memoryview) -> Malformed:
    reason = f"ends within its header, after {len(buffer)} bytes"
    try:
        opcode, unique = _BEGINNING.unpack_from(buffer)
    except error:
        return Malformed(reason)
    return Malformed(reason, opcode, _answerable(opcode, unique))


#: As far as `unique`.
_BEGINNING: Final = Struct("=4xIQ")


def _answerable(opcode: int, unique: int) -> int | None:
    # To the device, a reply to 0 would be a notification.
    return None if opcode in UNANSWERED else unique or None


def _without_extensions(buffer: memoryview, words: int) -> memoryview:
    end = len(buffer) - 8 * words
    if end < _START:
        raise _Unreadable(f"is shorter than its extensions, {8 * words} bytes")
    return buffer[:end]


# -- names ---------------------------------------------------------------------------


def _name(buffer: memoryview, start: int = _START) -> bytes:
    """What is left of the request: one name that is not empty, and its NUL."""
    name = bytes(buffer[start:])
    if name.find(0) != len(name) - 1 or len(name) < 2:
        raise _Unreadable("does not end in one name")
    return name[:-1]


def _names(buffer: memoryview, start: int = _START) -> tuple[bytes, bytes]:
    parts = bytes(buffer[start:]).split(b"\0")
    if len(parts) != 3 or not parts[0] or not parts[1] or parts[2]:
        raise _Unreadable("does not end in two names")
    return parts[0], parts[1]


# -- what a request consists of ------------------------------------------------------


def _nothing(buffer: memoryview) -> None:
    return None


def _rest(buffer: memoryview) -> memoryview:
    return buffer[_START:]


def _fixed(layout: Layout, kind: type[T]) -> Callable[[memoryview], T]:
    """A structure."""
    unpack = layout.struct.unpack_from

    def parse(buffer: memoryview) -> T:
        return _new(kind, unpack(buffer, _START))

    return parse


def _named(layout: Layout, kind: type[T]) -> Callable[[memoryview], T]:
    """A structure and a name."""
    unpack = layout.struct.unpack_from
    end = _START + layout.size

    def parse(buffer: memoryview) -> T:
        return _new(kind, (*unpack(buffer, _START), _name(buffer, end)))

    return parse


def _with_data(layout: Layout, kind: type[T]) -> Callable[[memoryview], T]:
    """A structure and as many bytes as its `size` says."""
    unpack = layout.struct.unpack_from
    end = _START + layout.size
    at = layout.fields.index("size")

    def parse(buffer: memoryview) -> T:
        values = unpack(buffer, _START)
        data = buffer[end:]
        if len(data) != values[at]:
            raise _Unreadable(f"has {len(data)} bytes of data, announces {values[at]}")
        return _new(kind, (*values, data))

    return parse


# -- the odd ones --------------------------------------------------------------------


def _forget(buffer: memoryview) -> list[tuple[int, int]]:
    return [_FORGET.unpack_from(buffer)]


#: The node in the header, the count behind it.
_FORGET: Final = Struct("=16xQ16xQ")


def _batch_forget(buffer: memoryview) -> list[tuple[int, int]]:
    (count,) = layouts.BATCH_FORGET_IN.struct.unpack_from(buffer, _START)
    pairs = buffer[_START + layouts.BATCH_FORGET_IN.size :]
    if len(pairs) != count * layouts.FORGET_ONE.size:
        raise _Unreadable(f"has {len(pairs)} bytes of nodes to forget, announces {count} nodes")
    return list(layouts.FORGET_ONE.struct.iter_unpack(pairs))


def _init(buffer: memoryview) -> requests.Init:
    """The structure grew in 7.6 and 7.36, and of another major version only the beginning is known."""
    body = bytes(buffer[_START : _START + layouts.INIT_IN.size])
    if len(body) < 8:
        raise _Unreadable("ends before the version of its protocol")
    padded = body.ljust(layouts.INIT_IN.size, b"\0")
    major, minor, max_readahead, flags, flags2 = layouts.INIT_IN.struct.unpack(padded)
    if flags & _INIT_EXT:
        flags |= flags2 << 32
    return requests.Init(major, minor, max_readahead, flags)


_INIT_EXT: Final = int(InitFlag.INIT_EXT)


def _rename(buffer: memoryview) -> requests.Rename:
    (newdir,) = layouts.RENAME_IN.struct.unpack_from(buffer, _START)
    return requests.Rename(newdir, 0, *_names(buffer, _START + layouts.RENAME_IN.size))


def _rename2(buffer: memoryview) -> requests.Rename:
    newdir, flags = layouts.RENAME2_IN.struct.unpack_from(buffer, _START)
    return requests.Rename(newdir, flags, *_names(buffer, _START + layouts.RENAME2_IN.size))


def _symlink(buffer: memoryview) -> requests.Symlink:
    return requests.Symlink(*_names(buffer))


def _setxattr(buffer: memoryview) -> requests.Setxattr:
    """The structure has two sizes, and the request does not say which.

    The value ends the request, so that it is known where the name ends; read from behind the short
    structure, it is the name alone or, as the long one ends in zeros, has a NUL before its last byte.
    """
    size, flags = layouts.SETXATTR_IN_SHORT.struct.unpack_from(buffer, _START)
    end = len(buffer) - size
    start = _START + layouts.SETXATTR_IN_SHORT.size
    if end < start:
        raise _Unreadable(f"is shorter than its value, {size} bytes")
    setxattr_flags = 0
    if bytes(buffer[start:end]).find(0) != end - start - 1:
        size, flags, setxattr_flags = layouts.SETXATTR_IN.struct.unpack_from(buffer, _START)
        start = _START + layouts.SETXATTR_IN.size
    name = _name(buffer[:end], start)
    return requests.Setxattr(flags, setxattr_flags, name, bytes(buffer[end:]))


_read = _fixed(layouts.READ_IN, requests.Read)
_open = _fixed(layouts.OPEN_IN, requests.Open)
_release = _fixed(layouts.RELEASE_IN, requests.Release)
_fsync = _fixed(layouts.FSYNC_IN, requests.Fsync)
_create = _named(layouts.CREATE_IN, requests.Create)
_lk = _fixed(layouts.LK_IN, requests.Lk)
_copy_file_range = _fixed(layouts.COPY_FILE_RANGE_IN, requests.CopyFileRange)

_PARSERS: Final[dict[int, _Parser]] = {
    Opcode.LOOKUP: _name,
    Opcode.FORGET: _forget,
    Opcode.GETATTR: _fixed(layouts.GETATTR_IN, requests.Getattr),
    Opcode.SETATTR: _fixed(layouts.SETATTR_IN, requests.Setattr),
    Opcode.READLINK: _nothing,
    Opcode.SYMLINK: _symlink,
    Opcode.MKNOD: _named(layouts.MKNOD_IN, requests.Mknod),
    Opcode.MKDIR: _named(layouts.MKDIR_IN, requests.Mkdir),
    Opcode.UNLINK: _name,
    Opcode.RMDIR: _name,
    Opcode.RENAME: _rename,
    Opcode.LINK: _named(layouts.LINK_IN, requests.Link),
    Opcode.OPEN: _open,
    Opcode.READ: _read,
    Opcode.WRITE: _with_data(layouts.WRITE_IN, requests.Write),
    Opcode.STATFS: _nothing,
    Opcode.RELEASE: _release,
    Opcode.FSYNC: _fsync,
    Opcode.SETXATTR: _setxattr,
    Opcode.GETXATTR: _named(layouts.GETXATTR_IN, requests.Getxattr),
    Opcode.LISTXATTR: _fixed(layouts.GETXATTR_IN, requests.Listxattr),
    Opcode.REMOVEXATTR: _name,
    Opcode.FLUSH: _fixed(layouts.FLUSH_IN, requests.Flush),
    Opcode.INIT: _init,
    Opcode.OPENDIR: _open,
    Opcode.READDIR: _read,
    Opcode.RELEASEDIR: _release,
    Opcode.FSYNCDIR: _fsync,
    Opcode.GETLK: _lk,
    Opcode.SETLK: _lk,
    Opcode.SETLKW: _lk,
    Opcode.ACCESS: _fixed(layouts.ACCESS_IN, requests.Access),
    Opcode.CREATE: _create,
    Opcode.INTERRUPT: _fixed(layouts.INTERRUPT_IN, requests.Interrupt),
    Opcode.DESTROY: _nothing,
    Opcode.NOTIFY_REPLY: _with_data(layouts.NOTIFY_RETRIEVE_IN, requests.NotifyReply),
    Opcode.BATCH_FORGET: _batch_forget,
    Opcode.FALLOCATE: _fixed(layouts.FALLOCATE_IN, requests.Fallocate),
    Opcode.READDIRPLUS: _read,
    Opcode.RENAME2: _rename2,
    Opcode.LSEEK: _fixed(layouts.LSEEK_IN, requests.Lseek),
    Opcode.COPY_FILE_RANGE: _copy_file_range,
    Opcode.SYNCFS: _nothing,
    Opcode.TMPFILE: _create,
    Opcode.STATX: _fixed(layouts.STATX_IN, requests.Statx),
    Opcode.COPY_FILE_RANGE_64: _copy_file_range,
}
