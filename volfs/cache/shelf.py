"""The shelf: which cache files there are, who uses them, and what the index has yet to hear.

It neither fetches nor makes room (`fill`, `evict`). A cache file that nobody
uses and of which the index knows everything is in the index only; `hot` has the
others.

*Concurrency:* all state belongs to the trio thread. `_writing` is held over a
transaction of the index, `_loading` over reading a long list of blocks.

*Invariants:* `versions` has every hot file that is not doomed. `used_bytes` is
the sum of the costs of all files, those that wait to be unlinked included. A
file leaves in this order: memory, index, disk; after a crash no row speaks of
bytes that are gone.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, TypeVar

import trio

from volfs import crash
from volfs.cache.blocks import punch
from volfs.cache.cachefile import CacheFile, remove
from volfs.cache.index import Batch, Index, Row
from volfs.cache.queues import Queues
from volfs.cache.reconcile import path_of
from volfs.cache.telling import take_news
from volfs.core.spans import BLOCK_BYTES, block_count, runs
from volfs.core.versions import Version
from volfs.telemetry import get_logger

__all__ = ["INLINE_BYTES", "Shelf"]

log = get_logger(__name__)

T = TypeVar("T")

#: A list of blocks up to this long (128 MiB of file) is read in the trio thread: under two milliseconds.
INLINE_BYTES: Final = 4096 * BLOCK_BYTES

#: So many changes are written without waiting for more.
_URGENT: Final = 512


class Shelf:
    """See the module."""

    def __init__(self, blocks: Path, index: Index) -> None:
        self.index = index
        self.corrupt_blocks = 0
        last_id, clock, self.used_bytes, guest_bytes = index.totals()
        self.queues = Queues(clock, self.used_bytes - guest_bytes, guest_bytes)
        self._next_id = last_id + 1
        self.blocks = blocks
        self.hot: dict[int, CacheFile] = {}
        self.leaving: dict[int, int] = {}  # id -> cost of files to be unlinked
        self.arriving: dict[int, str] = {}  # ids of files that are being made, and that nobody finds yet
        self._versions: dict[Version, CacheFile] = {}
        self._dirty: dict[int, CacheFile] = {}
        self._flushing: set[int] = set()
        self._gone: set[int] = set()  # ids whose rows are to be deleted
        self._changes = 0
        self.wanted, self.urgent = trio.Event(), trio.Event()  # the index has something to hear, and much
        self._writing, self._loading = trio.Lock(), trio.Lock()
        #: Of its own: a stuck store must not take the threads that cached reads need.
        self._limiter = trio.CapacityLimiter(16)
        self._complained = False
        self._trusted = True

    async def thread(self, function: Callable[..., T], *args: object) -> T:
        """Call in a thread, to the end: what is under way on the local disk is never left alone."""
        with trio.CancelScope(shield=True):
            result = await trio.to_thread.run_sync(function, *args, limiter=self._limiter)
        return result  # noqa: RET504 - for all that mypy knows, a scope may swallow what leaves it

    # -- finding and using ---------------------------------------------------------

    def find(self, version: Version, size: int) -> CacheFile:
        """The cache file of a version, made if there is none."""
        file = self.known(version)
        if file is not None and file.size != size:
            self.doom(file)  # one token for two contents: believe neither
            file = None
        return file if file is not None else self._new(version, size)

    def known(self, version: Version) -> CacheFile | None:
        """The cache file of a version, if there is one. `settle` it if it is not to be used."""
        if version in self._versions:
            return self._versions[version]
        try:
            rows = self.index.find(version)
        except sqlite3.Error as error:
            self._complain(error)
            return None
        for row in rows:
            if row.id not in self.hot and row.id not in self.leaving:
                return self.warm(row)
        return None

    def complete(self, sizes: Mapping[Version, int]) -> set[Version]:
        """Those versions of which all blocks are present. One query for many: each gives the turn away."""
        extents = {v: (f.size, len(f.present)) for v in sizes if (f := self._versions.get(v)) and f.present}
        try:
            extents |= self.index.extents([version for version in sizes if version not in extents])
        except sqlite3.Error as error:
            self._complain(error)
        return {v for v, extent in extents.items() if extent == (sizes[v], block_count(sizes[v]))}

    def warm(self, row: Row) -> CacheFile:
        """Bring a file that is in the index only into memory."""
        return self._shelve(row, saved=True)

    def _new(self, version: Version, size: int) -> CacheFile:
        self._next_id += 1
        return self._shelve(Row(self._next_id, version, size, 0, 0), saved=False)

    def _shelve(self, row: Row, *, saved: bool, path: str | None = None) -> CacheFile:
        file = CacheFile(row.id, row.version, row.size, path or path_of(self.blocks, row.id), saved=saved)
        self.queues.warmed(file, row)
        self.hot[row.id] = self._versions[row.version] = file
        return file

    def use(self, file: CacheFile) -> None:
        """Keep the file in memory until `release`; it is the one used last now."""
        file.users += 1
        self.queues.came(file)
        self.touch(file)
        if file.saved:
            self.mark(file)

    def hold(self, file: CacheFile) -> None:
        """As `use`, for who only looks at it: that is no use that should keep it from leaving."""
        file.users += 1

    def touch(self, file: CacheFile, size: int = 0) -> None:
        """So many bytes of it are read now."""
        if self.queues.read(file, size) and file.saved:
            self.mark(file)

    def release(self, file: CacheFile) -> None:
        file.users -= 1
        if file.leased and file.users == 1:
            file.close()  # thousands may be leased
        self.settle(file)

    def settle(self, file: CacheFile) -> None:
        """Drop from memory what nobody uses and the index knows."""
        if file.users or file.id not in self.hot:
            return
        file.close()
        if file.present is not None and not file.present:
            self._retire(file)
        if file.doomed:
            self._cool(file)
            if file.saved or file.made:
                self.discard(file.id, file.cost)
        elif file.id not in self._dirty and file.id not in self._flushing:
            self._cool(file)

    def _cool(self, file: CacheFile) -> None:
        del self.hot[file.id]
        self.queues.cooled(file)
        self._dirty.pop(file.id, None)
        if self._versions.get(file.version) is file:
            del self._versions[file.version]

    def _retire(self, file: CacheFile) -> None:
        """Nobody will find the file any more; those who have it go on with it."""
        file.doomed = True
        if self._versions.get(file.version) is file:
            del self._versions[file.version]

    def doom(self, file: CacheFile) -> None:
        """The version will not be asked for again."""
        self._retire(file)
        self.settle(file)

    def discard(self, id: int, cost: int) -> None:  # noqa: A002 - it is the column's name
        """A file that is not in memory, or not any more, goes from index and disk."""
        self.leaving[id] = cost
        self._gone.add(id)
        self._wake()

    def forget(self, version: Version) -> None:
        """As `doom`, for a version that may or may not be here."""
        file = self.known(version)
        if file is not None:
            self.doom(file)

    def rekey(self, old: Version, new: Version) -> None:
        """The bytes of `old` are those of `new`."""
        file = self.known(old)
        if file is None or old == new:
            return
        other = self.known(new)
        if other is not None:
            self.doom(other)
        del self._versions[old]
        file.version = new
        self._versions[new] = file
        if file.saved or file.unsaved:
            self.mark(file)
        self.settle(file)

    def allot(self) -> tuple[int, str]:
        """A number that no file has, and where its bytes go. The caller takes it from `arriving` again."""
        self._next_id += 1
        path = self.arriving[self._next_id] = path_of(self.blocks, self._next_id)
        return self._next_id, path

    def put(
        self, number: int, version: Version, sums: Iterable[int], size: int, cost: int, *, new: bool
    ) -> bool:
        """What lies at an allotted number is all of a version; False if another file of it is being read.

        `cost`: if its size does not tell. `new`: the index has no such version; the sums are sure.
        """
        other = self._versions.get(version) if new else self.known(version)
        if other is not None:
            if other.users:
                return False
            self.doom(other)
        file = self._shelve(Row(number, version, size, 0, 0), saved=False, path=self.arriving[number])
        file.made = True
        file.take(dict(enumerate(sums)))
        if new:
            file.unverified.clear()
        file.unsaved = dict(file.present or {})
        self.queues.admit(file, range(len(file.unsaved)))
        file.extra = max(0, cost - file.worth())
        self.recount(file)
        self.touch(file)
        self.mark(file)
        return True

    # -- what is present -----------------------------------------------------------

    def recount(self, file: CacheFile) -> None:
        cost = file.worth()
        self.used_bytes += cost - file.cost
        file.cost = cost
        self.queues.recount(file)

    def mark(self, file: CacheFile) -> None:
        """The index has something to hear about the file."""
        self._dirty[file.id] = file
        self._wake()

    def _wake(self) -> None:
        self._changes += 1
        self.wanted.set()
        if self._changes >= _URGENT:
            self.urgent.set()

    async def load(self, file: CacheFile) -> None:
        """Learn which blocks are present."""
        if self.load_inline(file):
            return
        async with self._loading:
            if file.present is not None:
                return
            try:
                file.take(await self.thread(self.index.load_in_thread, file.id))
            except sqlite3.Error as error:
                self._lose(file, error)
            self.recount(file)

    def load_inline(self, file: CacheFile) -> bool:
        """As `load`, if that is a matter of a millisecond; whether it is loaded now."""
        if file.present is None:
            if file.cost > INLINE_BYTES:
                return False
            try:
                file.take(self.index.load(file.id))
            except sqlite3.Error as error:
                self._lose(file, error)
            self.recount(file)
        return True

    def open(self, file: CacheFile, *, create: bool = False) -> bool:
        """Open the local file. If it is gone, so are its blocks."""
        try:
            file.open(create=create)
        except OSError as error:
            if file.present:
                self._lose(file, error)
                self.recount(file)
            elif create:
                raise
            return False
        return True

    def _lose(self, file: CacheFile, error: Exception) -> None:
        log.warning("a cache file is lost; it will be fetched again", id=file.id, error=str(error))
        try:
            remove(file.path)
        except OSError:
            pass  # nothing is charged for it now; the next start after a crash removes it
        file.lose()
        self.mark(file)

    def reject(self, file: CacheFile, numbers: Iterable[int]) -> None:
        """Blocks that are not what was written: drop them, so that they are fetched again."""
        # No other ones: a block that is not present may be on its way into the file.
        bad = [number for number in numbers if file.has((number,))]
        self.corrupt_blocks += len(bad)
        log.warning("a cache file is damaged; fetching again", id=file.id, blocks=bad)
        for number in bad:
            file.remove(number)
        try:
            file.stamp_ns = max(file.stamp_ns, punch(file.fd, runs(bad, len(bad))))
        except OSError:
            pass  # the block that is fetched next goes to the same place; a sealed file makes way (`keep`)
        self.mark(file)
        self.recount(file)

    def distrust(self) -> None:
        """The index is damaged somewhere: the next start shall look at all of it."""
        self._trusted = False

    # -- telling the index ---------------------------------------------------------

    async def flush(self) -> None:
        """Tell the index all there is, and unlink what has left. Never raises for a bad disk."""
        async with self._writing:
            batch, files = self._collect()
            if batch:
                leaving = list(batch.gone)
                error = await self.thread(self._apply, batch)
                self._applied(batch, files, leaving, error)

    def _collect(self) -> tuple[Batch, list[CacheFile]]:
        batch = Batch(gone=list(self._gone))
        files = [file for file in self._dirty.values() if not file.doomed]
        for file in files:
            take_news(file, self.queues.row(file), batch)
        self._gone.clear()
        self._dirty.clear()
        self._flushing = {file.id for file in files}
        self._changes = 0
        self.wanted = trio.Event()
        self.urgent = trio.Event()
        return batch, files

    def _apply(self, batch: Batch) -> sqlite3.Error | None:
        """In a thread. Files are unlinked also if the index fails: room matters more than an idle row."""
        failure: sqlite3.Error | None = None
        try:
            self.index.apply(batch)
            crash.point("index.applied")
        except sqlite3.Error as error:
            failure = error
        for id_ in batch.gone:
            try:
                remove(path_of(self.blocks, id_))
            except OSError as error:
                log.warning("a cache file cannot be removed", id=id_, error=str(error))
        return failure

    def _applied(
        self, batch: Batch, files: list[CacheFile], leaving: list[int], error: sqlite3.Error | None
    ) -> None:
        self._flushing = set()
        for id_ in leaving:
            self.used_bytes -= self.leaving.pop(id_, 0)
        if error is None:
            self._complained = False
        else:
            self._complain(error)
            self._gone.update(batch.gone)
            self.leaving.update(dict.fromkeys(batch.gone, 0))  # the index still has rows of them
        for file in files:
            if error is None:
                file.saved = True
            elif file.id in self.hot:
                file.rewrite = file.present is not None
                self._dirty[file.id] = file  # with the next change, not at once: the disk may be full
            self.settle(file)

    def _complain(self, error: Exception) -> None:
        if not self._complained:
            log.error("the cache index fails; cached reads go on", error=str(error))
        self._complained = True

    def close(self) -> None:
        """Tell the index the rest, from the trio thread. Nobody may use the shelf any more."""
        batch, files = self._collect()
        error = self._apply(batch)
        crash.point("index.told")
        self._applied(batch, files, list(batch.gone), error)
        for file in self.hot.values():
            file.close()
        try:
            self.index.close(clean=self._trusted and error is None and not self._gone)
        except sqlite3.Error as failure:
            self._complain(failure)
