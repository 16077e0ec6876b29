"""The content of one regular file that is open or has bytes to commit: where reads and writes go.

It owns the staged file, the pinned reader and the cache file of its node. It
does not know handles, nor who may do what.

State: *clean* (reads come from the store or the cache, at the version in
`node.stat`) or *dirty* (a staged file holds the whole content; it is the truth
for this mount). `stage` goes from clean to dirty, `commit` back.

*Concurrency:* `lock` is held over everything that changes the content or its
name's owner: write, truncate, stage, commit, and the unlink or rename of a name.
Reads take no lock: they use the descriptor that was current when they began,
which stays open until they end.
Lock order: `lock` before `volume.structure`; two files' locks by inode number.

*Invariants:* at most one of `staged` and `cached` is set. A staged file with a
name has a journal row.
"""

from __future__ import annotations

import math

import structlog
import trio

from volfs import crash
from volfs.cache.fill import CachedFile
from volfs.commit.journal import State
from volfs.commit.staging import StagedFile
from volfs.core.readahead import Readahead
from volfs.core.schedule import Activity
from volfs.core.versions import ABSENT, Version
from volfs.errors import NotFound, VersionChanged, VolfsError
from volfs.fs.ahead import Ahead
from volfs.fs.committing import Attempt, commit_file
from volfs.fs.growth import COMPARE_BYTES, open_if_grown
from volfs.fs.patience import PatientLock, Progress
from volfs.fs.takeover import take_over
from volfs.fs.tree import Node
from volfs.fs.volume import Volume
from volfs.store.base import Reader, Stat

__all__ = ["File"]

log = structlog.get_logger(__name__)

#: A file that changes while it is copied or read is tried again this often before the caller gets ESTALE.
_TRIES = 5


