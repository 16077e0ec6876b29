"""How far a copy is: the counts, and one line on the terminal that shows them.

*Concurrency:* none; a line belongs to one thread.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from typing import Final, TextIO

__all__ = ["CopyCounts", "Line"]

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_BAR: Final = 20


@dataclass(frozen=True, slots=True)
class CopyCounts:
    """What was copied. Links count as files of no bytes. While the work goes on, `found` may still grow."""

    files: int = 0  #: copied
    bytes: int = 0  #: copied, those of files under way included
    unchanged: int = 0  #: files that the target has already
    unchanged_bytes: int = 0
    failed: int = 0
    directories: int = 0  #: complete, with their modes and times
    found: int = 0  #: files, of all kinds
    found_bytes: int = 0
    listed: bool = False  #: whether all were found
    elapsed_s: float = 0.0

    @property
    def done(self) -> int:
        """Files of which nothing is left to do."""
        return self.files + self.unchanged + self.failed

    @property
    def left_s(self) -> float | None:
        """Seconds left at this rate; None while that cannot be known."""
        left_bytes = self.found_bytes - self.unchanged_bytes - self.bytes
        if not self.listed or not self.files:
            return None
        # Small files cost by the file, large ones by the byte: the slower of both.
        by_bytes = left_bytes / self.bytes if self.bytes else 0.0
        return self.elapsed_s * max(by_bytes, (self.found - self.done) / self.files, 0.0)


class Line:
    """Shows counts in one line of a terminal, which it writes again and again; elsewhere it says nothing."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shows = self._stream.isatty()
        self._began = False

    def __call__(self, counts: CopyCounts) -> None:
        if self._shows:
            self._began = True
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r{_text(counts)[:width]:<{width}}")
            self._stream.flush()

    def end(self) -> None:
        """The terminal's next line is free for others."""
        if self._began:
            self._stream.write("\n")
            self._stream.flush()


def _text(counts: CopyCounts) -> str:
    so_far = "" if counts.listed else "+"
    done_bytes = counts.bytes + counts.unchanged_bytes
    rate = counts.bytes / counts.elapsed_s if counts.elapsed_s else 0.0
    text = (
        f"[{_bar(counts)}] {counts.done}/{counts.found}{so_far} files, "
        f"{_size(done_bytes)}/{_size(counts.found_bytes)}{so_far}, {_size(rate)}/s"
    )
    if counts.failed:
        text += f", {counts.failed} failed"
    if counts.left_s is not None:
        text += f", {counts.left_s:.0f} s left"
    return text


def _bar(counts: CopyCounts) -> str:
    # Neither alone: many small files or one large one may be what is left.
    shares = [
        done / whole
        for done, whole in (
            (counts.done, counts.found),
            (counts.bytes + counts.unchanged_bytes, counts.found_bytes),
        )
        if whole
    ]
    full = int(_BAR * min([*shares, 1.0])) if shares else 0
    return "#" * full + "." * (_BAR - full)


def _size(count: float) -> str:
    for unit in _UNITS[:-1]:
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} {_UNITS[-1]}"
