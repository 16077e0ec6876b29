"""What the simulated programs write: records that tell who they are, so that any mix or cut shows.

A file holds whole records one after another. Sizes differ with the number, so that no two contents of one
file
are equally long: a version never depends on the clock alone.
"""

from __future__ import annotations

__all__ = ["Torn", "parse", "record"]

_HEADER = 18
#: Inline writes, writes in a thread, and less than a page.
_SIZES = (40, 700, 90, 4200, 60, 300, 50, 66_000)


class Torn(AssertionError):
    """Bytes that are no sequence of whole records."""


def record(number: int) -> bytes:
    """The record of a number: a header with number and size, and a body that no other one has."""
    size = _HEADER + _SIZES[number % len(_SIZES)] + 3 * number
    body = b"%08d;" % number * (size // 9 + 1)
    return (b"%08x %08x\n" % (number, size) + body)[:size]


def parse(data: bytes, where: object) -> tuple[int, ...]:
    """The numbers of the records; Torn if it is anything else."""
    numbers: list[int] = []
    at = 0
    while at < len(data):
        try:
            number = int(data[at : at + 8], 16)
        except ValueError:
            raise Torn(f"{where}: no record at byte {at} of {len(data)}, after {numbers}") from None
        whole = record(number)
        if data[at : at + len(whole)] != whole:
            raise Torn(f"{where}: record {number} at byte {at} of {len(data)} is torn, after {numbers}")
        numbers.append(number)
        at += len(whole)
    return tuple(numbers)
