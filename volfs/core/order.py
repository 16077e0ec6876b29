"""In which order the files of a directory are opened, and which come next.

Programs follow one of a few orders: that of the listing (find, tar), that of the
inode numbers (`cp -r` sorts by them), or that of the names (sorted(os.listdir),
ImageFolder). Which one, the first opens tell; it is then presumed for the next
directory. A program that knows its order says it (`Hint`).

Several readers may go through one directory at once, each in steps of more than
one (workers of a loader): a directory has several streams, and each open
belongs to the nearest. The window of a stream doubles whenever its reader had to
wait for a file, as `core.readahead` does inside a file. It is refilled when half of it
is used up: what has to be known about many files costs little more than about one.
This module is pure.

*Invariants:* a name is asked for at most once a stream, unless its reader turns
back. What is asked for is ahead of the open that asked.
"""

from __future__ import annotations

import enum
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

__all__ = ["FIRST_WINDOW", "MOST_WINDOW", "Hint", "Listed", "Order"]

#: Files: little is lost if the reader ends here.
FIRST_WINDOW: Final = 4

#: 128 files at 40 ms each are 3,200 a second. More would only be older when they are read.
MOST_WINDOW: Final = 128

#: Opens in one order that make it believed.
_ENOUGH: Final = 3

#: Loaders take every k-th file, and skip some: so far may an open be from the one that it follows.
_NEAR: Final = 16

#: So many opens in a row that were near, if in no steady step (several workers share one stream).
_ENOUGH_NEAR: Final = 6

#: Readers of one directory at once; the one heard of longest ago gives way.
_STREAMS: Final = 16


class Order(enum.IntEnum):
    """Of the names of a directory."""

    LISTED = 0
    NUMBERED = 1
    NAMED = 2


@dataclass(slots=True)
class _Way:
    """What a stream does in one order."""

    last: int
    step: int = 0  # 0: not known yet
    run: int = 1  # opens in this step
    near: int = 1  # opens near the one before

    @property
    def believed(self) -> bool:
        return self.run >= _ENOUGH or self.near >= _ENOUGH_NEAR

    def distance(self, place: int, window: int) -> int | None:
        """How far an open is, None if too far to belong here."""
        delta = place - self.last
        if self.believed:
            reach = max(_NEAR, window * max(1, self.step))
            return abs(delta) if -reach <= delta <= reach else None
        return delta if 0 < delta <= _NEAR else abs(delta) + 1 if -_NEAR <= delta < 0 else None

    def advance(self, place: int, window: int) -> None:
        delta = place - self.last
        if self.distance(place, window) is None:
            self.last, self.step, self.run, self.near = place, 0, 1, 1
            return
        if self.believed:
            if self.step and delta % self.step:
                self.step = 1  # no steady step after all
            self.last = max(self.last, place)
            return
        self.near += 1
        if delta == self.step:
            self.run += 1
        else:
            self.step, self.run = max(delta, 0), 2 if delta > 0 else 1
        if self.near == _ENOUGH_NEAR and self.run < _ENOUGH:
            self.step = 1
        self.last = max(self.last, place)


@dataclass(slots=True)
class _Stream:
    ways: tuple[_Way, ...]
    window: int = 0
    order: Order | None = None  # the one that it asks in
    ahead: int = 0  # the last place in it that was asked for

    def leading(self, presumed: Order) -> Order | None:
        """The order that most opens were in."""
        believed = [order for order in Order if self.ways[order].believed]
        return max(
            believed, key=lambda order: (self.ways[order].run, order is presumed, -order), default=None
        )


