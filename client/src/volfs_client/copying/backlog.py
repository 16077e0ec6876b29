"""What waits to be done in a copy, and what comes next. Values only: it has no threads and no lock.

What is furthest on comes first, and listing pauses while much is waiting.

*Invariants:* `waiting` is the number of entries that were found and are neither being copied nor done.
"""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from typing import Final

from volfs_client.copying.directory import Directory
from volfs_client.copying.transfer import Transfer

__all__ = ["RANGE_BYTES", "Backlog", "Entry", "Large", "Range"]

#: Entries that wait, at most; so far ahead does the listing go. Some 10 MB.
_AHEAD: Final = 20_000

#: With fewer files than this waiting, comparing comes before copying.
_READY: Final = 1_000

#: A file of twice this size is copied in ranges of this size.
RANGE_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """A file, link or something else that was found."""

    source: str
    target: str
    found: os.stat_result
    parent: Directory | None
    hint_root: str | None = None
    fresh: bool = False  #: nothing can be at the target
    commits: bool = False  #: and it is on a mount, where a file is committed whole at its close
    tries: int = 1


@dataclass(slots=True, eq=False)
class Large:
    """A file whose ranges are copied one after the other, or by several threads."""

    entry: Entry
    transfer: Transfer
    next: int = 0
    under_way: int = 0
    error: Exception | None = None

    @property
    def is_over(self) -> bool:
        return not self.under_way and self.next == self.transfer.size


@dataclass(frozen=True, slots=True)
class Range:
    """A part of a file."""

    large: Large
    begin: int
    end: int


class Backlog:
    """See the module."""

    def __init__(self) -> None:
        self._large: deque[Large] = deque()
        self._files: deque[Entry] = deque()
        self._batches: deque[list[Entry]] = deque()
        self._directories: list[Directory] = []
        self.waiting = 0

    @property
    def is_full(self) -> bool:
        return self.waiting >= _AHEAD

    def put_directory(self, directory: Directory) -> None:
        self._directories.append(directory)

    def put_batch(self, batch: list[Entry]) -> None:
        self._batches.append(batch)
        self.waiting += len(batch)

    def compared(self, batch: list[Entry], wanted: list[Entry]) -> None:
        """Of a batch that was taken these are to be copied."""
        self._files.extend(wanted)
        self.waiting += len(wanted) - len(batch)

    def put_large(self, large: Large) -> None:
        self._large.append(large)

    def drop(self, large: Large) -> None:
        """No more of its ranges."""
        if large in self._large:
            self._large.remove(large)
        large.next = large.transfer.size

    def abandoned(self) -> list[Large]:
        """Large files that nobody works on."""
        return [large for large in self._large if not large.under_way]

    def take(self, *, listing: bool = True) -> Range | list[Entry] | Entry | Directory | None:
        """What to do next; None if nothing waits. Without `listing`: nothing that finds more."""
        if self._large:
            return self._take_range(self._large[0])
        if self._batches and len(self._files) < _READY:
            return self._batches.popleft()
        if listing and self._directories and not self.is_full:
            return self._directories.pop()
        if self._files:
            self.waiting -= 1
            return self._files.popleft()
        if self._batches:
            return self._batches.popleft()
        return self._directories.pop() if listing and self._directories else None

    def _take_range(self, large: Large) -> Range:
        begin = large.next
        large.next = min(begin + RANGE_BYTES, large.transfer.size)
        large.under_way += 1
        if large.next == large.transfer.size:
            self._large.popleft()
        return Range(large, begin, large.next)
