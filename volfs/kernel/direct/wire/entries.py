"""The reply to READDIR and READDIRPLUS: entries, one behind the other, as many as the kernel has room for.

It knows nothing of the directory: the caller adds until there is no room.

*Invariants:* each entry begins at a multiple of 8 bytes, and is there as a
whole or not at all. Room is what the request's `size` says.
"""

from __future__ import annotations

from typing import Final

from volfs.kernel.direct.wire import layouts
from volfs.kernel.direct.wire.encode import Attr, validity

__all__ = ["add", "add_plus"]

_DIRENT: Final = layouts.DIRENT.struct
_DIRENTPLUS: Final = layouts.DIRENTPLUS.struct

#: The file type's bits of a mode, shifted by this, are the d_type of readdir(3).
_TYPE_SHIFT: Final = 12
_TYPE_MASK: Final = 0o170000

_PADDING: Final = tuple(bytes(n) for n in range(8))


def add(buffer: bytearray, room: int, name: bytes, ino: int, mode: int, after: int) -> bool:
    """Append an entry, unless `buffer` would grow beyond `room`; whether it was appended.

    `after` is the offset at which the kernel asks for the entry behind this one; not 0, where a
    directory begins.
    """
    size = _DIRENT.size + len(name)
    padding = -size & 7
    if len(buffer) + size + padding > room:
        return False
    buffer += _DIRENT.pack(ino, after, len(name), (mode & _TYPE_MASK) >> _TYPE_SHIFT)
    buffer += name
    buffer += _PADDING[padding]
    return True


def add_plus(
    buffer: bytearray,
    room: int,
    name: bytes,
    nodeid: int,
    attr: Attr,
    after: int,
    entry_s: float,
    attr_s: float,
    generation: int = 0,
) -> bool:
    """As `add`, with what a LOOKUP of the name would answer, and counted as one if it was appended.

    Node 0 tells the name alone and is not counted: "." and ".." must be told so.
    """
    size = _DIRENTPLUS.size + len(name)
    padding = -size & 7
    if len(buffer) + size + padding > room:
        return False
    name_s, name_ns = validity(entry_s)
    hold_s, hold_ns = validity(attr_s)
    buffer += _DIRENTPLUS.pack(
        nodeid,
        generation,
        name_s,
        hold_s,
        name_ns,
        hold_ns,
        *attr,
        attr.ino,
        after,
        len(name),
        (attr.mode & _TYPE_MASK) >> _TYPE_SHIFT,
    )
    buffer += name
    buffer += _PADDING[padding]
    return True
