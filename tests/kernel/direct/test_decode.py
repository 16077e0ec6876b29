"""From bytes to requests: each field arrives, and what is no request is Malformed, never anything else."""

from __future__ import annotations

from struct import pack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kernel.direct.kernel_side import DATA, LAYOUTS, SHAPES, names, request, values
from volfs.kernel.direct.wire import layouts, requests
from volfs.kernel.direct.wire.decode import Malformed, decode
from volfs.kernel.direct.wire.flags import InitFlag
from volfs.kernel.direct.wire.layouts import Layout
from volfs.kernel.direct.wire.opcodes import UNANSWERED, Opcode

_HEADER = layouts.IN_HEADER.size

#: Not taken apart: answered ENOSYS.
_RAW = {Opcode.BMAP, Opcode.IOCTL, Opcode.POLL, Opcode.SETUPMAPPING, Opcode.REMOVEMAPPING}
#: Neither a structure and names nor a structure and data.
_ODD = {Opcode.FORGET, Opcode.BATCH_FORGET, Opcode.INIT, Opcode.SETXATTR}


def _fields(layout: Layout | None) -> list[str]:
    return [field.rpartition(".")[2] for field in layout.fields] if layout is not None else []


def _body(layout: Layout | None, given: tuple[int, ...], following: list[bytes]) -> bytes:
    head = layout.struct.pack(*given) if layout is not None else b""
    return head + b"".join(name + b"\0" for name in following)


def _expected(opcode: Opcode, given: tuple[int, ...], following: list[bytes]) -> Any:
    layout, count = SHAPES[opcode]
    if count == 0 and not _fields(layout):
        return None
    if layout is None and count == 1:
        return following[0]
    last = {1: ["name"], 2: ["name", "target" if opcode is Opcode.SYMLINK else "newname"]}.get(count, [])
    fields = dict(zip([*_fields(layout), *last], [*given, *following], strict=True))
    return fields | {"flags": 0} if opcode is Opcode.RENAME else fields


def _valid() -> st.SearchStrategy[memoryview]:
    """A request as a kernel would send it, of any opcode with a structure, names or data."""

    @st.composite
    def draw_one(draw: st.DrawFn) -> memoryview:
        opcode = draw(st.sampled_from([*SHAPES, *DATA]))
        if opcode in DATA:
            return _data_request(opcode, draw(values(DATA[opcode])), draw(st.binary(max_size=50)))
        layout, count = SHAPES[opcode]
        return request(opcode, _body(layout, draw(values(layout)), draw(names(count))))

    return draw_one()


def _data_request(opcode: Opcode, given: tuple[int, ...], data: bytes) -> memoryview:
    layout = DATA[opcode]
    fields = dict(zip(layout.fields, given, strict=True)) | {"size": len(data)}
    return request(opcode, layout.struct.pack(*fields.values()) + data)


# -- what is understood --------------------------------------------------------------


def test_every_opcode_has_its_test() -> None:
    """The tables of these tests name each opcode that there is."""
    assert {*SHAPES, *DATA, *_RAW, *_ODD} == set(Opcode)


@pytest.mark.parametrize("opcode", SHAPES, ids=lambda opcode: opcode.name)
@settings(max_examples=10)
@given(st.data())
def test_structures_and_names(opcode: Opcode, data: st.DataObject) -> None:
    """Each field of the structure and each name arrives under the header's name, beside who asks."""
    layout, count = SHAPES[opcode]
    given_values, following = data.draw(values(layout)), data.draw(names(count))
    got = decode(request(opcode, _body(layout, given_values, following), unique=9, nodeid=3))

    assert got[:-1] == (opcode, 9, 3, 7, 8, 42)
    assert (got.unique, got.nodeid, got.uid, got.gid, got.pid) == (9, 3, 7, 8, 42)
    body = got.body._asdict() if hasattr(got.body, "_asdict") else got.body
    assert body == _expected(opcode, given_values, following)


