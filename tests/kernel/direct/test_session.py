"""The session over a pair of sockets that stands for the device: whatever comes, each request is answered."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from volfs.kernel.direct.session import Refused, Session
from volfs.kernel.direct.wire import layouts
from volfs.kernel.direct.wire.encode import Buffer
from volfs.kernel.direct.wire.opcodes import Opcode
from volfs.kernel.direct.wire.requests import Request

_SIZE = 64 << 10

Answer = Callable[[Request[Any]], Awaitable[Sequence[Buffer]]]


class Kernel:
    """The other end of the device."""

    def __init__(self, end: socket.socket) -> None:
        self._end = trio.socket.from_stdlib_socket(end)

    async def ask(self, opcode: int, unique: int, body: bytes = b"") -> None:
        head = layouts.IN_HEADER.struct.pack(
            layouts.IN_HEADER.size + len(body), opcode, unique, 1, 0, 0, 0, 0
        )
        await self._end.send(head + body)

    def ask_at_once(self, uniques: Iterable[int]) -> None:
        """LOOKUP requests, without a pause in which any of them could be answered."""
        for unique in uniques:
            size = layouts.IN_HEADER.size + 2
            head = layouts.IN_HEADER.struct.pack(size, Opcode.LOOKUP, unique, 1, 0, 0, 0, 0)
            os.write(self._end.fileno(), head + b"n\0")

    async def send(self, message: bytes) -> None:
        await self._end.send(message)

    async def answer(self) -> tuple[int, int, bytes]:
        """(unique, errno, part)"""
        with trio.fail_after(20):
            said = await self._end.recv(_SIZE)
        length, number, unique = layouts.OUT_HEADER.struct.unpack_from(said)
        assert length == len(said)
        return unique, -number, said[layouts.OUT_HEADER.size :]

    def close(self) -> None:
        self._end.close()


@asynccontextmanager
async def serving(answer: Answer, workers: int = 8) -> AsyncIterator[tuple[Kernel, Session]]:
    """A session at work; its end is awaited."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    kernel = Kernel(theirs)
    with ours:
        session = Session(ours.fileno(), answer, _SIZE, workers)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.run)
            try:
                yield kernel, session
            finally:
                kernel.close()
            nursery.cancel_scope.deadline = trio.current_time() + 20
        assert not nursery.cancel_scope.cancelled_caught, "the session did not end"


async def _name(request: Request[Any]) -> Sequence[Buffer]:
    """LOOKUP is answered with the name, STATFS not at all."""
    if request.opcode != Opcode.LOOKUP:
        raise Refused(errno.ENOSYS)
    return (b"<", request.body, b">")


async def test_requests_are_answered_in_their_turn() -> None:
    """More requests than a leader takes in a row are answered, in their order."""
    async with serving(_name) as (kernel, _):
        for unique in range(1, 101):
            await kernel.ask(Opcode.LOOKUP, unique, b"n%d\0" % unique)
            assert await kernel.answer() == (unique, 0, b"<n%d>" % unique)


async def test_a_request_that_waits_holds_up_no_other() -> None:
    """While some wait, each in turn, the device is read on; they are answered when they can be."""
    events = {unique: trio.Event() for unique in range(1, 21)}

    async def waits(request: Request[Any]) -> Sequence[Buffer]:
        if request.unique in events:
            await events[request.unique].wait()
        return await _name(request)

    async with serving(waits, workers=32) as (kernel, _):
        for unique in events:
            await kernel.ask(Opcode.LOOKUP, unique, b"late\0")
            await kernel.ask(Opcode.LOOKUP, 1000 + unique, b"soon\0")
            assert await kernel.answer() == (1000 + unique, 0, b"<soon>")
        for unique in reversed(events):
            events[unique].set()
            assert await kernel.answer() == (unique, 0, b"<late>")


