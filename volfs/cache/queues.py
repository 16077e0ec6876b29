"""The two queues of the cache: which blocks are guests, what each queue takes, and what was used when.

It applies `core.admission` to cache files and their blocks. It keeps no list of
files: a queue's order is `used`, in memory and in the index, and `evict` merges them.

A block is a guest or a resident from when it comes until it leaves, or until its
file moves in. A file that is in the index only is one or the other as a whole: what
most of its blocks were.

*Concurrency:* the trio thread.

*Invariants:* `guest_bytes` is the sum of `guest_cost` of the files in memory, and of
the costs of the guests that are in the index only; files on their way out are not
counted. `resident_bytes` likewise.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from volfs.cache.cachefile import CacheFile
from volfs.cache.index import GUEST, Row
from volfs.core.admission import Admission
from volfs.core.spans import block_count, cost_bytes
from volfs.core.versions import Version

__all__ = ["WHOLE_BYTES", "Queues"]

#: Files that were read and are to come as residents: it takes them a moment, not minutes.
_MOVERS: Final = 1024

#: Up to this size an unused file goes whole: finding out what it has costs more than it saves.
WHOLE_BYTES: Final = 8 << 20


class Queues:
    """See the module. Begins with what the index has: its latest use, and what its files take."""

    def __init__(self, clock: int, resident_bytes: int, guest_bytes: int) -> None:
        self.admission = Admission(0, max(1, clock), WHOLE_BYTES)  # `evict` says what the limit is
        self.resident_bytes = resident_bytes
        self.guest_bytes = guest_bytes
        self._movers: OrderedDict[Version, None] = OrderedDict()  # those that come as residents
        self.oldest = 0  # clock of the last use of the resident that gives next, when somebody looked last

    # -- uses ------------------------------------------------------------------------

    def came(self, file: CacheFile) -> bool:
        """Somebody begins to read a file that nobody reads; whether that made its guests residents."""
        file.passed = 0
        return self._note(file)

    def read(self, file: CacheFile, size: int) -> bool:
        """So many bytes of it are read; whether that made its guests residents."""
        self.admission.read(size)
        file.used = self.admission.clock
        file.passed += size
        # Open all the time, and read from the start again: more than once, for the kernel's disorder.
        if not size or 4 * file.passed < 5 * file.size:
            return False
        file.passed -= file.size
        return self._note(file)

    def served(self, version: Version, size: int, offset: int, count: int) -> None:
        """So many bytes of a file were read from memory, past its cache file, which may come later."""
        if not offset and self.admission.displaces(self.admission.use(hash(version), size), self.oldest):
            self._movers[version] = None
            while len(self._movers) > _MOVERS:
                self._movers.popitem(last=False)
        self.admission.read(count)

    def invite(self, file: CacheFile) -> bool:
        """Somebody wants the file here, whatever else is: all that comes stays; whether it had guests."""
        file.moves_in = True
        was_guest = bool(file.guest_cost)
        self._move_in(file)
        return was_guest

    def _note(self, file: CacheFile) -> bool:
        # Waits are counted from start to start; `used` is the end of the last reading.
        last = file.used - file.size if file.used and file.saved else None
        span = self.admission.use(hash(file.version), file.size, last)
        if span is not None:
            file.moves_in = self.admission.displaces(span, self.oldest)
        if not file.is_guest:
            return False
        if not (file.moves_in or self.admission.has_place(self.resident_bytes, file.guest_cost)):
            return False
        self._move_in(file)
        return True

    def _move_in(self, file: CacheFile) -> None:
        file.is_guest = False
        file.guests.clear()
        self.recount(file)

    # -- what is ahead ---------------------------------------------------------------

    def fetch_ahead(self, file: CacheFile, blocks: range) -> None:
        """The blocks are on their way, and nobody has asked for them yet."""
        while file.ahead and not self.is_ahead(file, oldest := next(iter(file.ahead))):
            del file.ahead[oldest]
        file.ahead.update(dict.fromkeys(blocks, self.admission.clock))

    def is_ahead(self, file: CacheFile, number: int) -> bool:
        """Whether somebody will come for the block, it seems: not once as much as the cache was read."""
        fetched = file.ahead.get(number)
        return fetched is not None and self.admission.clock - fetched < self.admission.limit_bytes

    # -- what they take --------------------------------------------------------------

    def admit(self, file: CacheFile, blocks: range) -> None:
        """The blocks have come: to stay, if there is place or the file is worth one. Recount it then."""
        file.used = file.used or self.admission.clock
        moves_in = file.moves_in or file.version in self._movers
        self._movers.pop(file.version, None)
        size = cost_bytes(len(blocks), block_count(file.size) - 1 in blocks, file.size)
        if not (moves_in or self.admission.has_place(self.resident_bytes, size)):
            file.guests.update(dict.fromkeys(blocks))

    def recount(self, file: CacheFile) -> None:
        """Its cost, or what it has of each, is another one."""
        guests = file.guest_worth()
        self._charge(file, guests, file.cost - guests)

    def _charge(self, file: CacheFile, guests: int, residents: int) -> None:
        self.guest_bytes += guests - file.guest_cost
        self.resident_bytes += residents - file.resident_cost
        file.guest_cost, file.resident_cost = guests, residents

    # -- memory and index ------------------------------------------------------------

    def warmed(self, file: CacheFile, row: Row) -> None:
        """The file is in memory from now on."""
        file.used, file.cost, file.is_guest = row.clock, row.cost, row.is_guest
        file.guest_cost, file.resident_cost = (row.cost, 0) if row.is_guest else (0, row.cost)

    def cooled(self, file: CacheFile) -> None:
        """The file is in the index only from now on, or on its way out."""
        if file.doomed:
            self._charge(file, 0, 0)
        elif file.is_guest:
            self._charge(file, file.cost, 0)
        else:
            self._charge(file, 0, file.cost)

    def left(self, row: Row) -> None:
        """A file that is in the index only is on its way out."""
        if row.is_guest:
            self.guest_bytes -= row.cost
        else:
            self.resident_bytes -= row.cost

    def row(self, file: CacheFile) -> Row:
        """What the index is to have of it."""
        used = file.used - GUEST if file.is_guest else file.used
        return Row(file.id, file.version, file.size, used, file.cost)
