"""A store that fails, waits, hangs or tears on demand: a wrapper of any store.

It owns the wrapping of everything that a store hands out; what happens to which
call is said by `fault_plan.Faults`. It does not know what is right: who plans a
fault judges what comes of it. Without a plan it is the store that it wraps, and
runs that store's contract.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from tests.store.fault_plan import Call, Faults
from volfs.core.spans import Extent
from volfs.core.versions import Version
from volfs.errors import from_os_error
from volfs.store.attributes import copy_attributes
from volfs.store.base import (
    Capacity,
    Changes,
    DirectoryReader,
    Expected,
    Filled,
    Observer,
    Owner,
    Reader,
    Stat,
    Store,
    Transfer,
    Upload,
)
from volfs.store.copying import clone_range

__all__ = ["FaultStore", "Faults"]

T = TypeVar("T")


class _Door:
    """Where every call goes through."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults

    async def _pass(
        self,
        operation: str,
        path: bytes,
        whole: Callable[[], Awaitable[T]],
        *,
        torn: Callable[[], Awaitable[T]] | None = None,
        broken: Callable[[OSError], Awaitable[T]] | None = None,
    ) -> T:
        fault = self._faults.take(operation, path)
        if fault is None:
            return await whole()
        return await fault.around(Call(operation, whole, torn, broken))


