"""Which files stay when the cache is full, judged by how long files wait to be read again.

It knows neither files nor blocks: it is told of uses and sizes, and says who gives
next. It evicts nothing. This module is pure; its clock is the bytes read so far.

No file of a data set that is read again and again, and does not fit, is worth more
than another: a reader that draws a new order each time reads each file once a pass,
so whichever bytes stay are hit once a pass, and each exchange of one for another is
lost work. The best without knowing the order is to exchange nothing (MinIO in
CoorDL: Mohan et al., VLDB 2021; Quiver: Kumar and Sivathanu, FAST 2020). LRU does
the contrary. So the cache has two queues, each in the order of last use:

- *Residents* came while there was place. One leaves when it is dead: idle for longer
  than nearly every file that was used again had waited (`patience_bytes`). Where
  files come back before the cache has turned over, that is LRU.
- *Guests* came when there was none. They share a small part, the oldest leaves: it
  holds what is fetched ahead, and what is written now and read soon (the small queue
  of S3-FIFO: Yang et al., SOSP 2023).

A guest, or a newcomer, takes the place of the oldest resident if its last three uses
lie within half the time that the resident is idle (LRU-2: O'Neil et al., SIGMOD 1993;
LIRS compares likewise: Jiang and Zhang, SIGMETRICS 2002). Three uses of a file that
is read once a pass span at least one pass, and a resident of that data set is idle
for less than two: passes move nothing. Files that are used more often move in.

The price: where most files come back soon and some later than the cache turns over,
it waits for all of them, and LRU would have more hits.

How long files wait is measured for a sample of all files that are used, kept or not,
chosen by a hash of the key (SHARDS: Waldspurger et al., FAST 2015).

*Invariants:* memory is bounded, some megabytes, whatever is used. `patience_bytes` is
0 until something was used again: nothing stays for a reason that nobody has seen.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from itertools import accumulate
from math import log2
from typing import Final

__all__ = ["Admission", "Queue"]

_MASK: Final = (1 << 64) - 1

#: A file idle for longer than this part of what was read again had been (by bytes) is not waited for ...
_QUANTILE: Final = 0.99

#: ... and a little longer: in a new order each pass, the last 1 % wait for up to 7 % more.
_MARGIN: Final = 1.1

#: With few samples the longest wait is still to be seen: after n of them, this much over n more.
_CAUTION: Final = 8

#: Bins of a doubling of the wait: what is read off is at most 5 % too long.
_BINS: Final = 16

#: A sample counts half after so many others: one pass over a data set of a thousand files.
_HALF_LIFE: Final = 1024

#: Files whose last use is remembered to measure waits: a megabyte, and 1 % of so many is still a number.
_TRACKED: Final = 8192

#: Waits are measured up to so many times the cache, or the longest wait; later files have left the sample.
_HORIZON: Final = 16

#: The part of the cache for guests. Hits on residents shrink by so much; less would not hold what is ahead.
_GUESTS: Final = 32

#: ... or more, for one file that comes and leaves whole: up to this part of the cache.
_LARGEST: Final = 8

#: ... or more, for what is fetched ahead: what had not place enough has it until so much of caches was read.
_OVERFLOW: Final = 2

#: The largest file lately is forgotten by half in 700 uses.
_FADING: Final = 0.999

#: Files whose last two uses are remembered, by a hash: 4 MiB once all are. Of more files some are forgotten
#: too early, and then take no resident's place before it is dead.
_STAMPS: Final = 1 << 18

#: The unit of remembered clocks, so that 48 bits last.
_STAMP_BYTES: Final = 4096


class Queue(Enum):
    """Who gives next."""

    GUESTS = "guests"
    RESIDENTS = "residents"


class _Waits:
    """How many bytes were read between two uses of a file, lately; by bytes of the files."""

    __slots__ = ("_bins", "_longest", "_news", "_number", "_weight")

    def __init__(self) -> None:
        self._bins = [0.0] * (64 * _BINS)
        self._number = 0.0  # of samples
        self._weight = 1.0  # of the next one: it grows, so that the others need not be made to shrink
        self._longest = 0
        self._news = 0

    def add(self, wait: int, size: int) -> None:
        self._number = self._number * 2 ** (-1 / _HALF_LIFE) + 1
        self._weight *= 2 ** (1 / _HALF_LIFE)
        self._bins[int(log2(max(1, wait)) * _BINS)] += self._weight * max(1, size)
        self._news += 1
        if self._weight > 1e100:
            self._bins = [weight / self._weight for weight in self._bins]
            self._weight = 1.0

    def longest(self) -> int:
        """A wait that nearly none exceeds; 0 if nothing is known."""
        if self._news * _CAUTION > self._number:  # else it is what it was, or nearly so
            sums = list(accumulate(self._bins))
            index = next(i for i, below in enumerate(sums) if below >= sums[-1] * _QUANTILE)
            self._longest = int(2 ** ((index + 1) / _BINS) * _MARGIN * (1 + _CAUTION / self._number))
            self._news = 0
        return self._longest


class _Stamps:
    """The clocks of the last two uses of a file, for the files that were used last. One place a hash."""

    __slots__ = ("_before", "_latest")

    def __init__(self) -> None:
        # Zeros take no memory until they are written.
        self._latest = memoryview(bytearray(8 * _STAMPS)).cast("Q")
        self._before = memoryview(bytearray(8 * _STAMPS)).cast("Q")

    def note(self, mixed: int, clock: int, visit: int) -> int | None:
        """A use now; the clock of the last but one. Uses within `visit` bytes are one."""
        place, tag = mixed % _STAMPS, mixed >> 48
        latest = self._latest[place]
        known = latest and latest & 0xFFFF == tag
        if known and clock - self._clock(latest) < visit:
            return None
        before = self._before[place] if known else 0
        self._before[place] = latest if known else 0
        self._latest[place] = (clock // _STAMP_BYTES + 1) << 16 | tag
        return self._clock(before) if before else None

    @staticmethod
    def _clock(stamp: int) -> int:
        return ((stamp >> 16) - 1) * _STAMP_BYTES


class Admission:
    """See the module. `limit_bytes`, of the cache, may change at any time.

    A key is an integer that other files hardly have; its bits need not be even. Files of more than
    `whole_bytes` come and leave in parts.
    """

    def __init__(self, limit_bytes: int, clock: int = 0, whole_bytes: int = _MASK) -> None:
        self.limit_bytes = limit_bytes
        self._whole_bytes = whole_bytes
        self.clock = clock  # bytes read so far, also by those before us
        self._largest = 0.0  # bytes of the largest file lately, or of the largest part
        self._overflow = 0  # bytes of guests when they last had not place enough ...
        self._overflowed = 0  # ... and when that was
        self._waits = _Waits()
        self._stamps = _Stamps()
        self._sample: OrderedDict[int, int] = OrderedDict()  # hash -> clock of the last use, oldest first
        self._sampled = _MASK  # hashes up to this are in the sample

    # -- what is told --------------------------------------------------------------

    def read(self, size: int) -> None:
        """So many bytes were read, of whatever file."""
        self.clock += size

    def overflow(self, guest_bytes: int) -> None:
        """Guests that take so much could not give, and a resident that lives had to."""
        if guest_bytes >= self._overflow or self.clock - self._overflowed >= _OVERFLOW * self.limit_bytes:
            self._overflow = guest_bytes
        self._overflowed = self.clock

    def use(self, key: int, size: int, last: int | None = None) -> int | None:
        """A file of `size` bytes is about to be read, kept or not; the bytes read since its last use but one.

        None: that is not known, or it was used just now and this is the same use. `last`: the clock of its
        last use, from whoever knows it over a restart.
        """
        mixed = _mixed(key)
        self._largest = max(min(size, self._whole_bytes), self._largest * _FADING)
        if mixed <= self._sampled:
            self._measure(mixed, size, last)
        before = self._stamps.note(mixed, self.clock, self.guest_bytes)
        return None if before is None else self.clock - before

    def _measure(self, mixed: int, size: int, last: int | None) -> None:
        last = self._sample.get(mixed, last)
        if last is not None:
            if self.clock - last < self.guest_bytes:
                return
            # A file larger than most shall count for more, but not for all.
            self._waits.add(self.clock - last, min(size, self.limit_bytes // 64))
        self._sample[mixed] = self.clock
        self._sample.move_to_end(mixed)
        if len(self._sample) > _TRACKED:
            self._thin_out()

    def _thin_out(self) -> None:
        """Forget files that will hardly come back; if there are none, sample fewer."""
        sample, oldest = self._sample, self.clock - _HORIZON * max(self.limit_bytes, self.patience_bytes)
        while next(iter(sample.values())) < oldest:
            sample.popitem(last=False)
        if len(sample) > _TRACKED:
            self._sampled //= 2
            self._sample = OrderedDict((key, last) for key, last in sample.items() if key <= self._sampled)
        elif len(sample) < _TRACKED // 4:
            self._sampled = min(_MASK, self._sampled * 2 + 1)

    # -- what is asked -------------------------------------------------------------

    @property
    def patience_bytes(self) -> int:
        """A file that was not used while so much was read is not waited for."""
        return self._waits.longest()

    @property
    def guest_bytes(self) -> int:
        """What guests may take while the residents live."""
        return self.limit_bytes // _GUESTS

    def lives(self, used: int) -> bool:
        """Whether a file that was used last at that clock is waited for."""
        return self.clock - used <= self.patience_bytes

    def has_place(self, resident_bytes: int, size: int) -> bool:
        """Whether there is place for `size` more bytes among residents that take so much."""
        # The largest file must find place beside them, or as a guest it would push a resident out.
        largest = min(max(size, int(self._largest)), self.limit_bytes // _LARGEST)
        recent = self.clock - self._overflowed < _OVERFLOW * self.limit_bytes
        others = max(largest, self.guest_bytes, self._overflow if recent else 0)
        return resident_bytes + size + others <= self.limit_bytes

    def displaces(self, span: int | None, resident: int) -> bool:
        """Whether a file is to take the place of a resident that was used last at that clock.

        `span`: what `use` answered for the file.
        """
        return span is not None and 2 * span <= self.clock - resident

    def gives(self, guest: int | None, resident: int | None, resident_bytes: int) -> Queue:
        """Who gives: the guest or the resident used longest ago, at that clock; None: there is none."""
        if guest is None or resident is None:
            return Queue.RESIDENTS if guest is None else Queue.GUESTS
        if not self.has_place(resident_bytes, 0):
            return Queue.RESIDENTS  # guests have moved in
        if resident < guest and not self.lives(resident):
            return Queue.RESIDENTS
        return Queue.GUESTS


def _mixed(key: int) -> int:
    """64 even bits (the finalizer of MurmurHash3)."""
    key = ((key & _MASK) ^ (key & _MASK) >> 33) * 0xFF51AFD7ED558CCD & _MASK
    key = (key ^ key >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return key ^ key >> 33
