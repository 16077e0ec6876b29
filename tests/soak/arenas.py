"""Arenas for tests: mounted, and gone afterwards, whatever happened."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.soak.arena import Arena, RoundFailed

__all__ = ["mounted"]

_numbers = itertools.count(1)


@contextmanager
def mounted(base: Path, *modes: str, seed: int) -> Iterator[Arena]:
    """An arena with a node a mode. A failure tells what the daemons said."""
    arena = Arena(base / f"arena-{next(_numbers)}", modes, seed)
    try:
        for node in arena.nodes:
            node.start()
        yield arena
        for node in arena.nodes:
            node.terminate()
    except AssertionError as error:
        raise RoundFailed(f"{error}\n{arena.logs()}") from error
    finally:
        arena.discard()
        shutil.rmtree(arena.base)
