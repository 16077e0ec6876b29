"""INIT: which protocol is spoken, what both sides can do, and the limits of the session.

`negotiate` decides, `accepted` and `again` are the part of the reply. What to
wish for is the session's.

The rules are those of the header's comment on its version and of libfuse: the
lower of the two minors is spoken; the kernel offers flags and the daemon grants
a subset; of another major version only its number is understood.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from volfs.kernel.direct.wire import layouts
from volfs.kernel.direct.wire.flags import MAJOR, MIN_READ_BUFFER, MINOR, OLDEST_MINOR, InitFlag
from volfs.kernel.direct.wire.requests import Init

__all__ = ["Agreed", "Unsupported", "Wishes", "accepted", "again", "negotiate"]

#: Pages of a request without MAX_PAGES, and the most that the field can say with it.
_DEFAULT_PAGES: Final = 32
_MOST_PAGES: Final = (1 << 16) - 1

#: Room for the header, the structure and the names in front of the data of a request.
_HEAD_ROOM: Final = 4096

#: The minors that gave the reply these fields; before, they must be 0.
_STACK_DEPTH_SINCE: Final = 40
_REQUEST_TIMEOUT_SINCE: Final = 43

_LOW: Final = (1 << 32) - 1
_NONE: Final = InitFlag(0)


class Unsupported(Exception):
    """No session with this kernel: its protocol is too old, or lacks what is required."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the daemon would like. Sizes in bytes."""

    wanted: InitFlag
    required: InitFlag = _NONE
    max_readahead: int = 4 << 20
    max_write: int = 1 << 20
    max_background: int = 64
    time_gran_ns: int = 1
    max_stack_depth: int = (
        1  #: file systems that a backing file of PASSTHROUGH may be made of, one upon another
    )
    request_timeout_s: int = 0  #: 0: a request may take any time
    page_size: int = 4096


@dataclass(frozen=True, slots=True)
class Agreed:
    """What both sides keep to."""

    minor: int
    flags: InitFlag
    max_readahead: int
    max_write: int
    max_pages: int  #: 0 without MAX_PAGES
    max_background: int
    time_gran_ns: int
    max_stack_depth: int  #: 0 without PASSTHROUGH
    request_timeout_s: int  #: 0 without REQUEST_TIMEOUT

    @property
    def buffer_size(self) -> int:
        """What each read of the device must have room for, in bytes."""
        return max(MIN_READ_BUFFER, self.max_write + _HEAD_ROOM)


def negotiate(kernel: Init, wishes: Wishes) -> Agreed | None:
    """What is agreed on; None if the kernel must first ask `again` with the major version spoken here.

    Raises Unsupported, with what is missing.
    """
    if kernel.major > MAJOR:
        return None
    if kernel.major < MAJOR or kernel.minor < OLDEST_MINOR:
        raise Unsupported(
            f"the kernel speaks version {kernel.major}.{kernel.minor} of the FUSE protocol, at least "
            f"{MAJOR}.{OLDEST_MINOR} (Linux 5.4) is needed: use a newer kernel"
        )
    minor = min(kernel.minor, MINOR)
    offered = InitFlag(kernel.flags)
    missing = wishes.required & ~offered
    if missing:
        raise Unsupported(
            f"the kernel does not offer {', '.join(str(flag.name) for flag in missing)}: use a newer kernel"
        )
    granted = (wishes.wanted | wishes.required) & offered
    # Says that the reply's flags2 is meant.
    granted |= offered & InitFlag.INIT_EXT
    page = wishes.page_size
    pages = max(1, min(-(-wishes.max_write // page), _MOST_PAGES))
    if InitFlag.MAX_PAGES not in granted:
        pages = min(pages, _DEFAULT_PAGES)
    depth = wishes.max_stack_depth if minor >= _STACK_DEPTH_SINCE else 0
    if not depth:
        granted &= ~InitFlag.PASSTHROUGH
    timeout_s = wishes.request_timeout_s if minor >= _REQUEST_TIMEOUT_SINCE else 0
    if not timeout_s:
        granted &= ~InitFlag.REQUEST_TIMEOUT
    return Agreed(
        minor=minor,
        flags=granted,
        max_readahead=min(kernel.max_readahead, wishes.max_readahead),
        max_write=max(page, min(wishes.max_write, pages * page)),
        max_pages=pages if InitFlag.MAX_PAGES in granted else 0,
        max_background=wishes.max_background,
        time_gran_ns=wishes.time_gran_ns,
        max_stack_depth=depth if InitFlag.PASSTHROUGH in granted else 0,
        request_timeout_s=timeout_s if InitFlag.REQUEST_TIMEOUT in granted else 0,
    )


def accepted(agreed: Agreed) -> bytes:
    """The part of the reply to an INIT that was agreed on: 64 bytes for every minor since 7.23."""
    return layouts.INIT_OUT.struct.pack(
        MAJOR,
        agreed.minor,
        agreed.max_readahead,
        agreed.flags & _LOW,
        agreed.max_background,
        # Above it the kernel takes the device for congested: the share of libfuse and of the kernel itself.
        agreed.max_background * 3 // 4,
        agreed.max_write,
        agreed.time_gran_ns,
        agreed.max_pages,
        0,
        agreed.flags >> 32,
        agreed.max_stack_depth,
        agreed.request_timeout_s,
    )


def again() -> bytes:
    """The part of the reply to an INIT of a later major version: the one spoken here, for a second INIT."""
    return layouts.INIT_OUT.struct.pack(MAJOR, MINOR, *(0 for _ in layouts.INIT_OUT.fields[2:]))