@pytest.mark.parametrize("opcode", DATA, ids=lambda opcode: opcode.name)
@given(st.data())
def test_data(opcode: Opcode, data: st.DataObject) -> None:
    """Data arrives as a view of the buffer that was given, beside the fields."""
    given_values, content = data.draw(values(DATA[opcode])), data.draw(st.binary(max_size=200))
    buffer = _data_request(opcode, given_values, content)
    body = decode(buffer).body

    fields = dict(zip(DATA[opcode].fields, given_values, strict=True)) | {"size": len(content)}
    assert body._asdict() == fields | {"data": content}
    assert body.data.obj is buffer.obj


def test_types_of_bodies() -> None:
    """Requests of one form share a type, so that one handler serves them."""

    def type_of(opcode: Opcode) -> type:
        layout, count = SHAPES[opcode]
        given_values = (0,) * len(_fields(layout))
        return type(decode(request(opcode, _body(layout, given_values, [b"n"] * count))).body)

    assert {type_of(o) for o in (Opcode.READ, Opcode.READDIR, Opcode.READDIRPLUS)} == {requests.Read}
    assert {type_of(o) for o in (Opcode.OPEN, Opcode.OPENDIR)} == {requests.Open}
    assert {type_of(o) for o in (Opcode.RELEASE, Opcode.RELEASEDIR)} == {requests.Release}
    assert {type_of(o) for o in (Opcode.FSYNC, Opcode.FSYNCDIR)} == {requests.Fsync}
    assert {type_of(o) for o in (Opcode.CREATE, Opcode.TMPFILE)} == {requests.Create}
    assert {type_of(o) for o in (Opcode.RENAME, Opcode.RENAME2)} == {requests.Rename}
    assert type_of(Opcode.GETATTR) is requests.Getattr
    assert type_of(Opcode.LISTXATTR) is requests.Listxattr


@given(st.lists(st.tuples(*[st.integers(0, (1 << 64) - 1)] * 2), max_size=20))
def test_forgetting(pairs: list[tuple[int, int]]) -> None:
    """FORGET and BATCH_FORGET have one form, also with the number 0, as nothing answers them."""
    body = pack("=II", len(pairs), 0) + b"".join(pack("=QQ", *pair) for pair in pairs)
    assert decode(request(Opcode.BATCH_FORGET, body, unique=0)).body == pairs
    for nodeid, count in pairs[:3]:
        assert decode(request(Opcode.FORGET, pack("=Q", count), nodeid=nodeid)).body == [(nodeid, count)]


@given(names(1), st.binary(max_size=40), st.integers(0, (1 << 32) - 1), st.integers(0, (1 << 32) - 1))
def test_setxattr_in_both_sizes(name: list[bytes], value: bytes, flags: int, more: int) -> None:
    """The short and the long structure are told apart, whatever name, value and flags follow."""
    short = pack("=II", len(value), flags) + name[0] + b"\0" + value
    long = pack("=IIII", len(value), flags, more, 0) + name[0] + b"\0" + value

    assert decode(request(Opcode.SETXATTR, short)).body == (flags, 0, name[0], value)
    assert decode(request(Opcode.SETXATTR, long)).body == (flags, more, name[0], value)


def test_init_in_all_its_sizes() -> None:
    """The half of flags that a kernel before 7.36 does not send is empty; with INIT_EXT it is there."""
    ext = int(InitFlag.INIT_EXT)
    assert decode(request(Opcode.INIT, pack("=IIII", 7, 31, 1 << 17, ext - 1))).body == (
        7,
        31,
        1 << 17,
        ext - 1,
    )
    long = pack("=IIIII44x", 7, 45, 0, ext, 5)
    assert decode(request(Opcode.INIT, long)).body == (7, 45, 0, ext | 5 << 32)
    unmeant = pack("=IIIII44x", 7, 45, 0, 1, 5)
    assert decode(request(Opcode.INIT, unmeant)).body == (7, 45, 0, 1)
    assert decode(request(Opcode.INIT, pack("=II", 8, 1))).body == (8, 1, 0, 0)
    longer = long + b"\xff" * 100
    assert decode(request(Opcode.INIT, longer)).body == (7, 45, 0, ext | 5 << 32)


