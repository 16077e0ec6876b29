"""Opens that the kernel tries again, so that the second try is never refused.

An open that finds its file replaced answers ESTALE; the kernel then looks the
path up anew and opens what it finds, once: a second ESTALE is the application's.
Whatever that lookup found was right at a moment within the application's open,
so the second try is served even if the name was replaced again by then.

*Invariants:* a thread has at most one refusal, for it does nothing else before
its second try. What a thread that was killed leaves behind is bounded.
"""

from __future__ import annotations

from volfs.fs.tree import Node

__all__ = ["SecondTries"]

#: Refusals whose second try never came are dropped at this many.
_MOST = 10_000

_Key = tuple[int, bytes]


class SecondTries:
    """By thread number as the kernel gives it with each request."""

    def __init__(self) -> None:
        self._refused: dict[int, list[_Key]] = {}  # thread -> names that it will look up again
        self._found: dict[int, int] = {}  # thread -> inode number that the second lookup found

    def refuse(self, thread: int, names: list[tuple[Node, bytes]]) -> None:
        """An open by one of these names answers ESTALE."""
        if len(self._refused) > _MOST:
            self._refused.clear()
            self._found.clear()
        self._refused[thread] = [(parent.number, name) for parent, name in names]

    def looked_up(self, thread: int, parent: int, name: bytes, node: Node) -> None:
        """A lookup, which may be the one that a refusal asked for; the last one counts."""
        if self._refused and (parent, name) in self._refused.get(thread, ()):
            self._found[thread] = node.number

    def take(self, thread: int, node: Node) -> bool:
        """Whether this open of the node is a second try."""
        self._refused.pop(thread, None)
        return self._found.pop(thread, None) == node.number
