"""The kernel's side of the protocol, for the tests: requests made from their fields, replies taken apart."""

from __future__ import annotations

import re
from collections.abc import Sequence
from struct import pack
from typing import Any

from hypothesis import strategies as st

from volfs.kernel.direct.wire import layouts
from volfs.kernel.direct.wire.encode import Buffer
from volfs.kernel.direct.wire.layouts import Layout
from volfs.kernel.direct.wire.opcodes import Opcode

__all__ = ["DATA", "LAYOUTS", "SHAPES", "by_name", "names", "request", "taken_apart", "values"]

LAYOUTS: dict[str, Layout] = {
    name: value for name, value in vars(layouts).items() if isinstance(value, Layout)
}

#: What a request consists of: its structure, and how many names follow.
SHAPES: dict[Opcode, tuple[Layout | None, int]] = {
    Opcode.LOOKUP: (None, 1),
    Opcode.GETATTR: (layouts.GETATTR_IN, 0),
    Opcode.SETATTR: (layouts.SETATTR_IN, 0),
    Opcode.READLINK: (None, 0),
    Opcode.SYMLINK: (None, 2),
    Opcode.MKNOD: (layouts.MKNOD_IN, 1),
    Opcode.MKDIR: (layouts.MKDIR_IN, 1),
    Opcode.UNLINK: (None, 1),
    Opcode.RMDIR: (None, 1),
    Opcode.RENAME: (layouts.RENAME_IN, 2),
    Opcode.LINK: (layouts.LINK_IN, 1),
    Opcode.OPEN: (layouts.OPEN_IN, 0),
    Opcode.READ: (layouts.READ_IN, 0),
    Opcode.STATFS: (None, 0),
    Opcode.RELEASE: (layouts.RELEASE_IN, 0),
    Opcode.FSYNC: (layouts.FSYNC_IN, 0),
    Opcode.GETXATTR: (layouts.GETXATTR_IN, 1),
    Opcode.LISTXATTR: (layouts.GETXATTR_IN, 0),
    Opcode.REMOVEXATTR: (None, 1),
    Opcode.FLUSH: (layouts.FLUSH_IN, 0),
    Opcode.OPENDIR: (layouts.OPEN_IN, 0),
    Opcode.READDIR: (layouts.READ_IN, 0),
    Opcode.RELEASEDIR: (layouts.RELEASE_IN, 0),
    Opcode.FSYNCDIR: (layouts.FSYNC_IN, 0),
    Opcode.GETLK: (layouts.LK_IN, 0),
    Opcode.SETLK: (layouts.LK_IN, 0),
    Opcode.SETLKW: (layouts.LK_IN, 0),
    Opcode.ACCESS: (layouts.ACCESS_IN, 0),
    Opcode.CREATE: (layouts.CREATE_IN, 1),
    Opcode.INTERRUPT: (layouts.INTERRUPT_IN, 0),
    Opcode.DESTROY: (None, 0),
    Opcode.FALLOCATE: (layouts.FALLOCATE_IN, 0),
    Opcode.READDIRPLUS: (layouts.READ_IN, 0),
    Opcode.RENAME2: (layouts.RENAME2_IN, 2),
    Opcode.LSEEK: (layouts.LSEEK_IN, 0),
    Opcode.COPY_FILE_RANGE: (layouts.COPY_FILE_RANGE_IN, 0),
    Opcode.SYNCFS: (layouts.SYNCFS_IN, 0),
    Opcode.TMPFILE: (layouts.CREATE_IN, 1),
    Opcode.STATX: (layouts.STATX_IN, 0),
    Opcode.COPY_FILE_RANGE_64: (layouts.COPY_FILE_RANGE_IN, 0),
}

#: Structures that data of their `size` follows.
DATA: dict[Opcode, Layout] = {
    Opcode.WRITE: layouts.WRITE_IN,
    Opcode.NOTIFY_REPLY: layouts.NOTIFY_RETRIEVE_IN,
}

_RANGES = {
    "H": (0, (1 << 16) - 1),
    "I": (0, (1 << 32) - 1),
    "Q": (0, (1 << 64) - 1),
    "i": (-(1 << 31), (1 << 31) - 1),
    "q": (-(1 << 63), (1 << 63) - 1),
}


def values(layout: Layout | None) -> st.SearchStrategy[tuple[int, ...]]:
    """Values of all fields of a structure, in their order."""
    letters = re.findall(r"[HIQiq]", layout.struct.format) if layout is not None else []
    return st.tuples(*(st.integers(*_RANGES[letter]) for letter in letters))


def names(count: int) -> st.SearchStrategy[list[bytes]]:
    one = st.binary(min_size=1, max_size=40).map(lambda name: name.replace(b"\0", b"n"))
    return st.lists(one, min_size=count, max_size=count)


def request(
    opcode: int, body: bytes = b"", *, unique: int = 2, nodeid: int = 1, extensions: bytes = b""
) -> memoryview:
    """One request of process 42 of user 7 and group 8, as a read of the device answers it."""
    length = layouts.IN_HEADER.size + len(body) + len(extensions)
    head = pack("=IIQQIIIHH", length, opcode, unique, nodeid, 7, 8, 42, len(extensions) // 8, 0)
    return memoryview(head + body + extensions)


def taken_apart(message: Sequence[Buffer] | bytes) -> tuple[int, int, bytes]:
    """(error, unique, body) of a reply, whose length is checked."""
    whole = message if isinstance(message, bytes) else b"".join(message)
    length, error, unique = layouts.OUT_HEADER.struct.unpack_from(whole)
    assert length == len(whole)
    return error, unique, whole[layouts.OUT_HEADER.size :]


def by_name(layout: Layout, packed: bytes) -> dict[str, Any]:
    """The fields of a structure that has exactly this size."""
    return dict(zip(layout.fields, layout.struct.unpack(packed), strict=True))
