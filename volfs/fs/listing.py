"""Listings: one pass over a directory, the store's names and those that only this mount has.

*Invariants:* offsets are ordinals of this pass, from 1. Only the names since the
last request are kept, and one step ahead, so that memory does not grow with the
directory; up to _MOST_TOLD names are told to `fs.siblings`, which has a bound for all. A name is given out
with attributes that are as fresh as a lookup's (`Names.is_fresh`), or were asked for
after nothing of ours changed in the directory.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import structlog
import trio

from volfs.errors import StoreError, VolfsError
from volfs.fs.names import Names
from volfs.fs.tree import Node
from volfs.fs.volume import Volume
from volfs.store.base import DirectoryReader, Stat

__all__ = ["Emit", "Listing"]

log = structlog.get_logger(__name__)

#: Takes (name, node, offset of the next entry); False if there is no room for it. Counts the lookup itself.
Emit = Callable[[bytes, Node, int], bool]

#: Names a step: enough for one reply of the kernel's usual size at first, then as many as fitted last time.
_FIRST_STEP = 64
_MOST_STEP = 2048

#: So many names are remembered for `fs.siblings`; of a larger directory none.
_MOST_TOLD = 100_000

#: How often attributes are asked for again because something of ours changed in the directory meanwhile.
_TRIES = 10


class _Coming:
    """Names that are being read. `orphan`: nobody wants them any more, and the reader ends with them."""

    __slots__ = ("done", "error", "names", "orphan", "reader")

    def __init__(self, reader: DirectoryReader) -> None:
        self.reader = reader
        self.done = trio.Event()
        self.names: list[bytes] = []
        self.error: VolfsError | None = None
        self.orphan = False


class Listing:
    """An open directory."""

    def __init__(self, volume: Volume, names: Names, node: Node) -> None:
        self._volume = volume
        self._names = names
        self.node = node
        self._reader: DirectoryReader | None = None
        self._names_read: list[bytes] = []  # since the last request's first, which is ordinal `_base`
        self._base = 0
        self._step = _FIRST_STEP
        self._ours: set[bytes] = (
            set()
        )  # had bytes to commit when the pass began; the store did not name them yet
        self._ended = False
        self._given: list[tuple[bytes, int]] = []  # all names and numbers, for `fs.siblings`
        self._began = 0.0, 0  # when, and the directory's epoch
        self._recalled: Iterator[bytes] | None = None  # the names of a pass that is as good as a new one
        self._coming: _Coming | None = None
        self._chunk = _FIRST_STEP

    async def open(self) -> None:
        """Open the store's directory, so that a removed one fails here; not if it was listed just now."""
        self._began = trio.current_time(), self.node.epoch
        names = self._volume.siblings.recall(self.node)
        self._recalled = None if names is None else iter(names)
        if self._recalled is None:
            await self._scan()
        self._ours = {name for name, child in self.node.children.items() if child.dirty or child.pending}

    async def _scan(self) -> DirectoryReader:
        if self._reader is None:
            path = self._volume.tree.directory_path(self.node)
            self._volume.watch(self.node, path)
            self._reader = await self._volume.store.scan(path)
        return self._reader

    async def read(self, offset: int, emit: Emit) -> None:
        """Give out entries from `offset` on until `emit` has no room."""
        await self._seek(offset)
        given = at = 0
        while True:
            if len(self._names_read) - at < self._step and not self._ended:
                await self._more()
            step = self._names_read[at : at + self._step]
            if not step:
                if self._recalled is None and len(self._given) == self._base + at < _MOST_TOLD:
                    self._volume.siblings.listed(self.node, self._given, *self._began)
                return
            entries = await self._attributes(step)
            for name in step:
                node = entries.get(name)
                if node is not None:
                    if not emit(name, node, self._base + at + 1):
                        self._step = max(16, min(_MOST_STEP, given + given // 4))
                        return
                    given += 1
                    if len(self._given) < _MOST_TOLD:
                        self._given.append((name, node.number))
                at += 1

    async def _more(self) -> None:
        if self._recalled is not None:
            names = list(islice(self._recalled, self._step))
        elif self._volume.siblings.active and self._volume.policy.freshness_s and self._volume.tasks:
            names = await self._take()
        else:
            names = await (await self._scan()).names(self._step)
        if names:
            self._names_read += names
            self._ours.difference_update(names)
            return
        self._ended = True
        self._names_read += sorted(self._ours)  # committed by now, perhaps, and forgotten

    async def _take(self) -> list[bytes]:
        """The next names, which were read while those before were given out; and begin with more."""
        coming = self._coming or self._read_ahead(await self._scan())
        await coming.done.wait()
        self._coming = None
        if coming.error is not None:
            raise coming.error
        if coming.names and self._reader is not None:
            self._read_ahead(self._reader)
        return coming.names

    def _read_ahead(self, reader: DirectoryReader) -> _Coming:
        assert self._volume.tasks is not None
        self._coming = _Coming(reader)
        self._volume.tasks.start_soon(self._bring, self._coming)
        return self._coming

    async def _bring(self, coming: _Coming) -> None:
        """Read names and let their attributes be known, so that `_attributes` has not to ask."""
        try:
            coming.names = await coming.reader.names(self._chunk)
            self._chunk = min(4 * self._chunk, _MOST_STEP)
            if coming.names and not coming.orphan:
                for node in (await self._attributes(coming.names, coming.reader)).values():
                    self._volume.tree.drop(node)  # if nobody knows it but us
        except VolfsError as error:
            if not coming.names:
                coming.error = error
        except Exception:
            self._volume.errors += 1
            log.exception("reading a directory ahead failed")
            coming.error = coming.error or StoreError("reading a directory failed", errno=errno.EIO)
        finally:
            coming.done.set()
            if coming.orphan:
                coming.reader.close()

    async def _seek(self, offset: int) -> None:
        """Go to an ordinal: where we are, a little back (a reply did not fit), or anywhere after a rewind."""
        if offset < self._base:
            self.close()
            await self.open()
            self._names_read, self._base, self._ended, self._given = [], 0, False, []
        while self._base + len(self._names_read) < offset and not self._ended:
            self._base += len(self._names_read)
            self._names_read = []
            await self._more()
        skip = min(offset - self._base, len(self._names_read))
        del self._names_read[:skip]
        self._base += skip

    async def _attributes(
        self, names: list[bytes], reader: DirectoryReader | None = None
    ) -> dict[bytes, Node]:
        """Nodes of those names that exist."""
        node = self.node
        known: dict[bytes, Node] = {}
        stats: list[tuple[bytes, Stat]] = []
        asked_s = trio.current_time()
        for _ in range(_TRIES):
            epoch, dirty, asked_s = node.epoch, self._dirty(names), trio.current_time()
            known = self._known(names)
            ask = [name for name in names if name not in dirty and name not in known]
            stats = await (reader or await self._scan()).stats(ask) if ask else []
            # What was committed meanwhile, and may be forgotten already, is the store's to tell of now.
            if node.epoch == epoch and self._dirty(dirty) == dirty:
                break
        found = {name: await self._names.bind(node, name, st, asked_s) for name, st in stats}
        found |= known | self._dirty(names)
        return {name: child for name, child in found.items() if node.children.get(name) is child}

    def _known(self, names: Iterable[bytes]) -> dict[bytes, Node]:
        """Those of which the store was asked just now, by this pass, another one, or a lookup."""
        children, is_fresh = self.node.children, self._names.is_fresh
        return {
            name: child for name in names if (child := children.get(name)) is not None and is_fresh(child)
        }

    def _dirty(self, names: Iterable[bytes]) -> dict[bytes, Node]:
        """Those of which this mount knows the truth."""
        children = self.node.children
        return {name: child for name in names if (child := children.get(name)) is not None and child.dirty}

    def close(self) -> None:
        coming, self._coming = self._coming, None
        if coming is not None and not coming.done.is_set():
            coming.orphan = True  # its reader is in use
        elif self._reader is not None:
            self._reader.close()
        self._reader = None
        self._chunk = _FIRST_STEP
