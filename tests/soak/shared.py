"""Files that several nodes and programs outside write at once, and what must be left of them (W7).

`log-N`: each writer appends lines of its own. A commit over a version that it did
not start from goes beside it, so each acknowledged line is in the file, in a
conflict copy of it, or in a version that a program outside exchanged for its own
and saw. The line of which a daemon was killed in the middle may be there in part, as
on a local disk after a crash (W6): up to a page, and what others append follows it.
No other one is ever half there.

`whole-N`: each writer replaces it by O_TRUNC. The last one wins, so it holds what
some writer wrote last, all of it.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final

__all__ = ["LOGS", "WHOLES", "Shared", "line", "whole"]

LOGS: Final = tuple(f"log-{n}" for n in range(3))
WHOLES: Final = tuple(f"whole-{n}" for n in range(3))

#: Long enough that a few hundred lines cross a block.
_LINE: Final = 600


@lru_cache(maxsize=10_000)
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
    #: For each log the words of the lines that were being appended when their daemon was killed.
    begun: dict[str, set[str]] = field(default_factory=lambda: {name: set() for name in LOGS})
    #: For each whole file the words that may be its content.
    last: dict[str, set[str]] = field(default_factory=lambda: {name: set() for name in WHOLES})
    conflicts: int = 0

    def appended(self, name: str, word: str) -> None:
        self.owed[name].add(word)

    def broke_off(self, name: str, word: str) -> None:
        """The append was begun, and nobody knows how far it came."""
        self.begun[name].add(word)

    def exchanged(self, name: str, data: bytes, word: str) -> None:
        """A program outside put its own in the place of `data`, and has seen it."""
        self.owed[name] -= self._read(name, data)[0]
        self.owed[name].add(word)

    def check(self, directory: Path) -> list[str]:
        """What is wrong in it. What is right is what is owed from now on."""
        wrong: list[str] = []
        for name in LOGS:
            found: set[str] = set()
            for path in [directory / name, *conflicts(directory, name)]:
                data = path.read_bytes() if path.exists() else b""
                words, torn = self._read(name, data)
                found |= words
                wrong += [f"{path.name}: torn line {bad[:60]!r}" for bad in torn]
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

    def _read(self, name: str, data: bytes) -> tuple[set[str], list[bytes]]:
        """The words of the whole lines, and what is neither a line nor the begin of one that broke off."""
        words: set[str] = set()
        torn: list[bytes] = []
        at = 0
        while at < len(data):
            rest = data[at : at + _LINE]
            match = _WORD.match(rest)
            if match is not None and rest == line(match[1].decode()):
                words.add(match[1].decode())
                at += _LINE
            elif part := self._broken_off(name, rest):
                at += part
            else:
                torn.append(rest)
                at = data.find(b"\n", at) + 1 or len(data)
        return words, torn

    def _broken_off(self, name: str, data: bytes) -> int:
        """How long a part of a line that broke off it begins with."""
        return max((_in_common(data, line(word)) for word in self.begun[name]), default=0)


def conflicts(directory: Path, name: str) -> list[Path]:
    """The conflict copies beside a file."""
    return sorted(directory.glob(f"{name}.conflict-*"))


_WORD: Final = re.compile(rb"\A([!-~]+) ")


def _in_common(a: bytes, b: bytes) -> int:
    """How many bytes they begin with alike."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
