"""Files that several nodes and programs outside write at once, and what must be left of them (W7).

`log-N`: each writer appends lines of its own. A commit over a version that it did
not start from goes beside it, so each acknowledged line is in the file, in a
conflict copy of it, or in a version that a program outside exchanged for its own
and saw. No line is ever half there.

`whole-N`: each writer replaces it by O_TRUNC. The last one wins, so it holds what
some writer wrote last, all of it.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

__all__ = ["LOGS", "WHOLES", "Shared", "line", "whole"]

LOGS: Final = tuple(f"log-{n}" for n in range(3))
WHOLES: Final = tuple(f"whole-{n}" for n in range(3))

#: Long enough that a few hundred lines cross a block.
_LINE: Final = 600


def line(word: str) -> bytes:
    """The line of one append: its word, and filling that tells a torn one."""
    return (f"{word} ".encode() + random.Random(word).randbytes(_LINE // 2).hex().encode())[
        : _LINE - 1
    ] + b"\n"


def whole(word: str) -> bytes:
    """The content of one replacement."""
    generator = random.Random(word)
    return f"{word}\n".encode() + generator.randbytes(generator.choice((10, 5_000, 300_000)))


@dataclass(slots=True)
class Shared:
    """What is owed in the shared directory, as of the last check."""

    #: For each log the words of the lines that were acknowledged.
    owed: dict[str, set[str]] = field(default_factory=lambda: {name: set() for name in LOGS})
    #: For each whole file the words that may be its content.
    last: dict[str, set[str]] = field(default_factory=lambda: {name: set() for name in WHOLES})
    conflicts: int = 0

    def appended(self, name: str, word: str) -> None:
        self.owed[name].add(word)

    def exchanged(self, name: str, data: bytes, word: str) -> None:
        """A program outside put its own in the place of `data`, and has seen it."""
        self.owed[name] -= set(_words(data))
        self.owed[name].add(word)

    def check(self, directory: Path) -> list[str]:
        """What is wrong in it. What is right is what is owed from now on."""
        wrong: list[str] = []
        for name in LOGS:
            found: set[str] = set()
            for path in [directory / name, *conflicts(directory, name)]:
                data = path.read_bytes() if path.exists() else b""
                found |= set(_words(data))
                wrong += [f"{path.name}: torn line {bad[:60]!r}" for bad in _torn(data)]
            wrong += [
                f"{name}: the acknowledged line {word} is gone" for word in sorted(self.owed[name] - found)
            ]
            self.owed[name] &= found
        for name in WHOLES:
            path = directory / name
            allowed = self.last[name]
            if allowed and path.exists():
                data = path.read_bytes()
                word = data.split(b"\n", 1)[0].decode(errors="replace")
                if word not in allowed or data != whole(word):
                    wrong.append(
                        f"{name}: holds {word[:60]!r} ({len(data)} bytes), not one of {sorted(allowed)}"
                    )
                self.last[name] = {word}
            elif allowed and "" not in allowed:
                wrong.append(f"{name}: is gone, should hold one of {sorted(allowed)}")
        self.conflicts = sum(len(conflicts(directory, name)) for name in (*LOGS, *WHOLES))
        return wrong


def conflicts(directory: Path, name: str) -> list[Path]:
    """The conflict copies beside a file."""
    return sorted(directory.glob(f"{name}.conflict-*"))


_WORD: Final = re.compile(rb"\A([!-~]+) ")


def _lines(data: bytes) -> list[bytes]:
    return [data[i : i + _LINE] for i in range(0, len(data), _LINE)]


def _words(data: bytes) -> list[str]:
    return [match[1].decode() for each in _lines(data) if (match := _WORD.match(each))]


def _torn(data: bytes) -> list[bytes]:
    return [
        each
        for each in _lines(data)
        if (match := _WORD.match(each)) is None or each != line(match[1].decode())
    ]
