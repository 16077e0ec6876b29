"""A daemon whose queue is long: the command line, with commits in the background that wait for their turn.

On an idle machine a queued commit runs a millisecond after close. Then almost
nothing is acknowledged and not committed when the daemon dies, and renames,
removals and rewrites of such files, which a busy store makes common, never happen.
"""

from __future__ import annotations

import random
import sys
from typing import Final

import trio

from volfs.cli import main
from volfs.fs.files import Files

__all__: list[str] = []

_LONGEST_S: Final = 0.6

_commit = Files.commit_number


async def _commit_later(self: Files, number: int) -> None:
    await trio.sleep(random.uniform(0, _LONGEST_S))
    await _commit(self, number)


if __name__ == "__main__":
    Files.commit_number = _commit_later  # type: ignore[method-assign]
    sys.exit(main())