@dataclass(slots=True)
class Listed:
    """One directory that was listed: entries as (name, inode number), in the order of the listing.

    `presumed`: the order and window that were right in the directory before; None if nothing is known.
    """

    entries: Sequence[tuple[bytes, int]]
    presumed: tuple[Order, int] | None = None
    _index: dict[bytes, int] = field(default_factory=dict)
    _sequences: tuple[array[int], ...] = ()
    _places: tuple[array[int], ...] = ()
    _streams: list[_Stream] = field(default_factory=list)

    @property
    def follows(self) -> tuple[Order, int] | None:
        """The order that its latest believed reader goes in, and the window that it needed."""
        for stream in reversed(self._streams):
            if stream.order is not None:
                return stream.order, stream.window
        return None

    def opened(self, name: bytes, *, waited: bool) -> list[bytes]:
        """Take note of an open; the names to fetch now, the next one first.

        `waited`: the file was asked for, and was not here yet. A name that is not in the listing
        says nothing.
        """
        if not self._index:
            self._sort()
        at = self._index.get(name)
        if at is None:
            return []
        if self._goes_on(at, waited):
            return []
        places = [sequence[at] for sequence in self._places]
        stream = self._match(places)
        if stream is None:
            stream = self._begin(places)
        else:
            for way, place in zip(stream.ways, places, strict=True):
                way.advance(place, stream.window)
        return self._ask(stream, waited)

    def _goes_on(self, at: int, waited: bool) -> bool:
        """Whether the open is the very next one of the latest stream, and enough was asked for.

        Nearly every open is: only its own order is looked at, and the others start anew if it ends.
        """
        stream = self._streams[-1] if self._streams else None
        if stream is None or stream.order is None or waited:
            return False
        way = stream.ways[stream.order]
        place = self._places[stream.order][at]
        if place != way.last + max(1, way.step) or place > stream.ahead - stream.window // 2 * max(
            1, way.step
        ):
            return False
        way.last = place
        return True

    def _sort(self) -> None:
        entries = self.entries
        self._index = {name: i for i, (name, _) in enumerate(entries)}
        listed = range(len(entries))
        sequences = (
            listed,
            sorted(listed, key=lambda i: entries[i][1]),
            sorted(listed, key=lambda i: entries[i][0]),
        )
        self._sequences = tuple(array("L", sequence) for sequence in sequences)
        places = []
        for sequence in self._sequences:
            inverse = array("L", bytes(sequence.itemsize * len(sequence)))
            for place, i in enumerate(sequence):
                inverse[i] = place
            places.append(inverse)
        self._places = tuple(places)

    def _match(self, places: Sequence[int]) -> _Stream | None:
        """The nearest stream; it is the latest one from now on."""
        best: tuple[bool, int] | None = None
        found: _Stream | None = None
        for stream in reversed(self._streams):
            for way, place in zip(stream.ways, places, strict=True):
                distance = way.distance(place, stream.window)
                if distance is not None and (best is None or (not way.believed, distance) < best):
                    best, found = (not way.believed, distance), stream
        if found is not None and found is not self._streams[-1]:
            self._streams.remove(found)
            self._streams.append(found)
        return found

    def _begin(self, places: Sequence[int]) -> _Stream:
        stream = _Stream(tuple(_Way(place) for place in places))
        if self.presumed is not None:
            order, window = self.presumed
            if places[order] < _NEAR:  # it begins at the beginning
                stream.ways[order].run, stream.ways[order].step = _ENOUGH, 1
                stream.window = max(FIRST_WINDOW, window)
        self._streams.append(stream)
        del self._streams[:-_STREAMS]
        return stream

    def _ask(self, stream: _Stream, waited: bool) -> list[bytes]:
        order = stream.leading(self.presumed[0] if self.presumed else Order.LISTED)
        if order is None:
            return []
        way, sequence = stream.ways[order], self._sequences[order]
        if order is not stream.order:
            stream.order, stream.ahead = order, way.last
            stream.window = max(FIRST_WINDOW, stream.window)
        elif waited:
            stream.window = min(2 * stream.window, MOST_WINDOW)
        step = max(1, way.step)
        first = max(stream.ahead, way.last) + 1
        if step > 1:  # the next place in step with the last one
            first = way.last + -(-(first - way.last) // step) * step
        end = way.last + stream.window * step + 1
        wanted = range(first, min(end, len(sequence)), step)
        if not wanted or (len(wanted) <= stream.window // 2 and end < len(sequence)):
            return []
        stream.ahead = wanted[-1]
        return [self.entries[sequence[place]][0] for place in wanted]


class Hint:
    """An order that somebody said: paths, each to be opened about once for each time that it is in it."""

    def __init__(self) -> None:
        self._paths: deque[bytes] = deque()  # from ordinal `_base` on
        self._base = 0
        self._ordinals: dict[bytes, deque[int]] = {}
        self._ahead = 0  # the first ordinal that was not asked for
        self._last = 0  # the largest one that was opened, and one more
        self._window = 4 * FIRST_WINDOW

    def __len__(self) -> int:
        """Paths that were not opened yet, or may not have been."""
        return len(self._paths)

    def add(self, paths: Iterable[bytes]) -> list[bytes]:
        """More of the order; what to fetch now."""
        for path in paths:
            self._ordinals.setdefault(path, deque()).append(self._base + len(self._paths))
            self._paths.append(path)
        return self._ask()

    def opened(self, path: bytes, *, waited: bool) -> list[bytes] | None:
        """Take note of an open; what to fetch now, or None if it is not in the order.

        A reader may run ahead or stay behind (workers take turns); what lies more than the largest
        window behind the foremost is given up.
        """
        ordinals = self._ordinals.get(path)
        if ordinals is None:
            return None
        ordinal = ordinals.popleft()
        if not ordinals:
            del self._ordinals[path]
        self._last = max(self._last, ordinal + 1)
        if waited:
            self._window = min(2 * self._window, MOST_WINDOW)
        while self._base < self._last - MOST_WINDOW:
            self._pass(self._paths.popleft())
        return self._ask()

    def _pass(self, path: bytes) -> None:
        """The path at `_base` was opened, or will not be."""
        ordinals = self._ordinals.get(path)
        if ordinals and ordinals[0] == self._base:
            ordinals.popleft()
            if not ordinals:
                del self._ordinals[path]
        self._base += 1

    def _ask(self) -> list[bytes]:
        start = max(self._ahead, self._last, self._base)
        end = self._base + len(self._paths)
        stop = min(self._last + self._window, end)
        if stop - start <= self._window // 2 and stop < end:
            return []
        self._ahead = max(start, stop)
        return [self._paths[i - self._base] for i in range(start, stop)]
