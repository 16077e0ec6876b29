"""The table of requests over a played file system: what of an answer is the table's own."""

from __future__ import annotations

import errno
import os
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from volfs.errors import StoreError
from volfs.fs.handles import Opened
from volfs.fs.vfs import Caller, Vfs
from volfs.kernel.direct.operations import Operations
from volfs.kernel.direct.session import Refused
from volfs.kernel.direct.wire import layouts
from volfs.kernel.direct.wire.flags import Fopen
from volfs.kernel.direct.wire.opcodes import Opcode
from volfs.kernel.direct.wire.requests import Getxattr, Open, Request


class Played:
    """Opens all, and has one attribute."""

    def __init__(self, *, keep_cache: bool = True, fails: Exception | None = None) -> None:
        self.volume = SimpleNamespace(operations=Counter(), errors=0)
        self.keep_cache = keep_cache
        self.fails = fails

    async def open(self, number: int, flags: int, caller: Caller) -> Opened:
        if self.fails is not None:
            raise self.fails
        return Opened(7, self.keep_cache)

    async def getxattr(self, number: int, name: bytes, caller: Caller) -> bytes:
        return b"value"


async def _ask(vfs: Played, opcode: int, body: Any) -> bytes:
    answer = await Operations(cast(Vfs, vfs)).answer(Request(opcode, 1, 2, 0, 0, 3, body))
    return b"".join(answer)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("access", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR])
async def test_flags_of_an_open(keep: bool, access: int) -> None:
    """Pages stay if nothing changed, and only who may write is asked at its close."""
    said = await _ask(Played(keep_cache=keep), Opcode.OPEN, Open(access, 0))
    handle, flags, backing = layouts.OPEN_OUT.struct.unpack(said)
    assert (handle, backing) == (7, 0)
    assert bool(flags & Fopen.KEEP_CACHE) is keep
    assert bool(flags & Fopen.NOFLUSH) is (access == os.O_RDONLY)


async def test_the_size_of_an_attribute() -> None:
    """Its size if that is asked for, the value if there is room, else ERANGE."""
    vfs = Played()
    assert await _ask(vfs, Opcode.GETXATTR, Getxattr(0, b"user.a")) == layouts.GETXATTR_OUT.struct.pack(5)
    assert await _ask(vfs, Opcode.GETXATTR, Getxattr(5, b"user.a")) == b"value"
    with pytest.raises(Refused) as refused:
        await _ask(vfs, Opcode.GETXATTR, Getxattr(4, b"user.a"))
    assert refused.value.errno == errno.ERANGE
    assert vfs.volume.operations["getxattr"] == 3


@pytest.mark.parametrize(
    ("error", "number", "counted"),
    [(StoreError("full", errno=errno.EDQUOT), errno.EDQUOT, 0), (RuntimeError("broken"), errno.EIO, 1)],
)
async def test_what_fails(error: Exception, number: int, counted: int) -> None:
    """The true errno of what is known; what is not is EIO, and counted."""
    vfs = Played(fails=error)
    with pytest.raises(Refused) as refused:
        await _ask(vfs, Opcode.OPEN, Open(os.O_RDONLY, 0))
    assert (refused.value.errno, vfs.volume.errors) == (number, counted)


@pytest.mark.parametrize("opcode", [Opcode.FALLOCATE, Opcode.LSEEK, Opcode.STATX, Opcode.IOCTL, 4711])
async def test_what_is_not_there(opcode: int) -> None:
    """ENOSYS, so that the kernel does without."""
    with pytest.raises(Refused) as refused:
        await _ask(Played(), opcode, None)
    assert refused.value.errno == errno.ENOSYS
