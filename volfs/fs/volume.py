"""What the parts of `fs` share: the store, the tree, staging, the policies, and ways to tell the kernel.

It owns the one question that all reads depend on, `look`: what is behind this
node now. It does not serve requests.

*Concurrency:* the trio thread. `structure` is held shared by whatever resolves
a path and then changes the store by it, and alone by a rename of a directory.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import structlog
import trio

from volfs.cache.fill import Cache
from volfs.commit.journal import Journal
from volfs.commit.queue import CommitQueue
from volfs.commit.recover import Recovery, make_directories
from volfs.commit.room import WriteRoom
from volfs.commit.staging import Staging
from volfs.core.versions import is_racy
from volfs.errors import NotFound, StoreError, VersionChanged
from volfs.fs.locks import SharedLock
from volfs.fs.retries import SecondTries
from volfs.fs.tree import ROOT, Node, Tree
from volfs.store.base import Owner, Stat, Store

if TYPE_CHECKING:
    from volfs.fs.siblings import Siblings

__all__ = ["Notifier", "Policy", "Volume"]

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: A store that is silent for so long counts as failing where old answers are allowed: under a second, so that
#: cached reads feel as ever, and far more than a healthy one needs.
_SILENCE_S = 0.5


class Notifier(Protocol):
    """Tells the kernel to drop what it caches. Calls return at once and never fail."""

    def attributes(self, number: int) -> None: ...

    def content(self, number: int) -> None: ...

    def entry(self, parent: int, name: bytes, deleted: int) -> None: ...

    async def told(self) -> None:
        """Return when all that was asked for has reached the kernel, or after a bounded time.

        Not to be awaited by a request under which the kernel locks a directory: it would wait for itself.
        """
        ...


class Watcher(Protocol):
    """Tells of changes inside directories, where the store can."""

    def add(self, number: int, path: bytes) -> bool: ...

    def remove(self, number: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Policy:
    """How the volume behaves. Times in seconds."""

    commit_at_close: bool
    commit_interval_s: float
    freshness_s: float
    poll_interval_s: float
    read_only: bool
    store_timeout_s: float | None  # None: a store whose calls end by themselves
    stale_if_error_s: float
    durable_close: bool
    own_files: bool  # new files belong to the caller, which only root can arrange


@dataclass(slots=True)
class Volume:
    store: Store
    tree: Tree
    journal: Journal
    queue: CommitQueue
    policy: Policy
    notifier: Notifier
    staging: Staging | None  # None: read-only
    cache: Cache | None  # None: read straight from the store
    staging_path: Path | None = None  # where the staged files lie, if not in the store
    room: WriteRoom | None = None  # for staged files on the local disk, which may be full
    watcher: Watcher | None = None
    recovery: Recovery | None = None  # what an earlier daemon left; None: read-only
    tasks: trio.Nursery | None = None  # for what goes on when nobody waits for it any more
    structure: SharedLock = field(init=False)
    conflicts: int = 0
    errors: int = 0
    ending: bool = False  # the daemon was told to end
    counters: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)  # requests of the kernel, by handler
    _silent: bool = False  # the store gave no answer the last time
    second_tries: SecondTries = field(default_factory=SecondTries)
    siblings: Siblings = field(init=False)  # what fetches ahead across files; `Vfs` makes it

    def __post_init__(self) -> None:
        patience_s = self.policy.store_timeout_s
        self.structure = SharedLock(math.inf if patience_s is None else patience_s)
        self.tree.taken = self._taken

    def _taken(self, parent: Node, name: bytes, node: Node) -> None:
        """Others renamed the file: an open by the old name must not find it."""
        node.stale_names = True
        self.notifier.entry(parent.number, name, 0)

    # -- asking the store --------------------------------------------------------

    def may_be_stale(self, node: Node) -> bool:
        """Whether what is known of the node may be served while the store fails (B3)."""
        return trio.current_time() - node.checked_s < self.policy.stale_if_error_s

    async def ask(self, node: Node, question: Callable[[], Awaitable[T]]) -> T | None:
        """The store's answer about the node; None: there is none, and what is known may be served."""
        if not self.may_be_stale(node):
            return await question()
        with trio.move_on_after(_SILENCE_S / (10 if self._silent else 1)):
            try:
                answer = await question()
                self._silent = False
                return answer
            except StoreError as error:
                self._silent = error.passes
                if not error.passes:
                    raise
        self._silent = True
        self.counters["stale"] += 1
        return None

    async def stat(self, path: bytes, known: Node | None) -> Stat | None:
        """What the store has at a path, where `known` was; None if nothing is there."""
        try:
            if known is None:
                return await self.store.stat(path)
            return await self.ask(known, lambda: self.store.stat(path)) or known.stat
        except NotFound:
            return None

    def now_ns(self) -> int:
        """The clock that the store's times are compared with."""
        return time.time_ns()

    def racy(self, st: Stat) -> bool:
        """Whether this version may still change and look the same: it is believed for now, and not kept."""
        return is_racy(max(st.mtime_ns, st.ctime_ns), self.now_ns(), self.store.granularity_ns)

    # -- what is behind a node -------------------------------------------------

    async def look(self, node: Node, *, force: bool = False) -> Stat:
        """The node's attributes as of now.

        If another object, or none, has its name now, the kernel is told, and a
        file answers what was last known of it, with no link left: the kernel
        asks this on its way to an open, which is refused if need be (R1). For
        anything else VersionChanged (ESTALE): the kernel looks the path up again.
        """
        while True:
            if node.file is not None and node.file.staged is not None:
                return self.local_stat(node)
            path = self.tree.path(node)
            if path is None:
                return await self._look_orphan(node)
            if not force and self.fresh(node):
                return self.local_stat(node)
            epoch, asked_s = node.epoch, trio.current_time()
            st = await self.stat(path, node)
            if node.epoch != epoch or self.tree.path(node) != path:
                continue
            if st is not None and st.identity == node.identity:
                self.observe(node, st, asked_s)
                return self.local_stat(node)
            if st is not None and node.file is not None and await node.file.succeed(st, path):
                continue
            if self.tree.path(node) == path and node.epoch == epoch and not self.lost(node):
                return self.local_stat(node)

    async def _look_orphan(self, node: Node) -> Stat:
        if node.file is not None and node.file.reader is not None:
            return replace(await node.file.reader.stat(), nlink=0)
        if node.handles or node.is_file:
            return replace(node.stat, nlink=0)
        raise VersionChanged("the file was removed or replaced")

    def fresh(self, node: Node) -> bool:
        """Whether the last answer of the store may be given again (R1). A local store is always asked."""
        return node.checked_s > max(node.outdated_s, trio.current_time() - self.policy.freshness_s)

    def local_stat(self, node: Node) -> Stat:
        """What this mount answers for the node without asking the store."""
        if node.file is not None and node.file.staged is not None:
            st = node.file.staged.stat()
            links = max(len(node.names), 0 if node.pending or not node.names else node.stat.nlink)
            return replace(st, nlink=links)
        if node.touched_ns and node.touched_ns > node.stat.mtime_ns:
            return replace(node.stat, mtime_ns=node.touched_ns, ctime_ns=node.touched_ns)
        return node.stat

    def observe(self, node: Node, st: Stat, asked_s: float | None = None) -> None:
        """The store said `st` of this node's object: if that is news, pages that the kernel has are old.

        `asked_s`: when it was asked, if not just now; -inf if it was not asked what is behind the name.
        Old attributes are not told to the kernel here: a reply that carries the new
        ones is often under way, and where none is, `fs.changes` tells.
        """
        known, node.stat = node.stat, st
        if st is known and node.checked_s != -math.inf:
            return  # the store gave no answer (`stat`): it is as old as it was
        node.checked_s = max(node.checked_s, trio.current_time() if asked_s is None else asked_s)
        if st.version != known.version and node.is_file:
            node.stale_pages = True
            if node.file is not None:
                node.file.moved()
            if self.cache is not None:
                self.cache.forget(known.version)
            if node.lookups:
                self.notifier.content(node.number)

    def adopt(self, node: Node, st: Stat) -> None:
        """Another object has the node's name, and nobody can tell: it is the node's from now on."""
        known = node.stat
        self.tree.identify(node, st)
        node.stat = known
        self.observe(node, st)

    def settle(self, node: Node, st: Stat, *, sets_mtime: bool = False) -> None:
        """`st` is the result of our own change of attributes: the content is the same, so pages stay.

        Unless size or mtime say that somebody else wrote just before.
        """
        known = node.stat
        same = st.identity == known.identity and st.size == known.size
        if not same or not (sets_mtime or st.mtime_ns == known.mtime_ns):
            self.observe(node, st)
            return
        if self.cache is not None and not sets_mtime and st.version != known.version:
            self.cache.rekey(known.version, st.version)
        node.stat = st
        node.checked_s = trio.current_time()
        node.epoch += 1

    def changed(self, directory: Node) -> None:
        """A name in the directory came or went by our doing."""
        directory.epoch += 1
        self.outdate(directory)

    def outdate(self, node: Node) -> None:
        """A change of ours gave the node other attributes, which only the store knows: it is to be asked."""
        node.outdated_s = trio.current_time()

    def lost(self, node: Node) -> bool:
        """The store has something else, or nothing, at the node's first name."""
        return self.lost_name(*next(iter(node.names)))

    def lost_name(self, parent: Node, name: bytes) -> bool:
        """Somebody else took the name away: the kernel must not go on believing it.

        False for a directory that holds bytes which are not committed yet: it stays,
        and their commit makes it again (W7: a delete does not outweigh bytes).
        """
        node = parent.children[name]
        if node.is_dir and any(each.dirty and each.names for each in self.tree.below(node)):
            return False
        # Who has a file below it open may yet write: it has no name now, but the place where it was (W7).
        for above in list(self.tree.below(node)):
            for each, child in list(above.children.items()):
                if child.is_file and child.handles:
                    self.lost_name(above, each)
        self.tree.remember_home(node)
        parent.epoch += 1
        self.tree.unbind(parent, name)
        self.notifier.entry(parent.number, name, node.number)
        self.notifier.attributes(node.number)
        node.stale_names = bool(node.names)
        self.unnamed(node)
        return True

    def settled(self, node: Node, path: bytes) -> None:
        """The node's bytes are the file at `path` now: where it is known, that is its name."""
        if node.names:
            return
        node.home = path
        directory, _, name = path.rpartition(b"/")
        parent = self.tree.known(directory)
        if parent is not None and parent.is_dir and name not in parent.children:
            self.tree.bind(parent, name, node.stat)
            parent.epoch += 1
            node.stale_names = True  # the kernel may not have heard yet that the old name is another file's

    def unnamed(self, node: Node) -> None:
        """A name of the node is gone. If it was the last, so is what we keep for it, or others took it."""
        if node.names or (node.home is not None and node.dirty):
            return
        if node.file is not None:
            node.file.unnamed()
            self.abandon(node)
        if self.cache is not None and node.is_file:
            self.cache.forget(node.stat.version)

    async def remake_directories(self, node: Node) -> None:
        """Make the directories above the node again that others removed."""
        if not node.names and node.home is not None:
            await make_directories(self.store, node.home)
            return
        above: list[Node] = []
        while node.number != ROOT and node.names:
            node = next(iter(node.names))[0]
            above.append(node)
        for directory in reversed(above[:-1]):
            path = self.tree.directory_path(directory)
            try:
                st = await self.store.stat(path)
            except NotFound:
                own = self.policy.own_files
                owner = Owner(directory.stat.uid, directory.stat.gid) if own else Owner(None, None)
                st = await self.store.mkdir(path, directory.stat.mode, owner)
                log.warning("made a directory again for bytes that were to be committed in it", path=path)
            if st.identity != directory.identity:
                self.tree.identify(directory, st)
                directory.watched = False
                self.watch(directory, path)

    def abandon(self, node: Node) -> None:
        """Let go of a file's content if no handle is open and nothing is owed to the store."""
        file = node.file
        if file is None or node.handles or file.owed:
            return
        node.file = None
        file.dispose()
        self.tree.drop(node)

    # -- what the kernel may remember -------------------------------------------

    def timeout_s(self, node: Node) -> float:
        """How long the kernel may believe what it is told about this node."""
        if self.watcher is None:
            if node.dirty:
                # It changes by what this kernel does, which forgets by itself what that makes old, and by its
                # commit, which changes no content.
                return self.policy.freshness_s
            # What is left of the freshness: the kernel's belief and ours must not add up.
            left_s = node.checked_s + self.policy.freshness_s - trio.current_time()
            return max(0.0, left_s) if node.checked_s > node.outdated_s else 0.0
        if node.dirty or node.touched_ns:
            return 0.0
        if node.is_dir:
            return self.policy.poll_interval_s if node.watched else 0.0
        # A change through a second name is reported for that name's directory only.
        if len(node.names) != 1 or node.stat.nlink > 1:
            return 0.0
        parent, _ = next(iter(node.names))
        return self.policy.poll_interval_s if parent.watched else 0.0

    def watch(self, directory: Node, path: bytes) -> None:
        """Learn of changes in the directory from now on, before anything in it is believed."""
        if self.watcher is not None and not directory.watched:
            directory.watched = self.watcher.add(directory.number, path)
