"""Which version an open object has, asked once for all who want to know at about the same time.

*Concurrency:* the trio thread. An answer is younger than every question that it
answers: who asks while one is under way gets the next one's.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from volfs.core.versions import Version
from volfs.store.base import Reader

__all__ = ["Confirmation"]


class _Question:
    __slots__ = ("answer", "lock", "reader")

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.lock = trio.Lock()
        self.answer: Version | None = None


class Confirmation:
    """See the module; for one file."""

    __slots__ = ("_next",)

    def __init__(self) -> None:
        self._next: _Question | None = None  # nobody has asked it yet

    async def version(self, reader: Reader, may_ask: Callable[[], bool]) -> Version | None:
        """The version now; None if `may_ask` says, when it is time to ask, that the reader is gone.

        StoreError where the store cannot say; who comes next asks again.
        """
        question = self._next
        if question is None or question.reader is not reader:
            question = self._next = _Question(reader)
        async with question.lock:
            if question.answer is None:
                if self._next is question:
                    self._next = None
                if not may_ask():
                    return None
                question.answer = (await reader.stat()).version
        return question.answer
