"""The composition root: builds the stack, runs the tasks, ends in the right order.

    run
    └── services            supervised: an exception is logged, counted, and the task starts again
        ├── queue           commits that wait
        ├── recovery        what an earlier daemon left and could not be committed at once
        ├── sweep           copies that mounts which are gone left in the store; our own heartbeat
        ├── commits         a task each, where the store may hang
        ├── cache           index writes, eviction, fetch-ahead (only with a cache)
        ├── watcher         inotify events (only where the store is local)
        ├── siblings        files that will be opened next (only over remote stores)
        ├── repairs         what `volfs recover` and `volfs fsck` ask for
        ├── clock           commits of files that stay open
        ├── poll            looks at open files
        └── front
            ├── requests    the transport's tasks
            ├── signals     SIGTERM, SIGINT, SIGHUP
            └── announce    says `ready` once the mount answers

Shutdown, whatever asks for it: notifications stop, new opens are refused, the
queue drains within the drain timeout, requests stop, the mount is taken away,
services end. What is left stays in the journal and the exit code says so. After a
crash of this process nothing is unmounted: an empty directory in its place would
be taken for deleted files.
"""

from __future__ import annotations

import fcntl
import math
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import structlog
import trio

import volfs
from volfs.cache.fill import Cache
from volfs.commit.journal import Journal
from volfs.commit.queue import CommitQueue
from volfs.commit.record import MountRecord, claim
from volfs.commit.recover import Recovery
from volfs.commit.room import WriteRoom
from volfs.commit.staging import Staging
from volfs.config import MountConfig
from volfs.errors import SetupError
from volfs.fs.descriptors import raise_limit
from volfs.fs.tree import KNOWN_AHEAD, REMEMBERED, Node, Tree
from volfs.fs.vfs import Vfs
from volfs.fs.volume import Policy, Volume
from volfs.kernel import dying, mounts
from volfs.kernel.intent import creates
from volfs.kernel.mounting import mount
from volfs.kernel.notify import KernelNotifier
from volfs.kernel.transport import Transport
from volfs.kernel.tuning import tune
from volfs.store.base import Store
from volfs.store.directory import DirectoryStore
from volfs.store.retry import RetryingStore
from volfs.watch.inotify import InotifyWatcher

__all__ = ["EXIT_LEFT_IN_JOURNAL", "run"]

log = structlog.get_logger(__name__)

#: The mount is gone, and something that was written stays in the journal for the next one.
EXIT_LEFT_IN_JOURNAL = 3

#: What an earlier daemon left is committed before the mount serves, if it does not take longer than this.
_REPLAY_S = 10.0

#: Fetch-ahead and reads in flight hold at most this much memory.
_MEMORY_BYTES = 256 << 20

_TICK_S = 1.0

#: What is done in the store at the very end is tidiness: a store that does not answer is left as it is.
_TIDY_S = 5.0


def run(config: MountConfig, ready: Callable[[], None]) -> int:
    """Mount and serve until unmounted or told to end; the exit code. SetupError if it cannot start."""
    os.umask(0)  # the kernel applied the caller's; ours must not be added
    raise_limit()
    lock = _lock(config.cache_dir)
    try:
        return trio.run(_Daemon(config, ready).run)
    finally:
        os.close(lock)