@pytest.mark.parametrize("opcode", [*sorted(_RAW), 0, 7, 19, 54, 4096, (1 << 32) - 1])
def test_what_is_not_spoken_is_handed_on(opcode: int) -> None:
    """Of a request that is unknown the header is understood, so that it can be answered ENOSYS."""
    got = decode(request(opcode, b"what", unique=5))
    assert (got.opcode, got.unique, bytes(got.body)) == (opcode, 5, b"what")


def test_extensions_are_cut_off() -> None:
    """Groups or security contexts behind the name are no part of it."""
    body = pack("=II", 0o755, 0o22) + b"name\0"
    got = decode(request(Opcode.MKDIR, body, extensions=bytes(range(16))))
    assert got.body == (0o755, 0o22, b"name")


def test_a_longer_structure_is_understood() -> None:
    """What a later kernel may add to the end of a structure does no harm."""
    body = layouts.OPEN_IN.struct.pack(1, 2) + b"\xff" * 8
    assert decode(request(Opcode.OPEN, body)).body == (1, 2)


@settings(max_examples=20)
@given(st.data())
def test_layouts_hold_what_they_are_given(data: st.DataObject) -> None:
    """Every structure round-trips at its size, each field at its offset."""
    for layout in LAYOUTS.values():
        given_values = data.draw(values(layout))
        packed = layout.struct.pack(*given_values)
        assert len(packed) == layout.size
        assert layout.struct.unpack(packed) == given_values


# -- what is not ---------------------------------------------------------------------


def _opcode(whole: memoryview) -> Opcode:
    return Opcode(layouts.IN_HEADER.struct.unpack_from(whole)[1])


@given(_valid(), st.data())
def test_a_request_that_is_cut_short(whole: memoryview, data: st.DataObject) -> None:
    """It names the request that is to be answered, as soon as its number is there."""
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    with pytest.raises(Malformed) as caught:
        decode(cut)
    answerable = len(cut) >= 16 and _opcode(whole) not in UNANSWERED
    assert caught.value.unique == (2 if answerable else None)


@given(_valid(), st.data())
def test_a_body_that_is_cut_short(whole: memoryview, data: st.DataObject) -> None:
    """Also where the length was corrected, a part of a structure, a name or data is not taken for it."""
    opcode = _opcode(whole)
    layout, more = SHAPES.get(opcode, (DATA.get(opcode), 1))
    needed = len(whole) if more else _HEADER + (layout.size if layout is not None and layout.fields else 0)
    length = data.draw(st.integers(_HEADER, len(whole)))
    cut = memoryview(pack("=I", length) + bytes(whole[4:length]))
    if length >= needed:
        assert decode(cut).opcode == opcode
        return
    with pytest.raises(Malformed) as caught:
        decode(cut)
    assert caught.value.opcode == opcode
    assert caught.value.unique == (None if opcode in UNANSWERED else 2)


