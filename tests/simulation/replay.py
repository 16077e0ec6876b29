"""One run: a list of operations under a schedule, from two fresh mounts to their clean end.

An exception that the product only logs is a failure here as well.
"""

from __future__ import annotations

import logging
import os
import random
import sys
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
import trio
from trio.testing import MockClock

from tests.simulation.host import Mode
from tests.simulation.life import deterministic
from tests.simulation.world import Operation, World

__all__ = ["MODES", "replay", "run"]

MODES = {
    "close": Mode(commit_at_close=True, cached=False),
    "close-cached": Mode(commit_at_close=True, cached=True),
    "background": Mode(commit_at_close=False, cached=False),
    "background-cached": Mode(commit_at_close=False, cached=True),
    "close-network": Mode(commit_at_close=True, cached=True, freshness_s=1.0),
    "background-network": Mode(commit_at_close=False, cached=True, freshness_s=1.0),
}


def run(base: Path, mode: Mode, seed: int, operations: list[Operation]) -> None:
    """AssertionError, or whatever the product raised, if a promise was broken."""
    trio._core._run._r.seed(seed)
    random.seed(seed)
    with deterministic(), _unexpected() as unexpected:
        try:
            trio.run(_run, base, mode, operations, unexpected, clock=MockClock(autojump_threshold=0))
        except BaseExceptionGroup as group:
            raise _first(group) from group
        finally:
            _close_descriptors(base)


async def _run(base: Path, mode: Mode, operations: list[Operation], unexpected: list[BaseException]) -> None:
    async with trio.open_nursery() as nursery:
        world = World(base, mode, nursery)
        await world.start()
        for operation in operations:
            await world.step(operation)
            if unexpected:
                raise unexpected[0]
        await world.finish()
        if unexpected:
            raise unexpected[0]


def _first(error: BaseException) -> BaseException:
    """One failure out of a group, the same for each run of the same list."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@contextmanager
def _unexpected() -> Iterator[list[BaseException]]:
    """What is logged with a traceback; nothing is printed."""
    seen: list[BaseException] = []

    def look(logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
        error = event.get("exc_info")
        if error is True:
            error = sys.exc_info()[1]
        if isinstance(error, BaseException):
            seen.append(error)
        raise structlog.DropEvent

    configuration = structlog.get_config()
    structlog.configure(processors=[look], wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        yield seen
    finally:
        structlog.configure(**configuration)


def _close_descriptors(base: Path) -> None:
    """What the kernel closes for a dead process: every descriptor of a file in the volume."""
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue  # the listing's own
        if target.startswith(f"{base}/") and ".db" not in target:
            os.close(int(name))


def replay(says: str, mode: str, *operations: Operation) -> Callable[[Path], None]:
    """A named test out of a list that once failed, under a number of schedules. `says`: its docstring."""

    def test(tmp_path: Path) -> None:
        for seed in range(_SCHEDULES):
            base = tmp_path / str(seed)
            base.mkdir()
            run(base, MODES[mode], seed, list(operations))

    test.__doc__ = says
    return test


#: What took one schedule to fail may take another one after a change elsewhere.
_SCHEDULES = 40
