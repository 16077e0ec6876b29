"""Replies and notifications as the kernel reads them."""

from __future__ import annotations

import errno
import math
import stat
from struct import error as struct_error
from struct import iter_unpack, unpack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kernel.direct.kernel_side import by_name, names, taken_apart, values
from volfs.kernel.direct.wire import encode, entries, layouts, notices
from volfs.kernel.direct.wire.encode import Attr, Statfs, Statx
from volfs.kernel.direct.wire.flags import Fopen, InvalEntry
from volfs.kernel.direct.wire.opcodes import Notice

_ATTR = Attr(*range(1, 17))
_attrs = values(layouts.ATTR).map(lambda fields: Attr(*fields))
_seconds = st.floats(0, 1e6)


def _attr_in(fields: dict[str, int], under: str) -> Attr:
    return Attr(**{name: fields[f"{under}.{name}"] for name in Attr._fields})


@given(st.integers(1, (1 << 64) - 1), st.lists(st.binary(max_size=30), max_size=4))
def test_reply(unique: int, parts: list[bytes]) -> None:
    """The header says how long the parts behind it are, and which request is answered."""
    message = encode.reply(unique, *parts)
    assert taken_apart(message) == (0, unique, b"".join(parts))
    assert all(sent is given for sent, given in zip(message[1:], parts, strict=True))


def test_views_are_sent_as_they_are() -> None:
    """A reply holds what was read for it, without a copy."""
    view, growing = memoryview(bytes(10)), bytearray(5)
    message = encode.reply(1, view, growing)
    assert message[1] is view
    assert message[2] is growing
    assert taken_apart(message) == (0, 1, bytes(15))


@pytest.mark.parametrize(
    ("number", "sent"),
    [(errno.ENOENT, errno.ENOENT), (1, 1), (511, 511), (512, errno.EIO), (0, errno.EIO), (-5, errno.EIO)],
)
def test_error(number: int, sent: int) -> None:
    """An errno, or EIO for what the kernel refuses: the caller must not wait for ever."""
    assert taken_apart(encode.error(3, number)) == (-sent, 3, b"")


@pytest.mark.parametrize(
    ("seconds", "sent"),
    [
        (0.0, (0, 0)),
        (-1.0, (0, 0)),
        (math.nan, (0, 0)),
        (1.5, (1, 500_000_000)),
        (60, (60, 0)),
        (math.inf, ((1 << 31) - 1, 0)),
        (1e30, ((1 << 31) - 1, 0)),
    ],
)
def test_validity(seconds: float, sent: tuple[int, int]) -> None:
    """Seconds and nanoseconds; what is not above 0 holds for no time, the infinite for ever."""
    assert encode.validity(seconds) == sent


@given(_seconds)
def test_validity_is_never_prolonged(seconds: float) -> None:
    """Nanoseconds are below a second, and both together not above what was asked."""
    whole, ns = encode.validity(seconds)
    assert 0 <= ns < 1_000_000_000
    assert seconds - 1e-6 <= whole + ns / 1e9 <= seconds + 1e-9


@given(_attrs, values(layouts.FORGET_ONE), _seconds, _seconds)
def test_entry_and_attributes(attr: Attr, pair: tuple[int, int], entry_s: float, attr_s: float) -> None:
    """The attributes arrive as they are, each validity in its own field."""
    nodeid, generation = pair
    fields = by_name(layouts.ENTRY_OUT, encode.entry(nodeid, attr, entry_s, attr_s, generation))
    assert _attr_in(fields, "attr") == attr
    assert (fields["nodeid"], fields["generation"]) == pair
    assert (fields["entry_valid"], fields["entry_valid_nsec"]) == encode.validity(entry_s)
    assert (fields["attr_valid"], fields["attr_valid_nsec"]) == encode.validity(attr_s)

    fields = by_name(layouts.ATTR_OUT, encode.attributes(attr, attr_s))
    assert _attr_in(fields, "attr") == attr
    assert (fields["attr_valid"], fields["attr_valid_nsec"]) == encode.validity(attr_s)

    both = encode.created(nodeid, attr, entry_s, attr_s, 9, Fopen.KEEP_CACHE, 4, generation)
    assert both == encode.entry(nodeid, attr, entry_s, attr_s, generation) + encode.opened(
        9, Fopen.KEEP_CACHE, 4
    )


@given(values(layouts.OPEN_OUT), values(layouts.LK_OUT), values(layouts.STATFS_OUT))
def test_small_parts(handle: tuple[int, ...], lock: tuple[int, ...], capacity: tuple[int, ...]) -> None:
    """Handles, locks and capacities keep their fields."""
    assert tuple(by_name(layouts.OPEN_OUT, encode.opened(*handle)).values()) == handle
    assert tuple(by_name(layouts.LK_OUT, encode.lock(*lock)).values()) == lock
    fields = by_name(layouts.STATFS_OUT, encode.statfs(Statfs(*capacity)))
    assert fields == {f"st.{name}": value for name, value in Statfs(*capacity)._asdict().items()}


def test_counts() -> None:
    """Sizes and offsets, alone in their structures."""
    assert encode.written(1 << 20) == layouts.WRITE_OUT.struct.pack(1 << 20)
    assert encode.xattr_size(7) == layouts.GETXATTR_OUT.struct.pack(7)
    assert by_name(layouts.COPY_FILE_RANGE_OUT, encode.copied(1 << 40)) == {"bytes_copied": 1 << 40}
    assert by_name(layouts.LSEEK_OUT, encode.sought(1 << 40)) == {"offset": 1 << 40}
    with pytest.raises(struct_error):
        encode.written(1 << 32)