@pytest.mark.parametrize(
    ("opcode", "body"),
    [
        (Opcode.LOOKUP, b""),
        (Opcode.LOOKUP, b"\0"),
        (Opcode.LOOKUP, b"name"),
        (Opcode.LOOKUP, b"na\0me\0"),
        (Opcode.LOOKUP, b"name\0\0"),
        (Opcode.MKDIR, bytes(8) + b"name"),
        (Opcode.MKDIR, bytes(8)),
        (Opcode.SYMLINK, b"name\0"),
        (Opcode.SYMLINK, b"name\0target"),
        (Opcode.SYMLINK, b"\0target\0"),
        (Opcode.SYMLINK, b"name\0\0"),
        (Opcode.SYMLINK, b"name\0target\0more"),
        (Opcode.SYMLINK, b"name\0target\0more\0"),
        (Opcode.RENAME, bytes(8) + b"one\0"),
        (Opcode.RENAME2, bytes(16) + b"one\0two"),
        (Opcode.RENAME2, bytes(15)),
        (Opcode.WRITE, layouts.WRITE_IN.struct.pack(1, 0, 5, 0, 0, 0) + b"four"),
        (Opcode.WRITE, layouts.WRITE_IN.struct.pack(1, 0, 3, 0, 0, 0) + b"four"),
        (Opcode.WRITE, layouts.WRITE_IN.struct.pack(1, 0, (1 << 32) - 1, 0, 0, 0) + b"four"),
        (Opcode.SETXATTR, pack("=II", 6, 0) + b"user.a\0value"),
        (Opcode.SETXATTR, pack("=II", 4, 0) + b"user.a\0value"),
        (Opcode.SETXATTR, pack("=II", 1000, 0) + b"user.a\0value"),
        # As long as the request and 20 bytes more: counted from the end, the name would be well-formed.
        (Opcode.SETXATTR, pack("=II", 120, 0) + b"n" * 31 + b"\0" + bytes(20)),
        (Opcode.SETXATTR, pack("=II", 5, 0) + b"\0value"),
        (Opcode.SETXATTR, pack("=IIII", 5, 0, 0, 0) + b"\0value"),
        (Opcode.SETXATTR, pack("=IIII", 6, 0, 0, 0) + b"user.a\0value"),
        (Opcode.INIT, pack("=I", 7)),
    ],
)
def test_names_and_sizes_that_do_not_fit(opcode: Opcode, body: bytes) -> None:
    """A name without its NUL, empty or one too few, and data of another size than announced."""
    with pytest.raises(Malformed) as caught:
        decode(request(opcode, body))
    assert (caught.value.opcode, caught.value.unique) == (opcode, 2)


@pytest.mark.parametrize("count", [0, 2, 4, (1 << 32) - 1])
def test_a_wrong_number_of_nodes_to_forget(count: int) -> None:
    """It is malformed, and has no answer."""
    with pytest.raises(Malformed) as caught:
        decode(request(Opcode.BATCH_FORGET, pack("=II", count, 0) + bytes(48)))
    assert caught.value.unique is None


def test_lengths_and_numbers_that_cannot_be() -> None:
    """A length that is not what was read, extensions longer than all, and the number of a notification."""
    whole = bytes(request(Opcode.STATFS))
    for length in (0, len(whole) - 1, len(whole) + 1, (1 << 32) - 1):
        with pytest.raises(Malformed) as caught:
            decode(memoryview(pack("=I", length) + whole[4:]))
        assert caught.value.unique == 2
    with pytest.raises(Malformed, match="extensions"):
        decode(memoryview(whole[:36] + pack("=HH", 1, 0)))
    with pytest.raises(Malformed) as caught:
        decode(request(Opcode.STATFS, unique=0))
    assert caught.value.unique is None


@given(st.binary(max_size=300))
def test_any_bytes(junk: bytes) -> None:
    """Bytes of no meaning are Malformed."""
    with pytest.raises(Malformed):
        decode(memoryview(junk))


@settings(max_examples=300)
@given(st.integers(0, 60), st.binary(max_size=200), st.integers(0, 3).map(lambda words: bytes(8 * words)))
def test_any_body(opcode: int, body: bytes, extensions: bytes) -> None:
    """Whatever follows a header that is right, it is a request or Malformed."""
    named: Malformed | requests.Request[Any]
    try:
        named = decode(request(opcode, body, extensions=extensions))
    except Malformed as malformed:
        named = malformed
    assert named.opcode == opcode


@settings(max_examples=300)
@given(_valid(), st.data())
def test_any_byte_changed(whole: memoryview, data: st.DataObject) -> None:
    """Wherever a byte was damaged, it is a request or Malformed."""
    damaged = bytearray(whole)
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        got = decode(memoryview(damaged))
    except Malformed:
        return
    assert isinstance(got, requests.Request)