async def test_at_most_so_many_at_once() -> None:
    """When all workers wait, the next request waits in the device, and whoever is free first takes it."""
    going, most, release = 0, 0, trio.Semaphore(0)

    async def waits(request: Request[Any]) -> Sequence[Buffer]:
        nonlocal going, most
        going += 1
        most = max(most, going)
        await release.acquire()
        going -= 1
        return await _name(request)

    async with serving(waits, workers=3) as (kernel, _):
        for unique in range(1, 11):
            await kernel.ask(Opcode.LOOKUP, unique, b"n\0")
        await trio.testing.wait_all_tasks_blocked()
        assert going == 3
        for _ in range(10):
            release.release()
        assert sorted([(await kernel.answer())[0] for _ in range(10)]) == list(range(1, 11))
    assert most == 3


async def test_data_stays_while_its_request_waits() -> None:
    """What a WRITE brought is not overwritten by the requests that are read after it."""
    go, seen = trio.Event(), []

    async def writes(request: Request[Any]) -> Sequence[Buffer]:
        await go.wait()
        seen.append(bytes(request.body.data))
        return ()

    contents = [bytes([letter]) * 5000 for letter in b"abcd"]
    async with serving(writes) as (kernel, _):
        for unique, content in enumerate(contents, 1):
            fields = dict.fromkeys(layouts.WRITE_IN.fields, 0) | {"size": len(content)}
            await kernel.ask(Opcode.WRITE, unique, layouts.WRITE_IN.struct.pack(*fields.values()) + content)
        await trio.testing.wait_all_tasks_blocked()
        go.set()
        for _ in contents:
            await kernel.answer()
    assert sorted(seen) == contents


async def test_scopes_and_locks_of_a_request_are_its_own() -> None:
    """A request may wait within a scope that it entered before its first pause, and hold a lock meanwhile."""
    lock = trio.Lock()

    async def locks(request: Request[Any]) -> Sequence[Buffer]:
        with trio.move_on_after(0.01) as scope:
            async with lock:
                await trio.sleep_forever()
        assert scope.cancelled_caught
        return await _name(request)

    async with serving(locks) as (kernel, _):
        for unique in (1, 2, 3):
            await kernel.ask(Opcode.LOOKUP, unique, b"n\0")
        assert sorted([(await kernel.answer())[0] for _ in range(3)]) == [1, 2, 3]


@pytest.mark.parametrize("pauses", [False, True])
async def test_a_failure_is_an_answer(pauses: bool) -> None:
    """What a handler raises, at once or later, ends its request with an errno, and nothing else."""

    async def fails(request: Request[Any]) -> Sequence[Buffer]:
        if pauses:
            await trio.lowlevel.checkpoint()
        if request.body == b"refused":
            raise Refused(errno.EDQUOT)
        if request.body == b"broken":
            raise RuntimeError("broken")
        return await _name(request)

    async with serving(fails) as (kernel, _):
        for unique, (name, number) in enumerate(
            [(b"refused", errno.EDQUOT), (b"broken", errno.EIO), (b"fine", 0)], 1
        ):
            await kernel.ask(Opcode.LOOKUP, unique, name + b"\0")
            assert (await kernel.answer())[:2] == (unique, number)


async def test_what_is_no_request() -> None:
    """Bytes that cannot be understood are answered EIO where they have a number, and the session goes on."""
    async with serving(_name) as (kernel, _):
        await kernel.send(b"?")
        await kernel.send(struct.pack("=IIQ", 16, Opcode.LOOKUP, 7))
        assert await kernel.answer() == (7, errno.EIO, b"")
        await kernel.ask(Opcode.LOOKUP, 8, b"no end")
        assert await kernel.answer() == (8, errno.EIO, b"")
        await kernel.ask(4711, 9, b"from a later kernel")
        assert await kernel.answer() == (9, errno.ENOSYS, b"")
        await kernel.ask(Opcode.LOOKUP, 10, b"n\0")
        assert await kernel.answer() == (10, 0, b"<n>")


