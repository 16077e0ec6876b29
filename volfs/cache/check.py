"""The cache index against the cache files, and every present block against its checksum.

It walks and compares. What is to be done about what it finds is a `Remedy`:
`Look` leaves it, `Mend` drops it, so that it is fetched again. All that lies in
the cache is in the store, too: nothing here can lose a byte.

A running cache is checked while it serves. One file is looked at at a time, in
threads, two megabytes at once; nobody's place in the order of eviction changes.

*Concurrency:* the trio thread; `shelf.thread` reads. A file that is looked at is
held, and its blocks pinned while they are read. What a thread found is compared
with what is present, and mended, in one step: blocks that left meanwhile are not
missed, and none is dropped that came meanwhile.
"""

from __future__ import annotations

import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from volfs.cache.blocks import read_blocks
from volfs.cache.cachefile import CacheFile
from volfs.cache.reconcile import SLACK_BYTES, path_of, trim
from volfs.cache.shelf import INLINE_BYTES, Shelf
from volfs.core.spans import BLOCK_BYTES, Extent, block_extent, runs
from volfs.telemetry import get_logger

__all__ = ["CacheReport", "Check", "Look", "Mend", "Remedy"]

log = get_logger(__name__)

#: Blocks of one read: 2 MiB, which a thread has in about a millisecond, and memory does not notice.
_RUN: Final = (2 << 20) // BLOCK_BYTES

#: Names that are looked up in the index before requests get a turn: half a millisecond.
_NAMES: Final = 100


@dataclass(slots=True)
class CacheReport:
    """What was found. Counts of files, but for `blocks`, `bytes` and `damaged_blocks`.

    `bloated`: more is allocated than the index explains. `skipped`: could not be looked at for
    another reason than damage. `unmended`: of all that was found, what is as before.
    """

    files: int = 0
    blocks: int = 0
    bytes: int = 0
    damaged_blocks: int = 0
    missing: int = 0
    strangers: int = 0
    bloated: int = 0
    skipped: int = 0
    index_damage: str | None = None
    unmended: int = 0

    @property
    def found(self) -> int:
        counted = self.damaged_blocks + self.missing + self.strangers + self.bloated + self.skipped
        return counted + (self.index_damage is not None)

    @property
    def remaining(self) -> int:
        return self.unmended + self.skipped

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "files": self.files,
            "blocks": self.blocks,
            "bytes": self.bytes,
            "damaged_blocks": self.damaged_blocks,
            "missing_files": self.missing,
            "foreign_files": self.strangers,
            "bloated_files": self.bloated,
            "skipped_files": self.skipped,
            "index_damage": self.index_damage,
        }


class Remedy(Protocol):
    """What is done about a finding; whether that mended it. No awaits."""

    def damaged(self, file: CacheFile, numbers: list[int]) -> bool: ...

    def missing(self, file: CacheFile) -> bool: ...

    def bloated(self, file: CacheFile) -> bool: ...

    def stranger(self, path: Path) -> bool: ...

    def index(self) -> bool: ...


class Look:
    """Nothing is done."""

    def damaged(self, file: CacheFile, numbers: list[int]) -> bool:
        return False

    def missing(self, file: CacheFile) -> bool:
        return False

    def bloated(self, file: CacheFile) -> bool:
        return False

    def stranger(self, path: Path) -> bool:
        return False

    def index(self) -> bool:
        return False


class Mend:
    """What is wrong is dropped."""

    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    def damaged(self, file: CacheFile, numbers: list[int]) -> bool:
        if self._shelf.open(file):  # if not, the whole file is dropped
            self._shelf.reject(file, numbers)
        return True

    def missing(self, file: CacheFile) -> bool:
        # Who has it open goes on with it: the descriptor keeps the bytes. Nobody else finds it any more.
        self._shelf.doom(file)
        return True

    def bloated(self, file: CacheFile) -> bool:
        if not self._shelf.open(file):
            return True
        if file.sealed:
            self._shelf.doom(file)
            return True
        try:
            file.stamp_ns = max(file.stamp_ns, trim(file.fd, file.size, sorted(file.present or ())))
        except OSError as error:
            log.warning("a cache file keeps space that it does not need", id=file.id, error=str(error))
            return False
        return True

    def stranger(self, path: Path) -> bool:
        try:
            path.unlink()
        except OSError as error:
            log.warning("a foreign file in the cache cannot be removed", path=str(path), error=str(error))
            return False
        return True

    def index(self) -> bool:
        # In use: it cannot be replaced. The next start finds the damage, sets it aside and begins anew.
        self._shelf.distrust()
        return False


