"""INIT against kernels from 7.31 to 7.45, older and newer ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kernel.direct.kernel_side import by_name
from volfs.kernel.direct.wire import handshake, layouts
from volfs.kernel.direct.wire.flags import InitFlag
from volfs.kernel.direct.wire.handshake import Unsupported, Wishes, negotiate
from volfs.kernel.direct.wire.requests import Init

_WISHES = Wishes(
    wanted=InitFlag.ASYNC_READ
    | InitFlag.PARALLEL_DIROPS
    | InitFlag.MAX_PAGES
    | InitFlag.SETXATTR_EXT
    | InitFlag.PASSTHROUGH
    | InitFlag.REQUEST_TIMEOUT,
    required=InitFlag.ASYNC_READ,
    max_write=1 << 20,
    request_timeout_s=300,
)
_BASE = InitFlag.ASYNC_READ | InitFlag.PARALLEL_DIROPS | InitFlag.MAX_PAGES

#: The minors that brought the flags of this test.
_SINCE = {
    InitFlag.SETXATTR_EXT: 33,
    InitFlag.INIT_EXT: 36,
    InitFlag.PASSTHROUGH: 40,
    InitFlag.REQUEST_TIMEOUT: 43,
}

# minor, spoken, granted beside _BASE, max_stack_depth, request_timeout
_TABLE = [
    (31, 31, [], 0, 0),
    (32, 32, [], 0, 0),
    (33, 33, ["SETXATTR_EXT"], 0, 0),
    (34, 34, ["SETXATTR_EXT"], 0, 0),
    (35, 35, ["SETXATTR_EXT"], 0, 0),
    (36, 36, ["SETXATTR_EXT", "INIT_EXT"], 0, 0),
    (37, 37, ["SETXATTR_EXT", "INIT_EXT"], 0, 0),
    (38, 38, ["SETXATTR_EXT", "INIT_EXT"], 0, 0),
    (39, 39, ["SETXATTR_EXT", "INIT_EXT"], 0, 0),
    (40, 40, ["SETXATTR_EXT", "INIT_EXT", "PASSTHROUGH"], 1, 0),
    (41, 41, ["SETXATTR_EXT", "INIT_EXT", "PASSTHROUGH"], 1, 0),
    (42, 42, ["SETXATTR_EXT", "INIT_EXT", "PASSTHROUGH"], 1, 0),
    (43, 43, ["SETXATTR_EXT", "INIT_EXT", "PASSTHROUGH", "REQUEST_TIMEOUT"], 1, 300),
    (44, 44, ["SETXATTR_EXT", "INIT_EXT", "PASSTHROUGH", "REQUEST_TIMEOUT"], 1, 300),
    (45, 45, ["SETXATTR_EXT", "INIT_EXT", "PASSTHROUGH", "REQUEST_TIMEOUT"], 1, 300),
    (46, 45, ["SETXATTR_EXT", "INIT_EXT", "PASSTHROUGH", "REQUEST_TIMEOUT"], 1, 300),
]


def _kernel(minor: int, max_readahead: int = 128 << 10) -> Init:
    """A kernel offers what its minor has, and things that nobody asked for."""
    offered = _BASE | InitFlag.WRITEBACK_CACHE | InitFlag.POSIX_ACL
    for flag, since in _SINCE.items():
        if minor >= since:
            offered |= flag
    return Init(7, minor, max_readahead, int(offered) | (1 << 63 if minor > 45 else 0))


@pytest.mark.parametrize(("minor", "spoken", "granted", "depth", "timeout_s"), _TABLE)
def test_every_minor(minor: int, spoken: int, granted: list[str], depth: int, timeout_s: int) -> None:
    """The lower minor is spoken, what both want is granted, and a field is 0 before the minor that has it."""
    agreed = negotiate(_kernel(minor), _WISHES)
    assert agreed is not None
    assert (agreed.minor, agreed.max_readahead) == (spoken, 128 << 10)

    sent = handshake.accepted(agreed)
    assert len(sent) == 64
    fields = by_name(layouts.INIT_OUT, sent)
    expected = _BASE
    for name in granted:
        expected |= InitFlag[name]
    assert InitFlag(fields["flags"] | fields["flags2"] << 32) == expected
    assert (fields["major"], fields["minor"]) == (7, spoken)
    assert (fields["max_stack_depth"], fields["request_timeout"]) == (depth, timeout_s)
    assert (fields["max_write"], fields["max_pages"], fields["map_alignment"]) == (1 << 20, 256, 0)
    assert (fields["max_background"], fields["congestion_threshold"], fields["time_gran"]) == (64, 48, 1)
    assert fields["max_readahead"] == 128 << 10


@pytest.mark.parametrize(("major", "minor"), [(7, 30), (7, 0), (6, 45), (0, 0)])
def test_older_kernels_are_refused(major: int, minor: int) -> None:
    """The message names both versions."""
    with pytest.raises(Unsupported, match=rf"version {major}\.{minor} .* 7\.31"):
        negotiate(Init(major, minor, 0, -1 & (1 << 64) - 1), _WISHES)


def test_a_later_major_asks_again() -> None:
    """A kernel of version 8 is told 7, and nothing of what it said counts."""
    assert negotiate(Init(8, 0, 0, 0), _WISHES) is None
    fields = by_name(layouts.INIT_OUT, handshake.again())
    assert (fields.pop("major"), fields.pop("minor")) == (7, 45)
    assert not any(fields.values())


def test_what_is_required_must_be_offered() -> None:
    """The message names what is missing, and only that."""
    wishes = replace(_WISHES, required=InitFlag.ASYNC_READ | InitFlag.PASSTHROUGH | InitFlag.HAS_RESEND)
    with pytest.raises(Unsupported, match="does not offer PASSTHROUGH, HAS_RESEND:"):
        negotiate(_kernel(39), wishes)


def test_limits_without_max_pages() -> None:
    """Without MAX_PAGES a request has 32 pages, and the buffer follows."""
    agreed = negotiate(Init(7, 31, 1 << 30, int(InitFlag.ASYNC_READ)), _WISHES)
    assert agreed is not None
    assert (agreed.max_write, agreed.max_pages) == (32 * 4096, 0)
    assert agreed.max_readahead == _WISHES.max_readahead
    assert agreed.buffer_size >= agreed.max_write + layouts.IN_HEADER.size + layouts.WRITE_IN.size


@pytest.mark.parametrize(
    ("max_write", "page", "agreed_write", "pages"),
    [
        (1 << 20, 4096, 1 << 20, 256),
        (1 << 20, 65536, 1 << 20, 16),
        (5000, 4096, 5000, 2),
        (1, 4096, 4096, 1),
        (1 << 30, 4096, 65535 * 4096, 65535),
    ],
)
def test_pages(max_write: int, page: int, agreed_write: int, pages: int) -> None:
    """As many pages as the writes need, at least one and at most what the field holds."""
    agreed = negotiate(_kernel(45), replace(_WISHES, max_write=max_write, page_size=page))
    assert agreed is not None
    assert (agreed.max_write, agreed.max_pages) == (agreed_write, pages)
    assert agreed.buffer_size >= 8192
    assert len(handshake.accepted(agreed)) == 64


def test_flags_go_with_their_fields() -> None:
    """PASSTHROUGH without a depth, or a timeout of 0, is not granted: the kernel would refuse the session."""
    agreed = negotiate(_kernel(45), replace(_WISHES, max_stack_depth=0, request_timeout_s=0))
    assert agreed is not None
    assert not agreed.flags & (InitFlag.PASSTHROUGH | InitFlag.REQUEST_TIMEOUT)
    unwanted = negotiate(_kernel(45), replace(_WISHES, wanted=InitFlag.ASYNC_READ))
    assert unwanted is not None
    assert (unwanted.max_stack_depth, unwanted.request_timeout_s) == (0, 0)
