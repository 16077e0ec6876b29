"""Fetching ahead across files: the small files that will be opened next, whole, before they are.

It remembers what was listed lately and what clients said that they will open,
hears of every open, and asks `core.order` what comes next. It fetches attributes
and bytes in one call, so that the LOOKUP and the OPEN of such a file need no call
to the store, and gives the bytes to the cache, which has them in memory at once
and on the disk a little later. It does not decide what a read sees: what it
fetched is served as long as any answer of the store is (`Volume.fresh`), and under
its version.

Only for stores where a call takes a while; beside a local one it does nothing.

*Concurrency:* the trio thread; fetches are tasks in the nursery of `run`, and an
open that finds the fetch of its file under way waits for that one. What the store
answered is dropped if something of ours changed meanwhile (`Node.epoch`). An error
of a fetch is nobody's: the open meets it itself.

*Invariants:* at most one fetch a path. Memory is asked for before the store
is. What is remembered is bounded.
"""

from __future__ import annotations

import errno
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog
import trio

from volfs.core.order import Hint, Listed, Order
from volfs.core.versions import Version, is_racy
from volfs.errors import StoreError, StoreTimeout, VolfsError
from volfs.fs.tree import Node, join
from volfs.fs.volume import Volume
from volfs.store.base import RESERVED

if TYPE_CHECKING:
    from volfs.fs.names import Names

__all__ = ["HINTED", "WHOLE_BYTES", "Siblings"]

log = structlog.get_logger(__name__)

#: Files up to this size are fetched whole; larger ones are worth a window of their own (`core.readahead`).
WHOLE_BYTES: Final = 4 << 20

#: A file up to this size is fetched whole when it is opened: reading a part of it costs the same round trip.
_AT_OPEN_BYTES: Final = 256 << 10

#: Fetches at once: some more than the store has threads, so that none of these has to sleep between two.
_AT_ONCE: Final = 80

#: Names that are remembered, of all directories listed lately: some 20 MB.
_NAMES: Final = 100_000

#: Paths of one hint that were not opened yet. More of it is to come when these were.
HINTED: Final = 100_000

#: Callers whose hints are remembered: one a worker of a loader.
_HINTS: Final = 256


#: Lookups that came too early are remembered for the opens that follow them.
_LATE: Final = 1000


class _Fetch:
    """What is under way for one path. `reserved`: memory that it has and did not use yet."""

    __slots__ = ("done", "error", "path", "reserved")

    def __init__(self, path: bytes, reserved: int = 0) -> None:
        self.path = path
        self.reserved = reserved
        self.done = trio.Event()
        self.error: Exception | None = None


class _Pass(NamedTuple):
    """A listing that was read to its end: when it began, and the directory's epoch then."""

    listed: Listed
    began_s: float
    epoch: int


#: A way to bring what is known of a path up to date.
_How = Callable[[_Fetch], Awaitable[None]]


