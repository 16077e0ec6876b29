"""Programs on the hosts: what they open, write, read, rename and remove, told to the oracle as they do it.

A program that writes has a slot: one open file, one call at a time. What it wrote is acknowledged when fsync
returns,
or the close after which nobody on the host may write to the file (W3, W4, W6).

*Invariants:* a deed is told before its first call and returned after its last.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import trio

from tests.simulation.exact import FLAGS
from tests.simulation.host import Host
from tests.simulation.kernel import Descriptor, Kernel, Path
from tests.simulation.life import Life
from tests.simulation.oracle import Deed, Kind, Oracle, Writing
from tests.simulation.records import parse, record

__all__ = ["Programs"]

_KINDS = {
    "append": Kind.APPENDS,
    "replace": Kind.REPLACES,
    "create": Kind.APPENDS,
    "edit": Kind.EDITS,
}


@dataclass(eq=False, slots=True)
class _Open:
    """A file that a program has open for writing."""

    host: int
    life: Life
    path: Path
    how: str
    at: int
    descriptor: Descriptor
    deed: Deed
    emptied: bool = False


@dataclass(eq=False, slots=True)
class Programs:
    """See the module."""

    hosts: list[Host] = field(init=False)
    kernels: list[Kernel] = field(init=False)
    oracle: Oracle = field(init=False)
    #: One file that a program has open; a program does one thing at a time.
    slots: dict[tuple[int, int], _Open] = field(init=False, default_factory=dict)
    programs: defaultdict[tuple[int, int], trio.Lock] = field(
        init=False, default_factory=lambda: defaultdict(trio.Lock)
    )
    #: Written and not acknowledged, by host and the inode's number there.
    pending: dict[tuple[int, int], list[Writing]] = field(init=False, default_factory=dict)
    #: When the first program opened the file that made or wrote to it since its last commit: whoever writes
    #: later goes on with the same base. Keys as above.
    since: dict[tuple[int, int], int] = field(init=False, default_factory=dict)

    # -- files ---------------------------------------------------------------------

    async def save(self, host: int, path: Path, how: str) -> None:
        """Open, write one record, close."""
        file = await self._opened(host, path, how)
        try:
            await self._put(file)
        finally:
            await self._closed(file)

    async def open(self, host: int, slot: int, path: Path, how: str) -> None:
        async with self.programs[host, slot]:
            await self._open(host, slot, path, how)

    async def _open(self, host: int, slot: int, path: Path, how: str) -> _Open:
        if (host, slot) not in self.slots:
            self.slots[host, slot] = await self._opened(host, path, how)
        return self.slots[host, slot]

    async def put(self, host: int, slot: int, path: Path, how: str) -> None:
        """One more record into what the slot has open; if it has nothing open, the path is opened."""
        async with self.programs[host, slot]:
            await self._put(await self._open(host, slot, path, how))

    async def fsync(self, host: int, slot: int) -> None:
        async with self.programs[host, slot]:
            if (file := self.slots.get((host, slot))) is not None:
                some = list(self.pending.get((host, file.descriptor.number), ()))
                await self.hosts[host].perform(partial(self.kernels[host].fsync, file.descriptor))
                self._acknowledge(file, some)

    async def close(self, host: int, slot: int) -> None:
        async with self.programs[host, slot]:
            if (file := self.slots.pop((host, slot), None)) is not None:
                await self._closed(file)

    async def _opened(self, host: int, path: Path, how: str) -> _Open:
        kind = _KINDS[how]
        life, name = self.hosts[host].life, self.hosts[host].name
        deed = self.oracle.began(name, kind, path)
        try:
            descriptor = await self.hosts[host].perform(partial(self.kernels[host].open, path, FLAGS[how]))
        except BaseException:
            self.oracle.returned(deed)
            raise
        node = self.hosts[host].volume.tree.by_number.get(descriptor.number)
        if node is not None and node.dirty:
            self._wrote(host, descriptor.number, deed.start)
        return _Open(host, life, path, how, deed.start, descriptor, deed)

    def _wrote(self, host: int, number: int, opened: int) -> int:
        """A program that opened the file then made or wrote to it; when the first of those did since."""
        since = self.since[host, number] = min(opened, self.since.get((host, number), opened))
        return since

    async def _put(self, file: _Open) -> None:
        host, kernel = self.hosts[file.host], self.kernels[file.host]
        if file.how == "edit" and not file.emptied:
            await host.perform(partial(kernel.empty, file.descriptor))
            file.deed.staged = self.oracle.tick()
            file.emptied = True
        key = file.host, file.descriptor.number
        since = self._wrote(*key, file.at)
        writing = self.oracle.writes(host.name, "/".join(file.path), since)
        await host.perform(partial(kernel.append, file.descriptor, record(writing.number)))
        self.pending.setdefault(key, []).append(writing)

    async def _closed(self, file: _Open) -> None:
        if file.life is not self.hosts[file.host].life or file.life.dead:
            self.oracle.returned(file.deed)
            return
        some = list(self.pending.get((file.host, file.descriptor.number), ()))
        try:
            if await self.hosts[file.host].perform(partial(self.kernels[file.host].close, file.descriptor)):
                self._acknowledge(file, some)
            else:
                return  # others still write: the last close commits
        finally:
            self.oracle.returned(file.deed)
        self.pending.pop((file.host, file.descriptor.number), None)

    def _acknowledge(self, file: _Open, some: list[Writing]) -> None:
        waiting = self.pending.get((file.host, file.descriptor.number), [])
        for writing in some:
            writing.acknowledged = True
            if writing in waiting:
                waiting.remove(writing)
        if not waiting:
            self.pending.pop((file.host, file.descriptor.number), None)

    async def read(self, host: int, path: Path) -> tuple[int, ...]:
        kernel = self.kernels[host]

        async def call() -> bytes:
            descriptor = await kernel.open(path, os.O_RDONLY)
            try:
                return await kernel.read(descriptor)
            finally:
                await kernel.close(descriptor)

        return parse(await self.hosts[host].perform(call), f"{path} on {self.hosts[host].name}")

    async def truncate(self, host: int, path: Path) -> None:
        await self._deed(host, Kind.EDITS, path, None, partial(self.kernels[host].truncate, path))

    # -- names ---------------------------------------------------------------------

    async def unlink(self, host: int, path: Path) -> None:
        await self._deed(host, Kind.UNLINKS, path, None, partial(self.kernels[host].unlink, path))

    async def rename(self, host: int, old: Path, new: Path) -> None:
        await self._deed(host, Kind.RENAMES, new, old, partial(self.kernels[host].rename, old, new))

    async def mkdir(self, host: int, path: Path) -> None:
        await self._run(host, partial(self.kernels[host].mkdir, path))

    async def rmdir(self, host: int, path: Path) -> None:
        await self._run(host, partial(self.kernels[host].rmdir, path))

    async def list(self, host: int, path: Path) -> list[str]:
        kernel = self.kernels[host]
        return sorted(await self.hosts[host].perform(partial(kernel.list, path)))

    async def _deed(
        self, host: int, kind: Kind, path: Path, source: Path | None, call: Callable[[], Awaitable[None]]
    ) -> None:
        deed = self.oracle.began(self.hosts[host].name, kind, path, source)
        try:
            await self._run(host, call)
        finally:
            self.oracle.returned(deed)
            if kind is Kind.EDITS:
                deed.staged = self.oracle.now

    async def _run(self, host: int, call: Callable[[], Awaitable[None]]) -> None:
        await self.hosts[host].perform(lambda: _answered(call()))


async def _answered(call: Awaitable[None]) -> bool:
    await call
    return True