class File:
    """See the module."""

    def __init__(self, volume: Volume, node: Node) -> None:
        self.volume = volume
        self.node = node
        self.progress = Progress(volume.policy.store_timeout_s)
        self.lock = PatientLock(self.progress)
        self.attempt: Attempt | None = None  # the commit under way, where it is a task of its own
        self.opened = 0  # handles; opens under way are counted by the node only
        self.writers = 0  # of these, the ones that may write
        self.staged: StagedFile | None = None
        self.ahead = Ahead(volume, self.progress.moved)
        self.base: Version | None = None
        self._existing = 0  # bytes taken over from the base and not rewritten: above it all is appended
        self.reader: Reader | None = None
        self.cached: CachedFile | None = None
        #: Of all handles together: a page fault comes with any of them.
        self.cursor = Readahead()
        self.activity: Activity | None = None
        self.committed_s: float | None = None
        #: Acknowledged to the application; a later write takes it back.
        self.acknowledged = False
        self._promised = 0  # bytes of the staged file that were acknowledged, which a crash must not lose

    @property
    def size(self) -> int:
        return self.staged.size if self.staged is not None else self.node.stat.size

    @property
    def is_append(self) -> bool:
        """Whether what is staged is its base with more at the end."""
        return self.staged is not None and self.base is not None and self._existing > 0

    # -- reading ---------------------------------------------------------------

    async def open_reader(self, path: bytes, *, adopt: bool = False) -> Stat:
        """Pin what is at `path` now; its attributes.

        VersionChanged if it is not the node's object. `adopt`: then it is from now on.
        """
        reader = await self.volume.store.open(path)
        try:
            st = await reader.stat()
            if st.identity != self.node.identity:
                if not adopt:
                    raise VersionChanged("the file was replaced")
                self.volume.adopt(self.node, st)
        except BaseException:
            reader.close()
            raise
        if self.reader is not None or self.staged is not None:
            reader.close()  # somebody else was faster
        else:
            self.reader = reader
        return st

    async def read(self, offset: int, size: int, cursor: Readahead | None) -> bytes | bytearray | memoryview:
        """At most `size` bytes of the current content."""
        for _ in range(_TRIES):
            if self.staged is not None:
                return await self.staged.read(offset, size)
            try:
                if self.volume.cache is None:
                    if self.reader is None:
                        raise VersionChanged("the file is not open in the store")
                    return await self.reader.read(offset, size)
                whole = self.volume.cache.wholes.read(self.node.stat.version, offset, size)
                if whole is not None:
                    return whole
                cached = self._cached()
                cached.storable = cached.storable or not self.volume.racy(self.node.stat)
                return await cached.read(offset, size, self.reader, cursor)
            except VersionChanged:
                await self._catch_up()
        raise VersionChanged("the file changes faster than it can be read")

    def complete(self) -> bool:
        """Whether the cache has all of the current version, so that the store need not be opened."""
        cache = self.volume.cache
        if self.staged is not None or cache is None:
            return False
        return cache.wholes.has(self.node.stat.version) or self._cached().complete

    def content(self) -> CachedFile:
        """What is read now, in the cache, which there is. It is another one once `cached` is."""
        assert self.staged is None
        if self.cached is not None and self.cached.local.doomed:
            self._detach()  # nobody else will find it, though the version is the same
        cached = self._cached()
        cached.storable = cached.storable or not self.volume.racy(self.node.stat)
        return cached

    def _cached(self) -> CachedFile:
        if self.cached is None:
            assert self.volume.cache is not None
            st = self.node.stat
            self.cached = self.volume.cache.attach(st.version, st.size)
            self.cached.storable = not self.volume.racy(st)
        return self.cached

    async def _catch_up(self) -> None:
        """The bytes of our version were not to be had: find out what there is now."""
        before = self.node.stat.version
        if self.reader is not None:
            st = await self.reader.stat()
            if st.identity == self.node.identity:
                self.volume.observe(self.node, st, -math.inf)
        else:
            path = self.volume.tree.path(self.node)
            if path is None:
                raise VersionChanged("the file was replaced and its old bytes are gone")
            try:
                self.volume.observe(self.node, await self.open_reader(path))
            except NotFound as error:
                raise VersionChanged("the file was removed") from error
        if self.node.stat.version == before and self.cached is not None and self.volume.cache is not None:
            # Same version, and yet it could not be read whole: a reader was missing, or it flickered.
            self._detach()

    def moved(self) -> None:
        """The node has a new version, by a change in place: from here on reads see it, as a whole."""
        self._detach()

    def _detach(self) -> None:
        if self.cached is not None:
            self.cached.detach()
            self.cached = None

    async def succeed(self, st: Stat, path: bytes) -> bool:
        """Another object has our name. If it is ours with more at the end, go on with it (R3: tail -f).

        No reader can tell: every byte that it may have seen is the same.
        """
        old = self.node.stat
        if self.staged is not None or not self.node.handles or not st.is_file:
            return False
        if st.size <= old.size or old.size > COMPARE_BYTES or self.node.stale_pages:
            return False
        grown = await open_if_grown(self.volume.store, path, st, self.read, old.size)
        if grown is None:
            return False
        successor, now = grown
        if self.staged is not None or self.volume.tree.path(self.node) != path:
            successor.close()
            return False
        if self.reader is not None:
            self.reader.close()
        self.reader = successor
        self._detach()
        self.volume.adopt(self.node, now)
        self.node.epoch += 1
        return True

    # -- writing (all under `lock`) --------------------------------------------

    async def stage(self, keep: int | None = None, *, replace: bool = False) -> StagedFile:
        """Make the file dirty, with the first `keep` bytes of its content; None: all that it has by then.

        `replace`: an O_TRUNC open.
        """
        if self.staged is not None:
            if replace and self.base not in (None, ABSENT):
                self.base = None
                self.volume.journal.rebase(self.staged.name, None)
            return self.staged
        volume, node = self.volume, self.node
        assert volume.staging is not None
        for _ in range(_TRIES):
            st = node.stat
            existing = st.size if keep is None else min(keep, st.size)
            staged = volume.staging.create()
            path = volume.tree.path(node)
            base = None if replace else st.version
            try:
                self._record(staged, volume.tree.home(node), base, existing)
                await take_over(self, staged, st, path, existing)
                crash.point("stage.taken")
                if existing < st.size:
                    volume.journal.rewrote(staged.name)
                if existing and self.reader is not None:
                    now = await self.reader.stat()
                    if now.version != st.version and now.identity == node.identity:
                        volume.observe(node, now, -math.inf)
                        raise VersionChanged("the file changed while it was copied")
            except VersionChanged:
                self._throw_away(staged)
                continue
            except BaseException:
                self._throw_away(staged)
                raise
            self.begin(staged, base, existing)
            self._existing = existing if existing == st.size else 0
            self.acknowledged = False
            self._promised = 0
            await self._let_go_of_reader()
            self._detach()
            node.epoch += 1
            return staged
        raise VersionChanged("the file changes faster than it can be copied")

    def begin(self, staged: StagedFile, base: Version | None, existing: int = 0) -> None:
        """The content is in this staged file from now on."""
        self.staged, self.base = staged, base
        self.ahead.begin(existing)

    async def _let_go_of_reader(self) -> None:
        """The staged file has all bytes; the reader is kept only if it alone leads to names unknown here."""
        reader = self.reader
        if reader is not None and self.volume.tree.home(self.node) is None:
            try:
                if (await reader.stat()).nlink:
                    return
            except VolfsError as error:
                log.debug("cannot look at a file without a name", error=str(error))
                return
        if reader is not None and self.reader is reader:
            self.reader = None
            reader.close()

    @property
    def owed(self) -> bool:
        """Whether the staged bytes belong to the store: the file has a name there, known here or not."""
        if self.staged is None:
            return False
        return self.volume.tree.home(self.node) is not None or self.reader is not None

    def _record(self, staged: StagedFile, path: bytes | None, base: Version | None, existing: int) -> None:
        state = State.OPEN if path is not None else State.GONE
        number, identity = staged.stat().number, self.node.identity
        self.volume.journal.add(staged.name, path or b"", base, existing, number, state, identity)
        crash.point("stage.recorded")

    def _throw_away(self, staged: StagedFile) -> None:
        staged.discard()
        self.volume.journal.remove(staged.name)

    async def write(self, offset: int | None, data: bytes | memoryview) -> int:
        """Write at `offset`, or at the end if it is None; where it went."""
        staged = await self.stage()
        where = staged.size if offset is None else offset
        self._about_to_change(staged, where)
        with self.ahead.writing(staged, where, len(data)):
            await staged.write(where, data)
        crash.point("stage.written")
        self.wrote(len(data))
        return where

    async def truncate(self, size: int, *, replace: bool = False) -> None:
        staged = await self.stage(size, replace=replace)
        self._about_to_change(staged, size)
        staged.truncate(size)
        self.ahead.cut(size)
        self.wrote(0)

    def _about_to_change(self, staged: StagedFile, offset: int) -> None:
        """The first change below the appended part makes it more than an append (W6)."""
        if offset < self._existing:
            self.volume.journal.rewrote(staged.name)
            self._existing = 0

    def wrote(self, count: int) -> None:
        """Content changed just now: it is not acknowledged any more, and the interval starts again."""
        now = trio.current_time()
        self.acknowledged = False
        self.activity = self.activity or Activity(now, now, 0)
        self.activity.wrote(now, count)

    def is_promised(self, offset: int) -> bool:
        """Whether a change from `offset` on would change what was acknowledged and is not committed (W6).

        After a crash there would be neither the old nor the new. Appending is no such change.
        """
        return (
            self.staged is not None
            and offset < self._promised
            and self.volume.tree.home(self.node) is not None
        )

    def acknowledge(self) -> None:
        """The application is told that its bytes are safe: a crash must not lose them."""
        home = self.volume.tree.home(self.node)
        if self.staged is not None and home is not None and not self.acknowledged:
            self.volume.journal.close_file(self.staged.name)
            self.acknowledged = True
            self._promised = self.staged.size
            crash.point("stage.acknowledged")

    # -- committing ------------------------------------------------------------

    async def commit(self, *, durable: bool, if_owed: bool = False) -> None:
        """Make the staged bytes the file in the store; on return they are. Raises the store's error.

        `if_owed`: for the queue, whose turn may come when others have done it.
        """
        await commit_file(self, durable=durable, if_owed=if_owed)

    def showing(self, trace: str) -> None:
        """A commit is about to change what the store has at our name; `trace` as `Upload.trace` has it."""
        assert self.staged is not None
        self.volume.journal.showing(self.staged.name, trace)

    def clean(self) -> None:
        """The staged bytes are in the store."""
        self.staged = None
        self.activity = None
        self.committed_s = trio.current_time()

    async def pin(self) -> None:
        """Our own unlink or rename is about to take the name: hold on to the bytes first."""
        if self.staged is None and self.reader is None and self.node.handles:
            path = self.volume.tree.path(self.node)
            if path is not None:
                try:
                    await self.open_reader(path)
                except VolfsError as error:
                    log.debug("cannot pin", path=path, error=str(error))

    def unnamed(self) -> None:
        """The last name is gone: nothing is left to commit to."""
        if self.staged is not None:
            self.volume.journal.drop_name(self.staged.name)
        self.volume.queue.remove(self.node.number)
        self.activity = None
        self.ahead.drop()

    def dispose(self) -> None:
        """No handle is open and nothing is owed."""
        self.ahead.drop()
        if self.staged is not None:
            self.staged.discard()
            self.volume.journal.remove(self.staged.name)
            self.staged = None
        if self.reader is not None:
            self.reader.close()
            self.reader = None
        if self.volume.cache is not None:
            self.volume.cache.wholes.done(self.node.stat.version)
        self._detach()