class Siblings:
    """See the module."""

    def __init__(self, volume: Volume, names: Names) -> None:
        self._volume = volume
        self._tree = volume.tree
        self._names = names
        self._nursery: trio.Nursery | None = None
        self._listed: OrderedDict[int, _Pass] = OrderedDict()
        self._count = 0  # of names in `_listed`
        self._presumed: tuple[Order, int] | None = None
        self._hints: OrderedDict[int, Hint] = OrderedDict()
        #: Paths to fetch, the next one first; False where the attributes will do.
        self._queue: OrderedDict[bytes, bool] = OrderedDict()
        self._fetches: dict[bytes, _Fetch] = {}
        self._late: set[bytes] = set()  # looked up before their fetch was done
        self._pumping = False

    async def run(self) -> None:
        """Fetch, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None
                self._queue.clear()

    @property
    def active(self) -> bool:
        volume = self._volume
        return (
            self._nursery is not None
            and volume.cache is not None
            and not volume.store.local
            and not volume.ending
        )

    # -- what is known of the order ------------------------------------------------

    def listed(self, directory: Node, entries: list[tuple[bytes, int]], began_s: float, epoch: int) -> None:
        """A directory was listed: all names and inode numbers, in this order, and when that began."""
        self._forget(directory.number)
        if not self.active or not 1 < len(entries) <= _NAMES:
            return
        self._listed[directory.number] = _Pass(Listed(entries, self._presumed), began_s, epoch)
        self._count += len(entries)
        while self._count > _NAMES:
            self._forget(next(iter(self._listed)))

    def grew(self, directory: Node) -> None:
        """A name turned up that may not have been listed: the next listing is a new one."""
        known = self._listed.get(directory.number)
        if known is not None:
            self._listed[directory.number] = known._replace(began_s=-math.inf)

    def recall(self, directory: Node) -> list[bytes] | None:
        """The names in a directory of which a listing began within the freshness, if none came or went since.

        Names that others removed meanwhile are among them, if nobody asked for these since.
        """
        known = self._listed.get(directory.number)
        if known is None or known.epoch != directory.epoch or not self.active:
            return None
        if trio.current_time() >= known.began_s + self._volume.policy.freshness_s:
            return None
        return [name for name, _ in known.listed.entries]

    def _forget(self, number: int) -> None:
        known = self._listed.pop(number, None)
        if known is not None:
            self._count -= len(known.listed.entries)

    def hint(self, directory: Node, paths: Iterable[bytes], caller: int) -> None:
        """`caller` will open these paths below the directory, in this order, after those that it named.

        EAGAIN if too many of them were not opened yet. A path that leads nowhere is ignored.
        """
        base = self._tree.directory_path(directory)
        if not directory.is_dir:
            raise StoreError("a hint is set on a directory", errno=errno.ENOTDIR)
        if not self.active:
            return
        hint = self._hints.setdefault(caller, Hint())
        self._hints.move_to_end(caller)
        wanted = [path for path in (join(base, each) for each in paths if each) if _is_plain(path)]
        if len(hint) + len(wanted) > HINTED:
            raise StoreError("too many paths wait to be opened", errno=errno.EAGAIN)
        self._want(hint.add(wanted))
        while len(self._hints) > _HINTS:
            self._hints.popitem(last=False)

    def opened(self, node: Node) -> None:
        """A file is being opened for reading: fetch what comes after it."""
        if not (self._listed or self._hints) or not node.names or not self.active:
            return
        parent, name = next(iter(node.names))
        directory = self._tree.path(parent)
        if directory is None:
            return
        path = join(directory, name)
        waited = path in self._fetches or path in self._queue or path in self._late
        self._late.discard(path)
        self._queue.pop(path, None)
        hinted = False
        for hint in self._hints.values():
            more = hint.opened(path, waited=waited)
            if more is not None:
                self._want(more)
                hinted = True
        known = self._listed.get(parent.number)
        if known is not None and not hinted:
            listed = known.listed
            self._want(join(directory, each) for each in listed.opened(name, waited=waited))
            self._listed.move_to_end(parent.number)
            self._presumed = listed.follows or self._presumed
        self.pump()

    def missed(self, parent: Node, name: bytes) -> None:
        """A name is looked up, and the store has to be asked: if it was to be fetched, that came too late."""
        if self._fetches or self._queue:
            directory = self._tree.path(parent)
            if directory is not None:
                path = join(directory, name)
                if path in self._fetches or path in self._queue:
                    if len(self._late) >= _LATE:
                        self._late.clear()  # looked up and not opened, all of them
                    self._late.add(path)

    # -- fetching --------------------------------------------------------------------

    def _want(self, paths: Iterable[bytes]) -> None:
        cache = self._volume.cache
        sizes: dict[Version, int] = {}
        versions: dict[bytes, Version | None] = {}
        for path in paths:
            if path not in self._fetches:
                node = self._tree.known(path)
                versions[path] = node.stat.version if node is not None else None
                if node is not None and 0 < node.stat.size <= WHOLE_BYTES:
                    sizes[node.stat.version] = node.stat.size
        if versions and cache is not None:
            complete = cache.complete(sizes)
            for path, version in versions.items():
                self._queue[path] = version in sizes and version not in complete
        self.pump()

    def pump(self) -> None:
        """Start what there is memory and a place for."""
        cache = self._volume.cache
        if not self.active or cache is None:
            self._queue.clear()
            return
        if self._pumping:
            return  # asking for memory freed some
        self._pumping = True
        cache.wholes.call_back(self, wanted=False)
        try:
            while self._queue and len(self._fetches) < _AT_ONCE:
                path, lacks = next(iter(self._queue.items()))
                if path not in self._fetches and not self._begin(path, lacks):
                    cache.wholes.call_back(self, wanted=True)
                    return
                self._queue.pop(path, None)
        finally:
            self._pumping = False

    def _begin(self, path: bytes, lacks: bool) -> bool:
        """Fetch one, if that is of use; False if there is no memory for it now."""
        volume, nursery = self._volume, self._nursery
        assert volume.cache is not None and nursery is not None
        node = self._tree.known(path)
        if node is None:
            self._start(nursery, self._find, _Fetch(path))
        elif node.is_file and not node.dirty:
            st, wholes = node.stat, volume.cache.wholes
            if lacks and 0 < st.size <= WHOLE_BYTES and not wholes.has(st.version):
                if not wholes.reserve(st.size):
                    return False
                self._start(nursery, self._fetch, _Fetch(path, st.size))
            elif not volume.fresh(node):
                self._start(nursery, self._look, _Fetch(path))
        return True

    def _is_worth(self, node: Node) -> bool:
        """Whether the bytes, and not the attributes alone, are to be fetched."""
        st, cache = node.stat, self._volume.cache
        assert cache is not None
        if not 0 < st.size <= WHOLE_BYTES or cache.wholes.has(st.version):
            return False
        return not cache.complete({st.version: st.size})

    async def settle(self, node: Node) -> None:
        """The node is being opened: let it be known, and its bytes here, if one small fetch can do that.

        StoreTimeout if the store does not answer; all else is for the open to find out.
        """
        path = self._tree.path(node)
        if path is None or not self.active:
            return
        fetch = self._fetches.get(path)
        if fetch is not None:
            await fetch.done.wait()
        elif node.stat.size > WHOLE_BYTES:
            return
        elif not self._is_worth(node):
            fetch = self._fetches[path] = _Fetch(path)
            await self._guarded(self._look, fetch)
        elif node.stat.size <= _AT_OPEN_BYTES and not self._volume.racy(node.stat):
            assert self._volume.cache is not None
            self._volume.cache.wholes.reserve_now(node.stat.size)
            fetch = self._fetches[path] = _Fetch(path, node.stat.size)
            await self._guarded(self._fetch, fetch)
        if fetch is not None and isinstance(fetch.error, StoreTimeout):
            raise fetch.error

    def _start(self, nursery: trio.Nursery, how: _How, fetch: _Fetch) -> None:
        self._fetches[fetch.path] = fetch
        nursery.start_soon(self._guarded, how, fetch)

    async def _guarded(self, how: _How, fetch: _Fetch) -> None:
        try:
            await how(fetch)
        except VolfsError as error:
            fetch.error = error
        except Exception as error:
            fetch.error = error
            self._volume.errors += 1
            log.exception("fetching ahead failed")
        finally:
            if fetch.reserved and self._volume.cache is not None:
                self._volume.cache.wholes.cancel(fetch.reserved)
            del self._fetches[fetch.path]
            fetch.done.set()
            self.pump()

    async def _find(self, fetch: _Fetch) -> None:
        """A path of which this mount knows nothing yet, or nothing any more."""
        *above, _ = fetch.path.split(b"/")
        node = self._tree.root
        for name in above:
            node = await self._names.find(node, name, force=False)
        assert self._volume.cache is not None
        if self._volume.cache.wholes.reserve(_AT_OPEN_BYTES):
            fetch.reserved = _AT_OPEN_BYTES
            await self._fetch(fetch)

    async def _look(self, fetch: _Fetch) -> None:
        """The bytes are here, or too many: ask for the attributes alone."""
        node = self._tree.known(fetch.path)
        if node is not None:
            await self._volume.look(node)

    async def _fetch(self, fetch: _Fetch) -> None:
        volume = self._volume
        directory, _, name = fetch.path.rpartition(b"/")
        parent, node = self._tree.known(directory), self._tree.known(fetch.path)
        if parent is None or volume.cache is None:
            return
        epochs = parent.epoch, node.epoch if node is not None else 0
        asked_s, now_ns = trio.current_time(), volume.now_ns()
        known = node.stat if node is not None else None
        st, data = await volume.store.fetch(fetch.path, WHOLE_BYTES, known)
        child = parent.children.get(name)  # may have been looked up meanwhile, which is no change
        if (parent.epoch, child.epoch if child is not None else 0) != epochs or (node and child is not node):
            return
        if (child is not None and child.dirty) or self._tree.path(parent) != directory:
            return
        node = await self._names.bind(parent, name, st, asked_s)
        self._tree.drop(node)  # if nobody knows it but us
        if data is None or len(data) != st.size or node.stat.version != st.version or node.dirty:
            return
        wholes = volume.cache.wholes
        if fetch.reserved != st.size:
            wholes.cancel(fetch.reserved)
            wholes.reserve_now(st.size)
        fetch.reserved = 0
        # What may still change unseen is as good as any answer of that moment, and no longer.
        racy = is_racy(max(st.mtime_ns, st.ctime_ns), now_ns, volume.store.granularity_ns)
        until_s = asked_s + volume.policy.freshness_s if racy else None
        wholes.put(st.version, data, keep=not racy, until_s=until_s)


def _is_plain(path: bytes) -> bool:
    """Whether a path leads down, name by name, and not to what is hidden."""
    names = path.split(b"/")
    return names[0] != RESERVED and all(name not in (b"", b".", b"..") for name in names)
