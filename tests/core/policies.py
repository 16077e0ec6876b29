"""Caches of whole files as replacement policies see them: that of volfs, and those it is measured against.

Each has a limit in bytes and answers a use of a file with whether it was there.
"""

from __future__ import annotations

import heapq
import random
from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from volfs.core.admission import Admission, Queue

Use = tuple[int, int]  # key of a file, its size in bytes


class Policy(Protocol):
    def use(self, key: int, size: int) -> bool: ...


class Kept(NamedTuple):
    size: int
    used: int


class Volfs:
    """`core.admission`, as `cache.shelf` and `cache.evict` apply it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.admission = Admission(limit)
        self.guests: OrderedDict[int, Kept] = OrderedDict()
        self.residents: OrderedDict[int, Kept] = OrderedDict()
        self.guest_bytes = self.resident_bytes = 0
        self.exchanged = 0  # files written to the cache after it was full

    def use(self, key: int, size: int) -> bool:
        span = self.admission.use(key, size)
        self.admission.read(size)
        oldest = next((kept.used for kept in self.residents.values()), self.admission.clock)
        stays = key in self.residents or self.admission.displaces(span, oldest)
        hit = key in self.residents or key in self.guests
        if hit:
            self._drop(self.residents if key in self.residents else self.guests, key)
        if size > self.limit:
            return False
        while not hit and self.guest_bytes + self.resident_bytes + size > self.limit:
            self._evict()
        stays = stays or self.admission.has_place(self.resident_bytes, size)
        if stays:
            self.residents[key] = Kept(size, self.admission.clock)
            self.resident_bytes += size
        else:
            self.guests[key] = Kept(size, self.admission.clock)
            self.guest_bytes += size
        return hit

    def _drop(self, queue: OrderedDict[int, Kept], key: int) -> None:
        size = queue.pop(key).size
        if queue is self.guests:
            self.guest_bytes -= size
        else:
            self.resident_bytes -= size

    def _evict(self) -> None:
        guest, resident = next(iter(self.guests), None), next(iter(self.residents), None)
        gives = self.admission.gives(
            None if guest is None else self.guests[guest].used,
            None if resident is None else self.residents[resident].used,
            self.resident_bytes,
        )
        self.exchanged += gives is Queue.RESIDENTS
        queue = self.guests if gives is Queue.GUESTS else self.residents
        self._drop(queue, next(iter(queue)))


class Lru:
    """The one used longest ago leaves."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.kept: OrderedDict[int, int] = OrderedDict()
        self.bytes = 0

    def use(self, key: int, size: int) -> bool:
        if key in self.kept:
            self.kept.move_to_end(key)
            return True
        if size <= self.limit:
            while self.bytes + size > self.limit:
                self.bytes -= self.kept.popitem(last=False)[1]
            self.kept[key] = size
            self.bytes += size
        return False


class TwoRandom:
    """Of two drawn at random the one used longer ago leaves (JuiceFS)."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.kept: dict[int, Kept] = {}
        self.keys: list[int] = []
        self.bytes = 0
        self.clock = 0
        self.random = random.Random(1)

    def use(self, key: int, size: int) -> bool:
        self.clock += 1
        hit = key in self.kept
        if not hit:
            if size > self.limit:
                return False
            while self.bytes + size > self.limit:
                drawn = [self.random.randrange(len(self.keys)) for _ in range(2)]
                place = min(drawn, key=lambda i: self.kept[self.keys[i]].used)
                self.bytes -= self.kept.pop(self.keys[place]).size
                self.keys[place] = self.keys[-1]
                self.keys.pop()
            self.keys.append(key)
            self.bytes += size
        self.kept[key] = Kept(size, self.clock)
        return hit


class Optimum:
    """Who is used latest in the future leaves, be it the newcomer (Belady's MIN; exact for one size)."""

    def __init__(self, limit: int, trace: Sequence[Use]) -> None:
        self.limit = limit
        self.next = [0] * len(trace)
        seen: dict[int, int] = {}
        for i in reversed(range(len(trace))):
            self.next[i] = seen.get(trace[i][0], len(trace))
            seen[trace[i][0]] = i
        self.position = 0
        self.kept: dict[int, Kept] = {}
        self.latest: list[tuple[int, int]] = []
        self.bytes = 0

    def use(self, key: int, size: int) -> bool:
        following = self.next[self.position]
        self.position += 1
        hit = key in self.kept
        self.bytes += 0 if hit else size
        self.kept[key] = Kept(size, following)
        heapq.heappush(self.latest, (-following, key))
        while self.bytes > self.limit:
            when, last = heapq.heappop(self.latest)
            if last in self.kept and self.kept[last].used == -when:
                self.bytes -= self.kept.pop(last).size
        return hit
