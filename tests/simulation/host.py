"""One mount in the simulation: what `volfs.daemon` builds, without a kernel, a process or a signal.

It owns the order of boot, crash and end of one host, whose journal, cache and backing outlive it. What
programs
do with it goes through `Vfs` (see `kernel`); what is right is not known here (see `oracle`).

*Concurrency:* each life has a nursery, in which the services and every program's call run, so that a crash
takes
them all in one step.

*Invariants:* nothing of a life reaches a disk after its crash.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import trio

from tests.notifiers import Deaf
from tests.simulation.life import Died, Life, current, effect, pause
from tests.store.fault_plan import Call, Fault
from tests.store.faults import Faults, FaultStore
from volfs.cache.fill import Cache
from volfs.commit.journal import Entry, Journal, State
from volfs.commit.queue import CommitQueue
from volfs.commit.recover import Recovery
from volfs.commit.staging import StagedFile, Staging
from volfs.errors import VolfsError
from volfs.fs.tree import Tree
from volfs.fs.vfs import Vfs
from volfs.fs.volume import Policy, Volume
from volfs.store.directory import DirectoryStore

__all__ = ["CHANGES", "Host", "Mode"]

T = TypeVar("T")

#: Store calls that change the store: each is an effect, and after each the backing is looked at.
CHANGES = frozenset(
    (
        *("mkdir", "mknod", "symlink", "link", "unlink", "rmdir", "rename"),
        *("upload", "upload.show", "overwrite", "keep_left"),
    )
)

_CACHE_BYTES = 1 << 20
_MEMORY_BYTES = 4 << 20
_INTERVAL_S = 5.0


@dataclass(frozen=True, slots=True)
class Mode:
    """How a host is mounted. `freshness_s` above 0: over a network, whose answers are believed so long."""

    commit_at_close: bool
    cached: bool
    freshness_s: float = 0.0


@dataclass(frozen=True, slots=True)
class _Interleaved:
    """A store call that others may overtake before and after, with or without a fault."""

    fault: Fault | None
    changed: Callable[[str], None]

    async def around(self, call: Call[T]) -> T:
        await pause()
        if call.operation in CHANGES:
            effect()
        try:
            if self.fault is not None:
                return await self.fault.around(call)
            return await call.whole()
        finally:
            if call.operation in CHANGES:
                self.changed(call.operation)
            if call.operation != "reader.read":  # what it answers is good until the next await
                with trio.CancelScope(shield=True):
                    await pause()


class _Schedule(Faults):
    """Faults as planned, and the schedule's pauses around every call."""

    def __init__(self, changed: Callable[[str], None]) -> None:
        super().__init__()
        self._changed = changed

    def take(self, operation: str, path: bytes) -> Fault | None:
        return _Interleaved(super().take(operation, path), self._changed)


class _Journal(Journal):
    """A journal whose statements are effects."""

    def _execute(self, statement: str, values: tuple[object, ...] = ()):  # type: ignore[no-untyped-def]
        if not statement.startswith("SELECT"):
            effect()
        return super()._execute(statement, values)


class _Staging(Staging):
    """A staging directory in which files come and go as effects."""

    def create(self) -> StagedFile:
        effect()
        return super().create()

    def remove(self, name: str) -> None:
        effect()
        super().remove(name)


class _Silent(Deaf):
    """A kernel that needs to be told nothing: `kernel` asks anew each time."""

    async def told(self) -> None:
        await pause()