async def test_what_wants_no_answer_gets_none() -> None:
    """FORGET and INTERRUPT are taken, and the next answer is another's."""
    async with serving(_name) as (kernel, _):
        await kernel.ask(Opcode.FORGET, 0, layouts.FORGET_IN.struct.pack(3))
        await kernel.ask(Opcode.INTERRUPT, 1, layouts.INTERRUPT_IN.struct.pack(2))
        await kernel.ask(Opcode.LOOKUP, 2, b"n\0")
        assert await kernel.answer() == (2, 0, b"<n>")


async def test_others_get_their_turn() -> None:
    """However many requests wait in the device, another task runs between a few of them."""
    turn, seen = 0, set()

    async def counts() -> None:
        nonlocal turn
        while True:
            turn += 1
            await trio.lowlevel.checkpoint()

    async def notes(request: Request[Any]) -> Sequence[Buffer]:
        seen.add(turn)
        return await _name(request)

    async with serving(notes) as (kernel, _), trio.open_nursery() as nursery:
        nursery.start_soon(counts)
        kernel.ask_at_once(range(1, 201))
        for _ in range(200):
            await kernel.answer()
        assert len(seen) >= 3
        nursery.cancel_scope.cancel()


async def test_idle_workers_are_few() -> None:
    """After many requests at once most of their workers end."""
    go = trio.Event()

    async def waits(request: Request[Any]) -> Sequence[Buffer]:
        await go.wait()
        return await _name(request)

    async with serving(waits, workers=100) as (kernel, _):
        await trio.testing.wait_all_tasks_blocked()
        before = trio.lowlevel.current_statistics().tasks_living
        for unique in range(1, 81):
            await kernel.ask(Opcode.LOOKUP, unique, b"n\0")
        await trio.testing.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living == before + 80
        go.set()
        for _ in range(80):
            await kernel.answer()
        await trio.testing.wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living <= before + 16


@pytest.mark.parametrize("number", [errno.ENOENT, errno.EINTR])
async def test_a_request_that_is_gone_before_it_is_read(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device says so, and the next read brings the next request."""
    failures, readv = [OSError(number, "gone")], os.readv

    def reads(fd: int, buffers: list[memoryview]) -> int:
        if failures:
            raise failures.pop()
        return readv(fd, buffers)

    monkeypatch.setattr(os, "readv", reads)
    async with serving(_name) as (kernel, _):
        await kernel.ask(Opcode.LOOKUP, 1, b"n\0")
        assert await kernel.answer() == (1, 0, b"<n>")
    assert not failures


async def test_an_answer_that_is_refused() -> None:
    """Whoever waits gets EIO if the kernel does not take the answer."""

    async def answers(request: Request[Any]) -> Sequence[Buffer]:
        return (bytes(8 << 20),)

    async with serving(answers) as (kernel, _):
        await kernel.ask(Opcode.LOOKUP, 1, b"n\0")
        assert await kernel.answer() == (1, errno.EIO, b"")


async def test_the_end_does_not_wait_for_requests() -> None:
    """`end` returns from `run` with requests under way, leaders and idle workers alike."""

    async def waits(request: Request[Any]) -> Sequence[Buffer]:
        await trio.sleep_forever()
        return ()

    async with serving(waits) as (kernel, session):
        for unique in range(1, 4):
            await kernel.ask(Opcode.LOOKUP, unique, b"n\0")
        await trio.testing.wait_all_tasks_blocked()
        session.end()
    assert not session.over


async def test_a_mount_that_is_gone_ends_the_session() -> None:
    """Once the device says so, `run` returns as soon as what is under way has ended; no worker stays."""
    go, ended = trio.Event(), []

    async def waits(request: Request[Any]) -> Sequence[Buffer]:
        await go.wait()
        ended.append(request.unique)
        return ()

    async with serving(waits) as (kernel, session):
        for unique in range(1, 6):
            await kernel.ask(Opcode.LOOKUP, unique, b"n\0")
        await trio.testing.wait_all_tasks_blocked()
        kernel.close()
        await trio.testing.wait_all_tasks_blocked()
        assert session.over
        go.set()
    assert sorted(ended) == [1, 2, 3, 4, 5]