def _lock(cache_dir: Path) -> int:
    try:
        cache_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(cache_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SetupError(f"cannot use the cache directory {cache_dir}: {error.strerror}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise SetupError(
            f"the cache directory {cache_dir} is in use by another volfs daemon; "
            "unmount that one or give this mount its own --cache-dir"
        ) from error
    dying.note(fd)
    return fd


def _mount_id(cache_dir: Path) -> str:
    """This mount's name in the store's staging area, the same for each mount with this cache directory."""
    file = cache_dir / "mount-id"
    try:
        return file.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        new = uuid4().hex
        file.write_text(new + "\n", encoding="ascii")
        return new


class _Daemon:
    def __init__(self, config: MountConfig, ready: Callable[[], None]) -> None:
        self._config = config
        self._ready = ready
        self._directory = DirectoryStore(config.backing)
        local = self._directory.local
        # A local disk that hangs hangs everybody, and its errors do not pass by themselves.
        self._store: Store = (
            self._directory if local else RetryingStore(self._directory, config.store_timeout_s)
        )
        self._cached = config.cache == "on" or (config.cache == "auto" and not local)
        self._transport: Transport
        self._transport_reason = ""
        self._notifier = KernelNotifier()
        self._tuned: dict[str, str] = {}
        self._mount_id = _mount_id(config.cache_dir)
        self._end_at = math.inf
        self._recovery: Recovery | None = None

    # -- building --------------------------------------------------------------

    async def run(self) -> int:
        config = self._config
        journal = Journal(config.cache_dir / "journal.db")
        cache = None
        self._claim(journal)
        staging, staging_path = self._open_staging()
        if self._cached:
            directory = config.cache_dir / "cache"
            directory.mkdir(exist_ok=True)
            cache = Cache.open(
                directory,
                config.cache_bytes,
                _MEMORY_BYTES,
                staged=lambda: staging.allocated if staging is not None else 0,
                databases=[config.cache_dir / "journal.db"],
                lease_s=config.lease_s,
            )
        if staging is not None:
            self._recovery = Recovery(self._store, staging, journal)
        await self._store.capacity()  # known from now on, whatever becomes of the store
        policy = Policy(
            commit_at_close=config.commit == "close",
            commit_interval_s=config.commit_interval_s,
            freshness_s=self._freshness_s,
            poll_interval_s=config.poll_interval_s,
            read_only=config.read_only,
            store_timeout_s=None if self._store.local else config.store_timeout_s,
            stale_if_error_s=config.stale_if_error_s,
            durable_close=config.durable_close,
            own_files=os.geteuid() == 0,
        )
        watcher = InotifyWatcher(self._directory.root) if self._store.local else None
        queue = CommitQueue(self._commit)

        def released(node: Node) -> None:
            if watcher is not None and node.watched:
                watcher.remove(node.number)

        remembers = REMEMBERED if config.stale_if_error_s else 0 if self._store.local else KNOWN_AHEAD
        volume = Volume(
            store=self._store,
            tree=Tree(await self._store.stat(b""), released, remembers=remembers),
            journal=journal,
            queue=queue,
            policy=policy,
            notifier=self._notifier,
            staging=staging,
            staging_path=staging_path,
            cache=cache,
            room=None if staging is None or staging.in_store else WriteRoom(staging, cache, queue),
            watcher=watcher,
        )
        volume.recovery = self._recovery
        self._volume = volume
        self._vfs = Vfs(volume, self._about, creates)
        volume.watch(volume.tree.root, b"")
        self._transport, self._transport_reason = mount(config, self._vfs)
        try:
            await self._serve(watcher, cache)
        except BaseException:
            self._notifier.close(timeout_s=5.0)
            self._transport.close(unmount=False)
            raise
        self._transport.close(unmount=True)
        left = journal.entries()
        journal.close()
        if cache is not None:
            cache.close()
        if watcher is not None:
            watcher.close()
        with trio.move_on_after(_TIDY_S):
            await trio.to_thread.run_sync(self._tidy, not left, abandon_on_cancel=True)
        if left:
            log.warning("left in the journal for the next mount", files=len(left))
            return EXIT_LEFT_IN_JOURNAL
        return 0

    def _tidy(self, remove: bool) -> None:
        """In a thread: the last calls to the store."""
        if remove:
            self._directory.remove_staging()
        self._directory.close()

    @property
    def _stages_in_store(self) -> bool:
        """Whether a commit is a rename. Not where the store may hang: a write must not wait for it."""
        return self._store.local and not self._cached

    def _claim(self, journal: Journal) -> None:
        """Say whose the cache directory is; SetupError if it owes bytes to another backing."""
        config = self._config
        record = MountRecord(
            backing=config.backing,
            mountpoint=config.mountpoint,
            cached=not self._stages_in_store,
            commit=config.commit,
            read_only=config.read_only,
        )
        claim(config.cache_dir, record, owes=bool(journal.entries()))

    @property
    def _freshness_s(self) -> float:
        if self._config.freshness_s is not None:
            return self._config.freshness_s
        return 0.0 if self._store.local else 1.0

    def _open_staging(self) -> tuple[Staging | None, Path | None]:
        if self._config.read_only:
            return None, None
        in_store = self._directory.open_staging(self._mount_id)
        if self._stages_in_store:
            return Staging(in_store, in_store=True), None
        path = self._config.cache_dir / "staging"
        path.mkdir(exist_ok=True)
        return Staging(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), in_store=False), path

    # -- running ---------------------------------------------------------------

    async def _serve(self, watcher: InotifyWatcher | None, cache: Cache | None) -> None:
        async with trio.open_nursery() as services:
            if cache is not None:
                await services.start(cache.run)
            self._volume.tasks = services
            services.start_soon(self._supervise, "queue", self._volume.queue.run)
            if self._recovery is not None:
                services.start_soon(self._supervise, "recovery", self._recovery.run)
                with trio.move_on_after(_REPLAY_S):
                    await self._recovery.tried.wait()
                services.start_soon(self._supervise, "sweep", self._directory.live)
            services.start_soon(self._supervise, "siblings", self._vfs.siblings.run)
            services.start_soon(self._supervise, "repairs", self._vfs.repairs.run)
            services.start_soon(self._supervise, "clock", self._clock)
            services.start_soon(self._supervise, "poll", self._poll)
            if watcher is not None:
                services.start_soon(self._supervise, "watcher", self._watch)
            self._notifier.start(self._transport.sender)
            async with trio.open_nursery() as front:
                front.start_soon(self._signals)
                front.start_soon(self._announce)
                await self._transport.serve()
                front.cancel_scope.cancel()
            self._begin_to_end()
            await self._drain()
            services.cancel_scope.cancel()

    async def _supervise(self, name: str, service: Callable[[], Awaitable[None]]) -> None:
        """Run a service for ever; one that fails is logged and started again, a little later each time."""
        wait_s = 0.1
        while True:
            try:
                await service()
                return
            except Exception:
                self._volume.errors += 1
                log.exception("a background task failed and starts again", task=name)
            await trio.sleep(wait_s)
            wait_s = min(wait_s * 2, 10.0)

    async def _watch(self) -> None:
        watcher = self._volume.watcher
        assert isinstance(watcher, InotifyWatcher)
        await watcher.run(self._vfs.changes.happened, self._vfs.changes.everything)

    async def _clock(self) -> None:
        while True:
            await trio.sleep(min(_TICK_S, self._config.commit_interval_s))
            self._vfs.files.commit_quiet()

    async def _poll(self) -> None:
        while True:
            await trio.sleep(self._config.poll_interval_s)
            await self._vfs.changes.poll(self._vfs.files.open_nodes())

    async def _commit(self, number: int) -> None:
        await self._vfs.files.commit_number(number)

    async def _announce(self) -> None:
        """The mount answers: say so."""
        mountpoint = self._config.mountpoint
        await trio.to_thread.run_sync(os.stat, mountpoint, abandon_on_cancel=True)
        self._tuned = await trio.to_thread.run_sync(tune, mountpoint, abandon_on_cancel=True)
        log.info("mounted", backing=str(self._config.backing), mountpoint=str(mountpoint))
        self._ready()

    async def _signals(self) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async for number in signals:
                if self._volume.ending:
                    continue
                self._begin_to_end()
                log.info("ending", signal=signal.Signals(number).name)
                await self._drain()
                await self._name_holders()
                self._transport.end()

    def _begin_to_end(self) -> None:
        if not self._volume.ending:
            self._volume.ending = True
            self._end_at = trio.current_time() + self._config.drain_timeout_s
        self._notifier.close(timeout_s=0.0)
        if self._volume.room is not None:
            self._volume.room.close()

    async def _drain(self) -> None:
        with trio.move_on_at(self._end_at):
            self._vfs.files.commit_appends()
            await self._volume.queue.drain()

    async def _name_holders(self) -> None:
        """Whoever has files open here gets ENOTCONN from now on: say who that is."""
        found = await trio.to_thread.run_sync(mounts.holders, self._config.mountpoint, abandon_on_cancel=True)
        for holder in found:
            log.warning("taken away from", pid=holder.pid, command=holder.command, path=holder.path)

    # -- status ----------------------------------------------------------------

    def _about(self) -> dict[str, Any]:
        config = self._config
        return {
            "version": volfs.__version__,
            "pid": os.getpid(),
            "backing": str(config.backing),
            "mountpoint": str(config.mountpoint),
            "cache_dir": str(config.cache_dir),
            "store": "directory",
            "store_away": isinstance(self._store, RetryingStore) and self._store.deadlines.away,
            "transport": self._transport.name,
            "transport_reason": self._transport_reason,
            "mode": {
                "cache": self._cached,
                "commit": config.commit,
                "read_only": config.read_only,
                "change_detection": "inotify" if self._store.local else "poll",
            },
            "tuning": self._tuned,
        }
