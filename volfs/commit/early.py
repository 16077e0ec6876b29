"""Large files on their way into the store while they are still being written: close waits for the tail only.

It owns the copy until the commit takes it over or nobody wants it any more. Which
parts may be copied, `core.ahead` decides; that a name shows them, `commit.publish`.

*Concurrency:* one task a file, which copies while others write; whoever changes
the file says so to `parts` before and after. Nobody waits for it but the commit,
which holds the file's lock.

*Invariants:* nothing depends on it: when the store fails, the copy is dropped and the
commit copies all. After a crash the copy is one of those that are swept.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog
import trio

from volfs.commit.checksums import BlockSums
from volfs.commit.owed import clear
from volfs.commit.staging import StagedFile, Staging
from volfs.core.ahead import Parts
from volfs.errors import VolfsError
from volfs.store.base import Store, Transfer

__all__ = ["EarlyCopy"]

log = structlog.get_logger(__name__)

#: Parts in one go: a multiple of what the store has in flight at once, so that it seldom runs empty, and no
#: more, because the commit waits for the go that is under way.
_AT_ONCE: Final = 16


class EarlyCopy:
    """One copy that is under way. `run` is its task; `take` ends it for a commit, `drop` for good."""

    def __init__(
        self, store: Store, staging: Staging, staged: StagedFile, parts: Parts, moved: Callable[[], None]
    ) -> None:
        self.parts = parts
        self.sums = BlockSums()
        self._store = store
        self._staging = staging
        self._staged = staged
        self._moved = moved
        self._transfer: Transfer | None = None
        self._wanted = True
        self._dropped = False
        self._wake = trio.Event()
        self._ended = trio.Event()

    async def run(self) -> None:
        """Copy what is ready, and wait for more, until somebody takes or drops it."""
        try:
            if self._wanted:
                self._transfer = await self._store.begin(self._staged.fd)
                self._moved()
            while self._wanted and self._transfer is not None:
                extents = self.parts.begin(_AT_ONCE)
                if extents:
                    await self._transfer.bring(extents, self._observe)
                    self.parts.ended()
                else:
                    await self._wake.wait()
        except VolfsError as error:
            log.info("a copy that was begun early is given up", name=self._staged.name, error=str(error))
            self._dropped = True
        except BaseException:
            self._dropped = True
            raise
        finally:
            self._ended.set()
            await self._clear()

    async def _clear(self) -> None:
        """Take the copy away if nobody is to have it."""
        if self._dropped and self._transfer is not None:
            self._staging.owed.append(self._transfer)
            self._transfer = None
            await clear(self._staging.owed)

    def _observe(self, offset: int, piece: memoryview) -> None:
        self._moved()
        self.sums.update(offset, piece)

    def poke(self) -> None:
        """There is more to copy, or nothing any more."""
        self._wake.set()
        self._wake = trio.Event()

    async def take(self) -> Transfer | None:
        """End it; the copy with what was brought is the caller's, to finish or discard; None: no copy."""
        self._wanted = False
        self.poke()
        await self._ended.wait()
        transfer, self._transfer = self._transfer, None
        return transfer

    def drop(self) -> None:
        """Nobody will want the copy."""
        self._wanted, self._dropped = False, True
        self.poke()
