"""Which parts of a file that is being written can be copied ahead of its end, and which must be copied at it.

It decides; it copies nothing and does not know where to. This module is pure.
Offsets and sizes are bytes. A part is `PART_BYTES` of the file, aligned.

A part is offered once the file was written past it in sequence. What is changed
later, also while it is being copied, is not offered again but left to the end: who
goes back once may go back again.
"""

from __future__ import annotations

from typing import Final

from volfs.core.spans import Extent

__all__ = ["PART_BYTES", "START_BYTES", "Parts"]

#: Large enough that a round trip for each is no matter, small enough that little is left when the file ends.
PART_BYTES: Final = 8 << 20

#: So much written in sequence is no small file any more: until then its end is near, and a copy that is
#: begun early and thrown away would cost more round trips than it saves.
START_BYTES: Final = 64 << 20


class Parts:
    """See the module. `existing`: bytes that were there before the first write.

    *Invariants:* a part in `brought` has not changed since its copying began. `flying` parts are not brought.
    """

    def __init__(self, existing: int = 0) -> None:
        self.written = 0  # in sequence
        self._end = existing  # of what was written in sequence, and of what was there before
        self._next = 0  # the first part that was not offered
        self._flying: set[int] = set()
        self._changed: set[int] = set()  # of the flying ones
        self._brought: set[int] = set()

    @property
    def due(self) -> bool:
        """Whether copying ahead is worth its while, and there is something to copy."""
        return self.written >= START_BYTES and self._next < self._end // PART_BYTES

    def changing(self, offset: int, size: int) -> None:
        """These bytes are about to change."""
        if size <= 0:
            return
        first, last = offset // PART_BYTES, (offset + size - 1) // PART_BYTES
        if first >= self._next:
            return  # the usual case: nothing of it was offered
        for number in range(first, min(last + 1, self._next)):
            self._brought.discard(number)
            if number in self._flying:
                self._changed.add(number)

    def wrote(self, offset: int, size: int) -> None:
        """These bytes have changed."""
        self.changing(offset, size)
        if offset == self._end:
            self._end += size
            self.written += size

    def cut(self, size: int) -> None:
        """The file has this size now, and what it may have beyond is gone."""
        first = size // PART_BYTES
        self._brought = {number for number in self._brought if number < first}
        self._changed |= {number for number in self._flying if number >= first}
        self._end = min(self._end, size)
        self._next = min(self._next, first)

    def begin(self, most: int) -> list[Extent]:
        """Parts to copy now, at most so many; until `ended` nothing more."""
        assert not self._flying
        numbers = range(self._next, min(self._next + most, self._end // PART_BYTES))
        self._flying = set(numbers)
        self._changed = set()
        self._next = max(self._next, numbers.stop)
        return [Extent(number * PART_BYTES, PART_BYTES) for number in numbers]

    def ended(self) -> None:
        """What `begin` answered was copied."""
        self._brought |= self._flying - self._changed
        self._flying = set()

    def rest(self, size: int) -> list[Extent]:
        """What is to be copied of a file of this size that does not change any more."""
        left: list[Extent] = []
        for number in range(-(-size // PART_BYTES)):
            if number in self._brought:
                continue
            part = Extent(number * PART_BYTES, min(PART_BYTES, size - number * PART_BYTES))
            if left and left[-1].end == part.offset:
                left[-1] = Extent(left[-1].offset, left[-1].size + part.size)
            else:
                left.append(part)
        return left