class _FaultReader(_Door):
    """`store.base.Reader`."""

    def __init__(self, faults: Faults, inner: Reader, path: bytes) -> None:
        super().__init__(faults)
        self._inner = inner
        self._path = path

    async def read(self, offset: int, size: int) -> bytes | bytearray | memoryview:
        async def half() -> bytes:
            data = bytes(await self._inner.read(offset, size))
            return data[: len(data) // 2]

        def whole() -> Awaitable[bytes | bytearray | memoryview]:
            return self._inner.read(offset, size)

        return await self._pass("reader.read", self._path, whole, torn=half)

    async def read_into(self, buffer: memoryview, offset: int) -> Filled:
        async def half() -> Filled:
            filled = await self._inner.read_into(buffer, offset)
            return filled._replace(size=filled.size // 2)

        def whole() -> Awaitable[Filled]:
            return self._inner.read_into(buffer, offset)

        return await self._pass("reader.read_into", self._path, whole, torn=half)

    async def stat(self) -> Stat:
        return await self._pass("reader.stat", self._path, self._inner.stat)

    async def change(self, changes: Changes) -> Stat:
        return await self._pass("reader.change", self._path, lambda: self._inner.change(changes))

    async def copy_to(self, target: int, size: int) -> None:
        async def half_then(error: OSError) -> None:
            await self._inner.copy_to(target, size // 2)
            raise from_os_error(error) from error

        await self._pass(
            "reader.copy_to",
            self._path,
            lambda: self._inner.copy_to(target, size),
            torn=lambda: self._inner.copy_to(target, size // 2),
            broken=half_then,
        )

    async def overwrite(self, staged: int, observe: Observer | None) -> Stat:
        return await self._pass(
            "reader.overwrite", self._path, lambda: self._inner.overwrite(staged, observe)
        )

    async def sync(self) -> None:
        await self._pass("reader.sync", self._path, self._inner.sync)

    def close(self) -> None:
        self._inner.close()


class _FaultDirectoryReader(_Door):
    """`store.base.DirectoryReader`."""

    def __init__(self, faults: Faults, inner: DirectoryReader, path: bytes) -> None:
        super().__init__(faults)
        self._inner = inner
        self._path = path

    async def names(self, most: int) -> list[bytes]:
        return await self._pass("directory.names", self._path, lambda: self._inner.names(most))

    async def stats(self, names: list[bytes]) -> list[tuple[bytes, Stat]]:
        return await self._pass("directory.stats", self._path, lambda: self._inner.stats(names))

    def close(self) -> None:
        self._inner.close()


class _FaultUpload(_Door):
    """`store.base.Upload`."""

    def __init__(self, faults: Faults, inner: Upload) -> None:
        super().__init__(faults)
        self._inner = inner

    async def show(self, path: bytes, expected: Version | Expected) -> Stat:
        return await self._pass("upload.show", path, lambda: self._inner.show(path, expected))

    def is_shown(self, st: Stat) -> bool:
        return self._inner.is_shown(st)

    def trace(self, expected: Version | Expected) -> str:
        return self._inner.trace(expected)

    def descriptor(self) -> int | None:
        return self._inner.descriptor()

    async def discard(self) -> None:
        await self._pass("upload.discard", b"", self._inner.discard)


class _FaultTransfer(_Door):
    """`store.base.Transfer`."""

    def __init__(self, faults: Faults, inner: Transfer) -> None:
        super().__init__(faults)
        self._inner = inner

    async def bring(self, extents: Sequence[Extent], observe: Observer | None) -> None:
        await self._pass("transfer.bring", b"", lambda: self._inner.bring(extents, observe))

    async def finish(self) -> Upload:
        return _FaultUpload(self._faults, await self._pass("transfer.finish", b"", self._inner.finish))

    async def discard(self) -> None:
        await self._pass("transfer.discard", b"", self._inner.discard)


class FaultStore(_Door):
    """`store.base.Store` over another one."""

    def __init__(self, inner: Store, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        super().__init__(self.faults)
        self._inner = inner
        self.local = inner.local
        self.granularity_ns = inner.granularity_ns
        self.requests = inner.requests

    @property
    def read_bytes(self) -> int:
        return self._inner.read_bytes

    @property
    def written_bytes(self) -> int:
        return self._inner.written_bytes

    def is_moved(self, st: Stat, version: Version) -> bool:
        return self._inner.is_moved(st, version)

    async def stat(self, path: bytes) -> Stat:
        return await self._pass("stat", path, lambda: self._inner.stat(path))

    async def open(self, path: bytes) -> Reader:
        reader = await self._pass("open", path, lambda: self._inner.open(path))
        return _FaultReader(self.faults, reader, path)

    async def fetch(
        self, path: bytes, most_bytes: int, known: Stat | None = None
    ) -> tuple[Stat, bytes | None]:
        async def half() -> tuple[Stat, bytes | None]:
            st, data = await self._inner.fetch(path, most_bytes, known)
            return st, data and data[: len(data) // 2]

        return await self._pass("fetch", path, lambda: self._inner.fetch(path, most_bytes, known), torn=half)

    def reader(self, fd: int) -> Reader:
        return _FaultReader(self.faults, self._inner.reader(fd), b"")

    async def scan(self, path: bytes) -> DirectoryReader:
        reader = await self._pass("scan", path, lambda: self._inner.scan(path))
        return _FaultDirectoryReader(self.faults, reader, path)

    async def readlink(self, path: bytes) -> bytes:
        return await self._pass("readlink", path, lambda: self._inner.readlink(path))

    async def mkdir(self, path: bytes, mode: int, owner: Owner) -> Stat:
        return await self._pass("mkdir", path, lambda: self._inner.mkdir(path, mode, owner))

    async def mknod(self, path: bytes, mode: int, rdev: int, owner: Owner) -> Stat:
        return await self._pass("mknod", path, lambda: self._inner.mknod(path, mode, rdev, owner))

    async def symlink(self, path: bytes, target: bytes, owner: Owner) -> Stat:
        return await self._pass("symlink", path, lambda: self._inner.symlink(path, target, owner))

    async def link(self, path: bytes, new: bytes) -> Stat:
        return await self._pass("link", new, lambda: self._inner.link(path, new))

    async def unlink(self, path: bytes) -> None:
        await self._pass("unlink", path, lambda: self._inner.unlink(path))

    async def rmdir(self, path: bytes) -> None:
        await self._pass("rmdir", path, lambda: self._inner.rmdir(path))

    async def rename(self, old: bytes, new: bytes, flags: int) -> None:
        await self._pass("rename", new, lambda: self._inner.rename(old, new, flags))

    async def change(self, path: bytes, changes: Changes) -> Stat:
        return await self._pass("change", path, lambda: self._inner.change(path, changes))

    async def getxattr(self, path: bytes, name: bytes) -> bytes:
        return await self._pass("getxattr", path, lambda: self._inner.getxattr(path, name))

    async def setxattr(self, path: bytes, name: bytes, value: bytes) -> None:
        await self._pass("setxattr", path, lambda: self._inner.setxattr(path, name, value))

    async def removexattr(self, path: bytes, name: bytes) -> None:
        await self._pass("removexattr", path, lambda: self._inner.removexattr(path, name))

    async def listxattr(self, path: bytes) -> list[bytes]:
        return await self._pass("listxattr", path, lambda: self._inner.listxattr(path))

    async def capacity(self) -> Capacity:
        return await self._pass("capacity", b"", self._inner.capacity)

    async def sync_directory(self, path: bytes) -> None:
        await self._pass("sync_directory", path, lambda: self._inner.sync_directory(path))

    async def upload(
        self,
        staged: int,
        name: str | None,
        *,
        durable: bool,
        observe: Observer | None,
        replaces: bool = False,
    ) -> Upload:
        async def half() -> Upload:
            """The store takes the end of half of the bytes for the end of the file."""
            short = _half_of(staged)
            try:
                return await self._inner.upload(short, None, durable=durable, observe=observe)
            finally:
                os.close(short)

        async def half_then(error: OSError) -> Upload:
            breaking = _Breaking(os.fstat(staged).st_size // 2, error, observe)
            return await self._inner.upload(staged, None, durable=durable, observe=breaking)

        copied = name is None  # a rename moves no bytes
        upload = await self._pass(
            "upload",
            b"",
            lambda: self._inner.upload(staged, name, durable=durable, observe=observe, replaces=replaces),
            torn=half if copied else None,
            broken=half_then if copied else None,
        )
        return _FaultUpload(self.faults, upload)

    async def begin(self, staged: int) -> Transfer:
        return _FaultTransfer(self.faults, await self._pass("begin", b"", lambda: self._inner.begin(staged)))

    async def keep_left(self, trace: str, path: bytes) -> bytes | None:
        return await self._pass("keep_left", path, lambda: self._inner.keep_left(trace, path))

    async def clear_left(self) -> None:
        await self._pass("clear_left", b"", self._inner.clear_left)

    async def overwrite(self, staged: int, path: bytes, observe: Observer | None) -> Stat:
        async def half_then(error: OSError) -> Stat:
            short = _half_of(staged)
            try:
                await self._inner.overwrite(short, path, observe)
            finally:
                os.close(short)
            raise from_os_error(error) from error

        def whole() -> Awaitable[Stat]:
            return self._inner.overwrite(staged, path, observe)

        return await self._pass("overwrite", path, whole, broken=half_then)

    def close(self) -> None:
        self._inner.close()


@dataclass(slots=True)
class _Breaking:
    """An observer that raises at the piece that holds the middle: an upload that fails on its way."""

    left: int
    error: OSError
    observe: Observer | None

    def __call__(self, offset: int, piece: memoryview) -> None:
        if len(piece) > self.left:
            raise self.error
        self.left -= len(piece)
        if self.observe is not None:
            self.observe(offset, piece)


def _half_of(staged: int) -> int:
    """An open file with the first half of the bytes, and the attributes, of another."""
    fd = os.memfd_create("half")
    clone_range(staged, fd, os.fstat(staged).st_size // 2)
    copy_attributes(staged, fd)
    return fd
