"""SQLite's files from outside: https://sqlite.org/fileformat2.html."""

from __future__ import annotations

from pathlib import Path

__all__ = ["end_of_records", "leaf_with"]


def end_of_records(log: Path) -> int:
    """Where the last record of a write-ahead log ends: what follows is of its rounds before."""
    data = log.read_bytes()
    frame = 24 + int.from_bytes(data[8:12], "big")
    at = 32
    while data[at + 8 : at + 16] == data[16:24]:
        at += frame
    return at


def leaf_with(data: bytes, text: bytes) -> int:
    """Where the leaf page of a table without rowids lies that holds the text."""
    return next(at for at in range(0, len(data), 4096) if data[at] == 0x0A and text in data[at : at + 4096])
