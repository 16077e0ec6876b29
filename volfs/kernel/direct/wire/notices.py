"""What the kernel is told unasked: messages for one write of the device, as the buffers of a writev(2).

When to tell and what is `kernel.notify`. The write itself fails with ENOENT where
the kernel does not know the node or the name, and it may block: `kernel.notify`
says what that asks of the caller.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import pack

from volfs.kernel.direct.wire import layouts
from volfs.kernel.direct.wire.encode import Buffer
from volfs.kernel.direct.wire.opcodes import Notice

__all__ = ["delete", "inc_epoch", "inval_entry", "inval_inode", "prune", "resend", "retrieve", "store"]


def _message(notice: Notice, *parts: Buffer) -> list[Buffer]:
    length = layouts.OUT_HEADER.size + sum(map(len, parts))
    return [layouts.OUT_HEADER.struct.pack(length, notice, 0), *parts]


def inval_inode(nodeid: int, offset: int = 0, length: int = 0) -> list[Buffer]:
    """Forget the attributes, and the pages of this range in bytes; length 0 is to the end.

    A negative offset is for the attributes alone.
    """
    return _message(Notice.INVAL_INODE, layouts.NOTIFY_INVAL_INODE_OUT.struct.pack(nodeid, offset, length))


def inval_entry(parent: int, name: bytes, flags: int = 0) -> list[Buffer]:
    """Forget the name. With InvalEntry.EXPIRE_ONLY (7.38, HAS_EXPIRE_ONLY), ask again at its next use."""
    head = layouts.NOTIFY_INVAL_ENTRY_OUT.struct.pack(parent, len(name), flags)
    return _message(Notice.INVAL_ENTRY, head, name, b"\0")


def delete(parent: int, child: int, name: bytes) -> list[Buffer]:
    """As inval_entry if the name is still that of `child`; and who watches it sees it deleted."""
    head = layouts.NOTIFY_DELETE_OUT.struct.pack(parent, child, len(name))
    return _message(Notice.DELETE, head, name, b"\0")


def store(nodeid: int, offset: int, data: Buffer) -> list[Buffer]:
    """Put bytes into the page cache; the file grows if they reach beyond its end."""
    head = layouts.NOTIFY_STORE_OUT.struct.pack(nodeid, offset, len(data))
    return _message(Notice.STORE, head, data)


def retrieve(notify_unique: int, nodeid: int, offset: int, size: int) -> list[Buffer]:
    """Ask for bytes of the page cache; a NOTIFY_REPLY of this number brings those that are there."""
    return _message(
        Notice.RETRIEVE, layouts.NOTIFY_RETRIEVE_OUT.struct.pack(notify_unique, nodeid, offset, size)
    )


def resend() -> list[Buffer]:
    """Send again what was read and not answered (7.40, HAS_RESEND)."""
    return _message(Notice.RESEND)


def inc_epoch() -> list[Buffer]:
    """Ask again for every name at its next use (7.44)."""
    return _message(Notice.INC_EPOCH)


def prune(nodes: Sequence[int]) -> list[Buffer]:
    """Forget these nodes where nothing uses them (7.45)."""
    head = layouts.NOTIFY_PRUNE_OUT.struct.pack(len(nodes))
    return _message(Notice.PRUNE, head, pack(f"={len(nodes)}Q", *nodes))