def test_statx() -> None:
    """Each field of statx(2) is in its place."""
    stat_ = Statx(*range(1, len(Statx._fields) + 1))
    fields = by_name(layouts.STATX_OUT, encode.statx(stat_, 2.5))
    assert (fields["attr_valid"], fields["attr_valid_nsec"], fields["flags"]) == (2, 500_000_000, 0)
    for name, value in stat_._asdict().items():
        moment = name.removesuffix("nsec")
        if moment in ("atime", "btime", "ctime", "mtime"):
            name = f"{moment}.tv_{'nsec' if name.endswith('nsec') else 'sec'}"
        assert fields[f"stat.{name}"] == value


# -- directories ---------------------------------------------------------------------

_MODES = st.sampled_from([stat.S_IFREG | 0o644, stat.S_IFDIR | 0o755, stat.S_IFLNK | 0o777, stat.S_IFIFO])


def _entries(buffer: bytes, plus: bool) -> list[tuple[dict[str, int], bytes]]:
    """As the kernel walks through them."""
    layout, prefix = (layouts.DIRENTPLUS, "dirent.") if plus else (layouts.DIRENT, "")
    found = []
    while buffer:
        fields = by_name(layout, bytes(buffer[: layout.size]))
        end = layout.size + fields[f"{prefix}namelen"]
        size = end + 7 & ~7
        assert len(buffer) >= size
        assert not any(buffer[end:size])
        found.append(
            ({name.removeprefix(prefix): value for name, value in fields.items()}, buffer[layout.size : end])
        )
        buffer = buffer[size:]
    return found


@given(names(6), st.integers(0, 600), _MODES, st.booleans())
def test_entries_fill_the_room(given_names: list[bytes], room: int, mode: int, plus: bool) -> None:
    """Whole entries, aligned to 8 bytes, until one has no room; that one leaves no trace."""
    buffer, told = bytearray(), []
    attr = _ATTR._replace(ino=5, mode=mode)
    for after, name in enumerate(given_names, 1):
        before = len(buffer)
        if plus:
            added = entries.add_plus(buffer, room, name, 5, attr, after, 1.5, 2.5, 3)
        else:
            added = entries.add(buffer, room, name, 5, mode, after)
        if not added:
            head = layouts.DIRENTPLUS.size if plus else layouts.DIRENT.size
            assert before + head + len(name) + 7 & ~7 > room
            assert len(buffer) == before
            break
        told.append(name)
    assert len(buffer) <= room
    seen = _entries(bytes(buffer), plus)
    assert [name for _, name in seen] == told
    for after, (fields, _) in enumerate(seen, 1):
        assert (fields["ino"], fields["off"], fields["type"]) == (5, after, stat.S_IFMT(mode) >> 12)
        if plus:
            assert _attr_in(fields, "entry_out.attr") == attr
            assert (fields["entry_out.nodeid"], fields["entry_out.generation"]) == (5, 3)
            assert (fields["entry_out.entry_valid"], fields["entry_out.attr_valid"]) == (1, 2)


# -- notifications -------------------------------------------------------------------


@given(names(1), values(layouts.FORGET_ONE), st.binary(max_size=40))
def test_notices(name: list[bytes], nodes: tuple[int, int], data: bytes) -> None:
    """Each has its code for an error, 0 for a request, and its structure before names and data."""
    parent, child = nodes

    code, unique, body = taken_apart(notices.inval_entry(parent, name[0], InvalEntry.EXPIRE_ONLY))
    head, rest = body[:16], body[16:]
    assert (code, unique, rest) == (Notice.INVAL_ENTRY, 0, name[0] + b"\0")
    assert unpack("=QII", head) == (parent, len(name[0]), 1)

    code, unique, body = taken_apart(notices.delete(parent, child, name[0]))
    assert (code, unique, body[24:]) == (Notice.DELETE, 0, name[0] + b"\0")
    assert unpack("=QQI4x", body[:24]) == (parent, child, len(name[0]))

    code, unique, body = taken_apart(notices.store(parent, child, data))
    assert (code, unique, body[24:]) == (Notice.STORE, 0, data)
    assert unpack("=QQI4x", body[:24]) == (parent, child, len(data))

    code, unique, body = taken_apart(notices.retrieve(3, parent, child, 4096))
    assert (code, unique) == (Notice.RETRIEVE, 0)
    assert unpack("=QQQI4x", body) == (3, parent, child, 4096)

    code, unique, body = taken_apart(notices.prune(nodes))
    assert (code, unique, unpack("=I12x", body[:16])) == (Notice.PRUNE, 0, (2,))
    assert [node for (node,) in iter_unpack("=Q", body[16:])] == list(nodes)


def test_notices_of_nodes_and_of_all() -> None:
    """Attributes alone are a negative offset; two notices have no body."""
    assert taken_apart(notices.inval_inode(9)) == (
        Notice.INVAL_INODE,
        0,
        layouts.NOTIFY_INVAL_INODE_OUT.struct.pack(9, 0, 0),
    )
    assert taken_apart(notices.inval_inode(9, -1))[2] == layouts.NOTIFY_INVAL_INODE_OUT.struct.pack(9, -1, 0)
    assert taken_apart(notices.resend()) == (Notice.RESEND, 0, b"")
    assert taken_apart(notices.inc_epoch()) == (Notice.INC_EPOCH, 0, b"")
