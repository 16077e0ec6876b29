"""Opens that the kernel tries again, so that the second try is never refused.

An open that finds its file replaced answers ESTALE; the kernel then looks the
path up anew and opens what it finds, once: a second ESTALE is the application's.
Whatever a lookup found after the refusal was right at a moment within the
application's open, so the second try is served even if the name was replaced
again by then. The lookup may be another thread's: the kernel lets threads that
look one name up at a time share the answer.

*Invariants:* a thread has at most one refusal, and its next open uses it up.
"""

from __future__ import annotations

from typing import NamedTuple

from volfs.fs.tree import Node

__all__ = ["SecondTries"]

#: Refusals whose second try never came (a killed thread) are dropped at this many.
_MOST = 10_000


class _Refusal(NamedTuple):
    lookups: int  # how many there had been
    names: frozenset[tuple[int, bytes]]


class SecondTries:
    """By thread number as the kernel gives it with each request."""

    def __init__(self) -> None:
        self._lookups = 0
        self._refused: dict[int, _Refusal] = {}

    def refuse(self, thread: int, names: list[tuple[Node, bytes]]) -> None:
        """An open by one of these names answers ESTALE."""
        if len(self._refused) >= _MOST:
            self._refused.clear()
        keys = frozenset((parent.number, name) for parent, name in names)
        self._refused[thread] = _Refusal(self._lookups, keys)

    def found(self, parent: int, name: bytes, node: Node) -> None:
        """A lookup found the node."""
        self._lookups += 1
        node.found = self._lookups, (parent, name)

    def missed(self, thread: int) -> None:
        """A lookup of the thread found nothing: its open ends there."""
        self._refused.pop(thread, None)

    def take(self, thread: int, node: Node) -> bool:
        """Whether this open of the node is a second try."""
        refusal = self._refused.pop(thread, None)
        if refusal is None or node.found is None:
            return False
        when, name = node.found
        return when > refusal.lookups and name in refusal.names
