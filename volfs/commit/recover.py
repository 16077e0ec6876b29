"""What the journal of an earlier daemon owes the store: commit what was acknowledged, keep the rest.

It runs on rows that no node stands behind: once when the daemon starts, and for
what failed then, again and again. It deletes nothing that a row names unless
its bytes are in the store or its name was taken away, and no file without a row.
Renames that the crash interrupted are looked up before anything else, because rows
must follow them. What others lost to a commit that it interrupted is kept then (W7e); the
copies that the earlier mount left in the store go when no row tells of any more.

*Concurrency:* up to AT_ONCE rows at a time, a row by one task. The row is read
anew before each try: a rename on the mount may have moved it. Nobody who waits for
it cancels a commit: one that was sent cannot be called back.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial

import structlog
import trio

from volfs.commit.journal import Entry, Journal, Renaming, State
from volfs.commit.publish import publish
from volfs.commit.staging import StagedFile, Staging
from volfs.core.schedule import backoff_s
from volfs.core.versions import ABSENT
from volfs.errors import AlreadyExists, NotFound, StagedLost, VolfsError
from volfs.store.base import Owner, Stat, Store

__all__ = ["AT_ONCE", "Recovery", "make_directories"]

log = structlog.get_logger(__name__)

#: As the commit queue: a handful of round trips each.
AT_ONCE = 16

_PIECE = 1 << 20


@dataclass(slots=True)
class Recovery:
    """See the module. Counts: committed, kept for the user, lost, and published beside a changed file."""

    store: Store
    staging: Staging
    journal: Journal
    recovered: int = 0
    kept: int = 0
    lost: int = 0
    conflicts: int = 0
    last_error: str | None = None
    #: Set once each row was tried.
    tried: trio.Event = field(default_factory=trio.Event)
    _owed: set[str] = field(default_factory=set)  # rows of the earlier mount that were not settled yet
    _renames: list[Renaming] = field(default_factory=list)  # of which only the store knows
    _traces: dict[str, Entry] = field(default_factory=dict)  # of them, those whose exchange nobody looked at
    _cleared: bool = False  # of copies

    @property
    def waiting(self) -> int:
        """Rows whose commit failed, and is tried again."""
        return len(self._owed | self._traces.keys())

    async def run(self) -> None:
        """Settle what the earlier mount left; return when nothing of it waits any more."""
        if not self.tried.is_set():
            await self.start()
        failures = 0
        while self.waiting or self._renames or not self._cleared:
            failures += 1
            await trio.sleep(backoff_s(failures, random.random()))
            await self._once(sorted(self._owed))

    async def _once(self, names: list[str]) -> None:
        await self._follow_renames()
        if self._renames:
            return  # no row has its right path for sure
        await self._each(self._keep_left, list(self._traces))
        await self._clear_copies()
        await self._each(self._guarded, names)

    async def start(self) -> None:
        """Sort what there is, and try each row once (W6)."""
        entries = self.journal.entries()
        self._adopt_strays({entry.name for entry in entries})
        kept = [entry for entry in entries if entry.state is State.KEPT]
        self.kept += len(kept)
        self._owed = {entry.name for entry in entries} - {entry.name for entry in kept}
        self._traces = {entry.name: entry for entry in entries if entry.trace}
        self._renames = self.journal.renamings()
        await self._once([entry.name for entry in entries if entry.name in self._owed])
        self.tried.set()
        if entries:
            log.warning(
                "replayed the journal of an earlier mount",
                recovered=self.recovered,
                kept=self.kept,
                lost=self.lost,
                conflicts=self.conflicts,
                waiting=self.waiting,
            )

    def _adopt_strays(self, known: set[str]) -> None:
        """Staged files without a row: a row was lost with a torn journal, and nobody knows their path."""
        for name in self.staging.names():
            if name in known:
                continue
            staged = self.staging.open(name)
            try:
                if staged.size:
                    log.error(
                        "the journal knows nothing of a staged file; kept for `volfs recover`", name=name
                    )
                    self.journal.add(name, b"", None, 0, staged.stat().number, State.KEPT)
                    self.kept += 1
                else:
                    self.staging.remove(name)  # the daemon died before its row was written
            finally:
                staged.close()

    async def _each(self, act: Callable[[str], Awaitable[None]], names: list[str]) -> None:
        limit = trio.CapacityLimiter(AT_ONCE)

        async def one(name: str) -> None:
            async with limit:
                await act(name)

        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(one, name)

    async def _follow_renames(self) -> None:
        """Let the rows have the paths that a rename gave them, if it was done."""
        for rename in list(self._renames):
            try:
                st = await self._current(rename.new)
                if st is not None and st.identity == rename.identity:
                    self._follow(rename, st)
                else:
                    self.journal.not_renamed(rename)
            except VolfsError as error:
                self._failed("a rename", error)
            else:
                self._renames.remove(rename)

    def _follow(self, rename: Renaming, st: Stat) -> None:
        for entry in self.journal.entries() if not rename.exchange else ():
            if entry.path == rename.old and entry.base and self.store.is_moved(st, entry.base):
                self.journal.rebase(entry.name, st.version)
        self.journal.renamed(rename)
        log.warning("a rename that a crash interrupted was done", old=rename.old, new=rename.new)

    async def _keep_left(self, name: str) -> None:
        """Keep the version of others that the crash left in our hands, if there is one."""
        left = self._traces[name]
        row = self.journal.entry(name)  # renames on the mount move it; a kept one may have been discarded
        try:
            kept_as = await self.store.keep_left(left.trace, left.path if row is None else row.path)
        except VolfsError as error:
            self._failed(name, error)
            return
        del self._traces[name]
        if kept_as is not None:
            self.conflicts += 1
            log.warning("conflict: a version that others made is kept", path=left.path, kept_as=kept_as)

    async def _clear_copies(self) -> None:
        """Only traces tell whose bytes a copy holds: it may go when none waits."""
        if self._traces or self._cleared:
            return
        try:
            await self.store.clear_left()
        except VolfsError as error:
            self._failed("copies", error)
        else:
            self._cleared = True

    def _failed(self, name: str, error: VolfsError) -> None:
        self.last_error = str(error)
        log.warning("what an earlier mount left is tried again", name=name, error=str(error))

    async def _guarded(self, name: str) -> None:
        if name in self._traces:
            return  # a new commit would forget the trace, and the end of the row as well
        entry = self.journal.entry(name)
        try:
            if entry is not None:
                await self._replay(entry)
        except VolfsError as error:
            self._failed(name, error)
            row = self.journal.entry(name)
            if row is not None and row.trace:
                self._traces[name] = row  # of our own commit; the next one would forget it
        else:
            self._owed.discard(name)

    async def _replay(self, entry: Entry) -> None:
        try:
            staged = self.staging.open(entry.name)
        except StagedLost as error:
            self._lost(entry, error)
            return
        try:
            if entry.state is State.GONE:
                self._end(entry)
            elif self.staging.in_store and entry.showing and staged.stat().number != entry.number:
                await self._clear_exchanged(entry, staged)
            elif entry.state is State.OPEN and not entry.rewritten and staged.size <= entry.existing:
                self._end(entry)  # a part of its base, or an empty new file: nothing of the user's
            elif entry.state is State.CLOSED or await self._is_due(entry):
                await self._commit(entry, staged)
            else:
                self.journal.keep(entry.name)
                self.kept += 1
                log.warning(
                    "an unfinished file of an earlier mount is kept", path=entry.path, name=entry.name
                )
        finally:
            staged.close()

    def _lost(self, entry: Entry, error: StagedLost) -> None:
        """The staged file is gone: shown by a rename, or deleted with the row to follow, or lost."""
        if entry.state is State.CLOSED and not entry.showing:
            self.lost += 1
            log.error("bytes that were staged are lost", path=entry.path, error=str(error))
        else:
            self.recovered += entry.state is State.CLOSED
        self.journal.remove(entry.name)

    async def _clear_exchanged(self, entry: Entry, staged: StagedFile) -> None:
        """The crash came after ours took the name and before what had it was deleted: that lies here now."""
        if entry.base is not None and self.store.is_moved(staged.stat(), entry.base):
            self._end(entry)
            self.recovered += 1
            return
        await publish(self.store, self.staging, staged, entry.path, entry.base, durable=True)
        self.conflicts += 1
        self._end(entry)

    async def _commit(self, entry: Entry, staged: StagedFile) -> None:
        base = entry.base
        if entry.showing:
            current = await self._current(entry.path)
            if current is not None and await self._is_ours(entry.path, current, staged):
                if current.size == staged.size:
                    self._end(entry)
                    self.recovered += 1
                    return
                base = current.version  # a commit of which no answer came, before more was appended
            if current is not None and current.nlink > 1 and current.identity == entry.identity:
                base = None  # it was being written in place, and is half of ours and half of the base
        if entry.base is None and base is None and await self._is_other(entry):
            base = ABSENT

        async def commit() -> None:
            done = await publish(
                self.store,
                self.staging,
                staged,
                entry.path,
                base,
                durable=True,
                identity=entry.identity,
                showing=partial(self.journal.showing, entry.name),
            )
            self.conflicts += done.conflict is not None

        await self._with_directories(entry.path, commit)
        self.recovered += 1
        self._end(entry)

    async def _is_other(self, entry: Entry) -> bool:
        """Whether what ours would replace is not what it was to replace: nobody knows what came first.

        Another node made it since, or a rename on this mount, which the crash kept out of the journal.
        """
        current = await self._current(entry.path)
        return current is not None and current.identity != entry.identity

    async def _with_directories(self, path: bytes, commit: Callable[[], Awaitable[None]]) -> None:
        try:
            await commit()
        except NotFound:
            await make_directories(self.store, path)
            await commit()

    def _end(self, entry: Entry) -> None:
        """Nothing is owed any more: the file first, so that none is ever without a row."""
        self.staging.remove(entry.name)
        self.journal.remove(entry.name)

    async def _current(self, path: bytes) -> Stat | None:
        try:
            return await self.store.stat(path)
        except NotFound:
            return None

    async def _is_due(self, entry: Entry) -> bool:
        """Whether a file that was not acknowledged is committed all the same (W6): it only grew; or the crash
        came while it was being written in place, and the store has half of it.
        """
        current = await self._current(entry.path)
        if current is None:
            return False
        if current.version == entry.base:
            return entry.is_append
        return entry.showing and current.nlink > 1 and current.identity == entry.identity

    async def _is_ours(self, path: bytes, current: Stat, staged: StagedFile) -> bool:
        """Whether a commit had been done: the store has these very bytes, or the first of them."""
        if not current.is_file or current.size > staged.size:
            return False
        if not current.size and staged.size:
            return False  # a name that somebody took, not the first of our bytes
        reader = await self.store.open(path)
        try:
            for offset in range(0, current.size, _PIECE):
                size = min(_PIECE, current.size - offset)
                if bytes(await reader.read(offset, size)) != await staged.read(offset, size):
                    return False
            return True
        finally:
            reader.close()


async def make_directories(store: Store, path: bytes) -> None:
    """Make the directories above `path` that are missing: a delete does not outweigh bytes (W7)."""
    parts = path.split(b"/")[:-1]
    for depth in range(1, len(parts) + 1):
        directory = b"/".join(parts[:depth])
        try:
            await store.mkdir(directory, 0o755, Owner(None, None))
        except AlreadyExists:
            continue
        log.warning("made a directory again for bytes that were to be committed in it", path=directory)