class Check:
    """One check of a whole cache. Never raises for what it finds."""

    def __init__(self, shelf: Shelf, remedy: Remedy) -> None:
        self._shelf = shelf
        self._remedy = remedy
        self.report = CacheReport()

    async def run(self) -> CacheReport:
        """Look at everything."""
        try:
            verdict = await self._shelf.thread(self._shelf.index.verdict)
            if verdict is not None:
                self._blame_index(verdict)
            await self._files()
            await self._strangers()
        except sqlite3.Error as error:
            self._blame_index(str(error))
        return self.report

    def _blame_index(self, why: str) -> None:
        if self.report.index_damage is None:
            self.report.index_damage = why
            self._count(self._remedy.index())

    def _count(self, mended: bool, number: int = 1) -> None:
        self.report.unmended += 0 if mended else number

    # -- from the index to the files -------------------------------------------

    async def _files(self) -> None:
        shelf = self._shelf
        last = 0
        while (row := shelf.index.following(last)) is not None:
            last = row.id
            if row.id in shelf.leaving:
                continue
            await self._file(shelf.hot.get(row.id) or shelf.warm(row))
        for file in [file for file in shelf.hot.values() if not file.saved]:
            await self._file(file)  # the index has not heard of it yet

    async def _file(self, file: CacheFile) -> None:
        shelf = self._shelf
        shelf.hold(file)
        try:
            await self._load(file)
            if file.present and not file.doomed:
                self.report.files += 1
                await self._present(file)
        finally:
            shelf.release(file)

    async def _load(self, file: CacheFile) -> None:
        """As `Shelf.load`, which would give up the file if the index cannot be read."""
        shelf = self._shelf
        if file.present is not None:
            return
        if file.cost <= INLINE_BYTES:
            blocks = shelf.index.load(file.id)
        else:
            blocks = await shelf.thread(shelf.index.load_in_thread, file.id)
        if file.present is None:
            file.take(blocks)
            shelf.recount(file)

    async def _present(self, file: CacheFile) -> None:
        try:
            # Our own descriptor: opening it as the cache does would already mend a file that was cut.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(file.path, flags)
        except FileNotFoundError:
            self.report.missing += 1
            self._count(self._remedy.missing(file))
            return
        except OSError as error:
            log.warning("a cache file cannot be opened", id=file.id, error=str(error))
            self.report.skipped += 1
            return
        try:
            for run in runs(sorted(file.present or ()), _RUN):
                await self._blocks(file, fd, run)
            self._allocation(file, fd)
        finally:
            os.close(fd)

    async def _blocks(self, file: CacheFile, fd: int, run: range) -> None:
        extent = block_extent(run, file.size)
        file.pin(run)
        try:
            sums = await self._shelf.thread(_read_sums, fd, extent, file.users == 1)
        except OSError as error:
            log.warning("a cache file cannot be read", id=file.id, error=str(error))
            sums = [-1] * len(run)
        finally:
            file.unpin(run)
        present = file.present or {}
        looked = [(number, sum_) for number, sum_ in zip(run, sums, strict=True) if number in present]
        bad = [number for number, sum_ in looked if present[number] != sum_]
        self.report.blocks += len(looked)
        self.report.bytes += extent.size
        if bad:
            self.report.damaged_blocks += len(bad)
            self._count(self._remedy.damaged(file, bad), len(bad))

    def _allocation(self, file: CacheFile, fd: int) -> None:
        """Only of a file that nobody else uses: a block may be written before it is present."""
        st = os.fstat(fd)
        if file.users > 1 or file.changing or file.leaving or not file.present:
            return
        if st.st_blocks * 512 > file.worth() + SLACK_BYTES or st.st_size > file.size:
            self.report.bloated += 1
            self._count(self._remedy.bloated(file))

    # -- from the files to the index -------------------------------------------

    async def _strangers(self) -> None:
        blocks = self._shelf.blocks
        for folder in await self._shelf.thread(_list, blocks):
            if not folder.is_dir:
                self._stranger(folder.path)
                continue
            for count, entry in enumerate(await self._shelf.thread(_list, folder.path), start=1):
                if not self._is_known(entry):
                    self._stranger(entry.path)
                if count % _NAMES == 0:
                    await trio.lowlevel.checkpoint()

    def _is_known(self, entry: _Entry) -> bool:
        try:
            id_ = int(entry.path.name, 16)
        except ValueError:
            return False
        shelf = self._shelf
        if entry.is_dir or path_of(shelf.blocks, id_) != str(entry.path):
            return False
        return id_ in shelf.hot or id_ in shelf.leaving or id_ in shelf.arriving or shelf.index.has(id_)

    def _stranger(self, path: Path) -> None:
        if os.path.lexists(path):  # it may have left since it was listed
            self.report.strangers += 1
            self._count(self._remedy.stranger(path))


@dataclass(frozen=True, slots=True)
class _Entry:
    path: Path
    is_dir: bool


def _list(directory: Path) -> list[_Entry]:
    try:
        with os.scandir(directory) as entries:
            return [_Entry(Path(entry.path), entry.is_dir(follow_symlinks=False)) for entry in entries]
    except FileNotFoundError:
        return []


def _read_sums(fd: int, extent: Extent, alone: bool) -> list[int]:
    """The checksum of each block, from the disk if nobody else reads the file.

    Its pages are then of no use to anybody, neither before (it is the disk that is in question) nor after.
    """
    if alone:
        os.posix_fadvise(fd, *extent, os.POSIX_FADV_DONTNEED)
    _, sums = read_blocks(fd, extent)
    if alone:
        os.posix_fadvise(fd, *extent, os.POSIX_FADV_DONTNEED)
    return sums
