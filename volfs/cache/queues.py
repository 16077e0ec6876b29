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

from typing import Final

from volfs.cache.cachefile import CacheFile
from volfs.cache.index import GUEST, Row
from volfs.core.admission import Admission
from volfs.core.spans import block_count, cost_bytes

__all__ = ["WHOLE_BYTES", "Queues"]

#: Up to this size an unused file goes whole: finding out what it has costs more than it saves.
WHOLE_BYTES: Final = 8 << 20


class Queues:
    """See the module. Begins with what the index has: its latest use, and what its files take."""

    def __init__(self, clock: int, resident_bytes: int, guest_bytes: int) -> None:
        self.admission = Admission(0, max(1, clock), WHOLE_BYTES)  # `evict` says what the limit is
        self.resident_bytes = resident_bytes
        self.guest_bytes = guest_bytes
        self.oldest = 0  # clock of the last use of the resident that gives next, when somebody looked last

    # -- uses ------------------------------------------------------------------------

    def came(self, file: CacheFile) -> bool:
        """Somebody begins to read a file that nobody reads; whether that made its guests residents."""
        file.passed = 0
        return self._note(file)

    def read(self, file: CacheFile, size: int) -> bool:
        """So many bytes of it are read; whether that made its guests residents."""
        self.admission.read(size)
        file.passed += size
        # Open all the time, and read from the start again: more than once, for the kernel's disorder.
        if not size or 4 * file.passed < 5 * file.size:
            return False
        file.passed -= file.size
        return self._note(file)

    def _note(self, file: CacheFile) -> bool:
        # Waits are counted from start to start; `used` is the end of the last reading.
        last = file.used - file.size if file.used and file.saved else None
        span = self.admission.use(hash(file.version), file.size, last)
        file.moves_in = self.admission.displaces(span, self.oldest)
        if not file.is_guest:
            return False
        if not (file.moves_in or self.admission.has_place(self.resident_bytes, file.guest_cost)):
            return False
        file.is_guest = False
        file.guests.clear()
        self.recount(file)
        return True

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
        size = cost_bytes(len(blocks), block_count(file.size) - 1 in blocks, file.size)
        if not (file.moves_in or self.admission.has_place(self.resident_bytes, size)):
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
        file.used, file.is_guest = row.clock, row.is_guest
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