class Host:
    """See the module. `changed` is called, with the store's operation, after each change of the store."""

    def __init__(
        self, name: str, base: Path, backing: Path, mode: Mode, changed: Callable[[str], None]
    ) -> None:
        self.name = name
        self.mode = mode
        self.conflicts = 0  # of earlier lives that ended well
        #: By calling thread: the name that it is about to create, which volfs reads in the call itself.
        self.creating: dict[int, bytes] = {}
        self._directory_path = base
        self._backing = backing
        self._changed = changed
        self._gone = trio.Event()
        self._left: list[Entry] = []
        base.mkdir()

    # -- life ------------------------------------------------------------------

    async def boot(self, nursery: trio.Nursery, dies_after: int | None = None) -> None:
        """Mount. On return it serves, or has died already, if it was to die after so many effects."""
        self.life = Life(self._changed, dies_after)
        self._gone = trio.Event()
        ready = trio.Event()
        nursery.start_soon(self._live, self.life, ready)
        await ready.wait()

    @property
    def alive(self) -> bool:
        return not self.life.dead

    async def _live(self, life: Life, ready: trio.Event) -> None:
        current.set(life)
        try:
            with life.scope:
                await self._serve(ready)
        except* Died:
            pass
        finally:
            life.dead = True
            with trio.CancelScope(shield=True):
                self._directory.close()  # as the kernel does with a dead process's descriptors
            self._gone.set()
            ready.set()

    async def _serve(self, ready: trio.Event) -> None:
        self._directory = DirectoryStore(self._backing, local=True)
        self._directory.granularity_ns = 0  # contents differ in size: the clock decides nothing
        self.faults = _Schedule(self._changed)
        store = FaultStore(self._directory, self.faults)
        store.local = (
            not self.mode.cached
        )  # else nothing is fetched ahead; calls are made inline all the same
        self.journal = _Journal(self._directory_path / "journal.db")
        staging, path = self._open_staging()
        self.cache = self._open_cache()
        self.recovery = Recovery(store, staging, self.journal)
        await self.recovery.start()
        self.volume = Volume(
            store=store,
            tree=Tree(await store.stat(b""), lambda node: None),
            journal=self.journal,
            queue=CommitQueue(self._commit),
            policy=Policy(
                commit_at_close=self.mode.commit_at_close,
                commit_interval_s=_INTERVAL_S,
                freshness_s=self.mode.freshness_s,
                poll_interval_s=_INTERVAL_S,
                read_only=False,
                store_timeout_s=None,
                stale_if_error_s=0.0,
                durable_close=False,
                own_files=False,
            ),
            notifier=_Silent(),
            staging=staging,
            staging_path=path,
            cache=self.cache,
            recovery=self.recovery,
        )
        self.vfs = Vfs(self.volume, dict, lambda thread, name: self.creating.get(thread) == name)
        async with trio.open_nursery() as nursery:
            self._nursery = self.volume.tasks = nursery
            if self.cache is not None:
                await nursery.start(self.cache.run)
            nursery.start_soon(self.volume.queue.run)
            nursery.start_soon(self.recovery.run)
            nursery.start_soon(self.vfs.siblings.run)
            nursery.start_soon(self._clock)
            ready.set()
        # Told to end; a crash does not come here.
        self._left = self.journal.entries()
        if not self._left:
            self._directory.remove_staging()
        self.journal.close()
        if self.cache is not None:
            self.cache.close()

    def _open_staging(self) -> tuple[Staging, Path | None]:
        in_store = self._directory.open_staging(self.name)
        if not self.mode.cached:
            return _Staging(in_store, in_store=True), None
        path = self._directory_path / "staging"
        path.mkdir(exist_ok=True)
        return _Staging(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), in_store=False), path

    def _open_cache(self) -> Cache | None:
        if not self.mode.cached:
            return None
        path = self._directory_path / "cache"
        path.mkdir(exist_ok=True)
        return Cache.open(path, _CACHE_BYTES, _MEMORY_BYTES)

    async def _commit(self, number: int) -> None:
        await self.vfs.files.commit_number(number)

    async def _clock(self) -> None:
        while True:
            await trio.sleep(1.0)
            self.vfs.files.commit_quiet()
            await self.vfs.changes.poll(self.vfs.files.open_nodes())

    async def perform(self, function: Callable[[], Awaitable[T]]) -> T:
        """Run a program's call as part of this life: it dies with it (`Died`)."""
        life, done = self.life, trio.Event()
        result: list[T] = []
        failed: list[Exception] = []

        async def run() -> None:
            current.set(life)
            try:
                result.append(await function())
            except Exception as error:
                failed.append(error)
            finally:
                done.set()

        if life.dead:
            raise Died
        try:
            self._nursery.start_soon(run)
        except RuntimeError:  # a service has died, and takes the host with it
            raise Died from None
        await done.wait()
        if failed:
            raise failed[0]
        if not result:
            raise Died
        return result[0]

    async def crash(self) -> None:
        """Die now, if it has not yet, and wait until the last task is gone."""
        self.life.end()
        await self._gone.wait()

    async def shut_down(self) -> list[Entry]:
        """Unmount with nothing open; the rows that stay in the journal."""
        await self.perform(self._drain)
        self.conflicts += self.volume.conflicts + self.recovery.conflicts
        self._nursery.cancel_scope.cancel()
        await self._gone.wait()
        return self._left

    # -- looking ---------------------------------------------------------------

    def owed(self) -> list[Entry]:
        """Rows whose bytes may still get into the store by themselves."""
        return [row for row in self.journal.entries() if row.state in (State.OPEN, State.CLOSED)]

    async def settle(self) -> None:
        """Commit whatever there is, open files too; what fails is tried again by itself."""
        with suppress(VolfsError):
            await self.perform(self._settle)

    async def _drain(self) -> bool:
        await self.volume.queue.drain()
        return True

    async def _settle(self) -> bool:
        await self.volume.queue.drain()
        await self.vfs.control.commit(self.volume.tree.root)
        return True
