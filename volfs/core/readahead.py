"""How far to fetch ahead of the readers of one file.

It turns the reads of a file into extents worth fetching; it fetches nothing
and does not know what is present. This module is pure.

A file has several streams, each a place where sequential reading goes on, so
that a loader that reads a file at four places gets four windows, and whose read
it is does not matter: the page faults of a mapping come with any handle. A read that
continues a stream moves it; any other one begins a stream with no window: a
random read costs what it reads. The window doubles whenever the reader had to
wait in spite of it. (The way of mountpoint-s3's back-pressure controller and of
JuiceFS's sessions; both keep fewer streams.)

*Invariants:* what a stream returns is inside the file and never overlaps what
the same stream returned before; at most `_STREAMS` streams; no window above
what the caller allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from volfs.core.spans import Extent

__all__ = ["Readahead"]

#: The kernel's largest request: with less ahead the second request would wait already.
_FIRST_BYTES: Final = 1 << 20

#: More than 16 requests of 4 MiB have under way, so that the next ones begin before those are read: 1 GB/s
#: at 60 ms for each. More would only take memory from other streams.
_MOST_BYTES: Final = 96 << 20

#: Asked for at once at least, or half of the window: keeps requests large.
_STEP_BYTES: Final = 8 << 20

#: A window is split into so many requests at least, so that they can fly side by side.
_PIECES: Final = 16

#: The kernel's own readahead answers requests out of order: up to so much back is the same stream.
_BACK_BYTES: Final = 1 << 20

#: ... and up to so much ahead, once a stream has shown that it is one.
_AHEAD_BYTES: Final = 16 << 20

#: Streams of one file; the one used longest ago gives way.
_STREAMS: Final = 16


@dataclass(slots=True)
class _Stream:
    position: int  # the end of what was read
    ahead: int  # the end of what was asked for in advance
    window: int = 0


class Readahead:
    """The streams of one file."""

    __slots__ = ("_streams",)

    def __init__(self) -> None:
        self._streams: list[_Stream] = []  # the latest last

    def advance(
        self, offset: int, size: int, file_size: int, waited: bool, most: int = _MOST_BYTES
    ) -> Extent | None:
        """Take note of a read; what to fetch now, beyond the read itself.

        `waited`: some of its bytes were not there. `most`: no window may be
        larger now; a caller short of memory lowers it, 0 asks for nothing.
        """
        end = min(offset + size, file_size)
        stream = self._match(offset)
        if stream is None:
            self._streams.append(_Stream(end, end))
            del self._streams[:-_STREAMS]
            return None
        if stream is not self._streams[-1]:
            self._streams.remove(stream)
            self._streams.append(stream)
        if end <= stream.position:
            return None  # the kernel's disorder, or a second look at the same bytes
        stream.position = end
        if not stream.window:
            stream.window = _FIRST_BYTES
        elif waited:
            stream.window *= 2
        stream.window = min(stream.window, _MOST_BYTES, most)
        stream.ahead = max(stream.ahead, end)
        wanted = min(end + stream.window, file_size)
        if wanted - stream.ahead < min(stream.window // 2, _STEP_BYTES) and wanted < file_size:
            return None
        if wanted <= stream.ahead:
            return None
        start, stream.ahead = stream.ahead, wanted
        return Extent(start, wanted - start)

    @property
    def piece_bytes(self) -> int:
        """How large one request of the stream that was read last may be, so that its window has many."""
        return self._streams[-1].window // _PIECES if self._streams else 0

    def _match(self, offset: int) -> _Stream | None:
        """The stream that a read at `offset` continues: the nearest one."""
        best: _Stream | None = None
        for stream in reversed(self._streams):
            distance = offset - stream.position
            # Without a window only an exact continuation counts: random reads in a small file are near too.
            beyond = min(stream.window, _AHEAD_BYTES)
            if -_BACK_BYTES <= distance <= beyond and (
                best is None or abs(distance) < abs(offset - best.position)
            ):
                best = stream
        return best
