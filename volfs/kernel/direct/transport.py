"""The transport that speaks the kernel's protocol itself: device, INIT, session, notifications, together.

*Concurrency:* as `kernel.transport` says. A write of the device may come from any thread.

*Invariants:* a mount that somebody else took away is not taken away again: its place may be another's. The
device's number is not used again in this process.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

import structlog

from volfs.config import MountConfig
from volfs.errors import SetupError
from volfs.fs.vfs import Vfs
from volfs.kernel import mounts
from volfs.kernel.direct import device
from volfs.kernel.direct.operations import Operations
from volfs.kernel.direct.session import Session
from volfs.kernel.direct.wire import handshake, notices
from volfs.kernel.direct.wire.decode import decode
from volfs.kernel.direct.wire.encode import reply
from volfs.kernel.direct.wire.flags import MIN_READ_BUFFER, InitFlag
from volfs.kernel.transport import REQUESTS_AT_ONCE
from volfs.kernel.tuning import MAX_BACKGROUND, READ_AHEAD_KIB

__all__ = ["Direct", "DirectSender"]

log = structlog.get_logger(__name__)

#: What libfuse asks for, too. READDIRPLUS always: what a listing shows is known then (R1).
_WISHES: Final = handshake.Wishes(
    wanted=InitFlag.ASYNC_READ
    | InitFlag.ATOMIC_O_TRUNC
    | InitFlag.BIG_WRITES
    | InitFlag.AUTO_INVAL_DATA
    | InitFlag.ASYNC_DIO
    | InitFlag.MAX_PAGES,
    required=InitFlag.DO_READDIRPLUS,
    max_readahead=READ_AHEAD_KIB << 10,
    max_background=MAX_BACKGROUND,
)


class Direct:
    """`kernel.transport.Transport`."""

    name = "direct"

    def __init__(self, config: MountConfig) -> None:
        self._config = config
        self._device = -1
        self._session: Session | None = None

    @property
    def sender(self) -> DirectSender:
        return DirectSender(self._device)

    def mount(self, vfs: Vfs) -> None:
        config = self._config
        self._device = device.mount(
            config.mountpoint,
            b"volfs:" + os.fsencode(config.backing),
            allow_other=config.allow_other,
            read_only=config.read_only,
        )
        try:
            agreed = self._shake_hands()
        except BaseException:
            self.close(unmount=True)
            raise
        os.set_blocking(self._device, False)
        log.info("kernel", minor=agreed.minor, max_write=agreed.max_write, flags=agreed.flags.name)
        self._session = Session(self._device, Operations(vfs).answer, agreed.buffer_size, REQUESTS_AT_ONCE)

    def _shake_hands(self) -> handshake.Agreed:
        """INIT waits in the device as soon as there is a mount."""
        while True:
            try:
                request = decode(memoryview(os.read(self._device, MIN_READ_BUFFER)))
            except OSError as error:
                raise SetupError(
                    f"the mount at {self._config.mountpoint} was taken away before it began "
                    f"({os.strerror(error.errno or 0)}): mount again"
                ) from error
            try:
                agreed = handshake.negotiate(request.body, _WISHES)
            except handshake.Unsupported as error:
                raise SetupError(f"cannot mount at {self._config.mountpoint}: {error}") from error
            said = handshake.again() if agreed is None else handshake.accepted(agreed)
            os.writev(self._device, reply(request.unique, said))
            if agreed is not None:
                return agreed

    async def serve(self) -> None:
        assert self._session is not None
        await self._session.run()

    def end(self) -> None:
        if self._session is not None:
            self._session.end()

    def close(self, *, unmount: bool) -> None:
        gone = self._session is not None and self._session.over
        if unmount and not gone:
            with suppress(OSError):  # somebody else was faster
                mounts.unmount(self._config.mountpoint, lazy=True)
        # Not closed alone: the notifier's thread may be about to write to the number, which must not become
        # another file's.
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nowhere, self._device, inheritable=False)
        os.close(nowhere)


class DirectSender:
    """`kernel.notify.Sender`: blocking writes of the device."""

    def __init__(self, device: int) -> None:
        self._device = device

    def content(self, number: int) -> None:
        os.writev(self._device, notices.inval_inode(number))

    def attributes(self, number: int) -> None:
        os.writev(self._device, notices.inval_inode(number, -1))

    def entry(self, parent: int, name: bytes, deleted: int) -> None:
        said = notices.delete(parent, deleted, name) if deleted else notices.inval_entry(parent, name)
        os.writev(self._device, said)
