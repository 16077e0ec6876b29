"""The session: requests are read from the device, each is answered by a task, nothing ends it but its end.

Workers take turns. One of them, the leader, reads the device; the others work on a
request that waits for something, or are idle. A leader works on what it read by
itself, and most requests are answered without a pause: then it reads on, and no
task was switched. At the first pause of a request another worker becomes the
leader, so that the device is always listened to. (The pattern is "leader/followers":
Schmidt and others, Pattern-Oriented Software Architecture, volume 2.)

It does not know what requests mean. INTERRUPT is not acted on: what was begun for a
request is finished, as a commit must be.

*Concurrency:* the trio thread. What a request brings lies in its worker's buffer and
is valid until it has been answered.

*Invariants:* every request that wants an answer gets one, and only one; bytes that
are no request, and exceptions, are answered with EIO.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from types import coroutine
from typing import Any, Final

import structlog
import trio

from volfs.kernel.direct.wire.decode import Malformed, decode
from volfs.kernel.direct.wire.encode import Buffer, error, reply
from volfs.kernel.direct.wire.opcodes import UNANSWERED
from volfs.kernel.direct.wire.requests import Request

__all__ = ["Answer", "Refused", "Session"]

log = structlog.get_logger(__name__)

#: The part of a reply that a request asks for, or nothing.
Answer = Callable[[Request[Any]], Awaitable[Sequence[Buffer]]]

#: The device, once the mount is gone or its connection was aborted.
_GONE: Final = frozenset({errno.ENODEV, errno.ECONNABORTED, errno.ENOTCONN, errno.EPIPE})

#: Requests in a row without a pause; then other tasks have their turn.
_ROW: Final = 32

#: Idle workers that are kept, with their buffers.
_KEPT: Final = 16


class Refused(Exception):
    """The request is answered with this errno."""

    def __init__(self, number: int) -> None:
        super().__init__(os.strerror(number))
        self.errno = number


class Session:
    """`device` does not block. `buffer_size`: what each read of it must have room for, in bytes."""

    def __init__(self, device: int, answer: Answer, buffer_size: int, workers: int) -> None:
        self._device = device
        self._answer = answer
        self._buffer_size = buffer_size
        self._most = workers
        self._workers = 0
        self._idle = trio.lowlevel.ParkingLot()
        self._led = False  # somebody reads the device, or was just told to
        self._over = False  # the mount is gone
        self._tasks: trio.Nursery | None = None

    @property
    def over(self) -> bool:
        """Whether the kernel said that the mount is gone."""
        return self._over

    async def run(self) -> None:
        """Until the mount is gone and what is under way has ended, or `end`."""
        async with trio.open_nursery() as tasks:
            self._tasks = tasks
            self._lead_on()

    def end(self) -> None:
        """Stop at once, whatever is under way."""
        if self._tasks is not None:
            self._tasks.cancel_scope.cancel()

    # -- workers -----------------------------------------------------------------

    def _lead_on(self) -> None:
        """Somebody who is free becomes the leader; if nobody is, who gets free first."""
        self._led = True
        if self._idle:
            self._idle.unpark()
        elif self._workers < self._most:
            assert self._tasks is not None
            self._workers += 1
            self._tasks.start_soon(self._work)
        else:
            self._led = False

    async def _work(self) -> None:
        """A worker begins as the leader."""
        buffer = memoryview(mmap.mmap(-1, self._buffer_size))
        leads = True
        while not self._over:
            if not leads and self._led:
                if len(self._idle) >= _KEPT:
                    break
                await self._idle.park()
                leads = True  # or the mount is gone
                continue
            self._led = True
            leads = await self._lead(buffer)
        self._workers -= 1
        if self._over:
            self._idle.unpark_all()

    async def _lead(self, buffer: memoryview) -> bool:
        """Read requests and work on them; False after one that paused, as another worker leads then."""
        for _ in range(_ROW):
            size = await self._read(buffer)
            if not size:
                return True
            if not await self._finish(self._take(buffer[:size])):
                return False
        await trio.lowlevel.checkpoint()
        return True

    async def _read(self, buffer: memoryview) -> int:
        """The size of the next request; 0: the mount is gone."""
        while True:
            try:
                size = os.readv(self._device, [buffer])
                self._over = not size
                return size
            except BlockingIOError:
                await trio.lowlevel.wait_readable(self._device)
            except OSError as failed:
                if failed.errno in _GONE:
                    self._over = True
                    return 0
                # ENOENT: the request that was to be read is not wanted any more.
                if failed.errno not in (errno.ENOENT, errno.EINTR):
                    raise

    @coroutine
    def _finish(self, work: Coroutine[Any, Any, None]) -> Generator[Any, Any, bool]:
        """Run it in this task; whether it did so without a pause. At its first, another worker leads."""
        try:
            waits = work.send(None)
        except StopIteration:
            return True
        self._lead_on()
        while True:
            try:
                try:
                    comes = yield waits
                except BaseException as thrown:
                    waits = work.throw(thrown)
                else:
                    waits = work.send(comes)
            except StopIteration:
                return False

    # -- requests ----------------------------------------------------------------

    async def _take(self, message: memoryview) -> None:
        """From a request's bytes to its answer."""
        try:
            request = decode(message)
        except Malformed as malformed:
            log.error("the kernel sent what is no request", error=str(malformed))
            if malformed.unique is not None:
                self._send([error(malformed.unique, errno.EIO)])
            return
        answered = request.opcode not in UNANSWERED
        try:
            said = reply(request.unique, *await self._answer(request))
        except Refused as refused:
            said = [error(request.unique, refused.errno)]
        except Exception:
            log.exception("a request failed unexpectedly", opcode=request.opcode)
            said = [error(request.unique, errno.EIO)]
        if answered and not self._send(said):
            self._send([error(request.unique, errno.EIO)])

    def _send(self, message: Sequence[Buffer]) -> bool:
        """Answer; False if the kernel does not take it for an answer."""
        try:
            os.writev(self._device, message)
        except OSError as failed:
            # ENOENT: who asked was killed.
            if failed.errno == errno.ENOENT or failed.errno in _GONE:
                return True
            log.error("the kernel refused an answer", error=str(failed))
            return False
        return True
