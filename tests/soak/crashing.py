"""A daemon's death at a named point, wherever in its life it comes by: at work, at its start, at its end.

What is compared afterwards is what each round of the soak compares.
"""

from __future__ import annotations

from typing import Final

from tests.mount.volume import eventually
from tests.soak import rounds
from tests.soak.arena import Arena, Job, RoundFailed
from tests.soak.manifest import Record
from tests.soak.node import Node

__all__ = ["die_at", "order"]

#: Work passes every point on its way many times in so long; a daemon that lives longer does not pass it.
_WORK_S: Final = 4.0

#: At the first passage there is hardly anything to lose yet.
_PASSAGES: Final = (2, 20)

#: Of the operations, so many are reads of the data that the cache is too small for.
_FETCHES: Final = 0.15

_OF_CACHE: Final = {"adopt", "evict", "index", "keep", "reconcile", "upload"}
_OF_NETWORKS: Final = {"keep.files"}
_OF_START: Final = {"reconcile", "recover"}


def order(point: str, mode: str) -> tuple[bool, bool, bool]:
    """Sorts modes by where a point is likely to be passed."""
    remote = mode.startswith("remote")
    has_cache = remote or "cached" in mode
    return (
        has_cache is not (_part(point) in _OF_CACHE),
        remote is not (point in _OF_NETWORKS),
        "background" in mode,
    )


def _part(point: str) -> str:
    return point.split(".")[0]


def die_at(arena: Arena, node: Node, point: str) -> bool:
    """Let the node's daemon die there, start the next one and compare. False: no daemon came by."""
    if _part(point) in _OF_START and _at_a_start(arena, node, point):
        return True
    return (
        _at_work(arena, node, f"{point}:{arena.rng.randint(*_PASSAGES)}")
        or _at_work(arena, node, point)
        or _at_a_start(arena, node, point)
    )


def _at_work(arena: Arena, node: Node, crash_at: str) -> bool:
    """It dies while others work in it, or when it is told to end while they do."""
    node.terminate()
    died = not _starts(node, crash_at)
    if not died:
        _employ(arena, node)
        died = _dies(node) or not node.terminate_or_die()
    return _compared(arena, node, arena.finish(), died=died)


def _at_a_start(arena: Arena, node: Node, point: str) -> bool:
    """Killed at work; the next daemon dies while it makes good what that left."""
    _employ(arena, node)
    arena.await_work()
    eventually(lambda: node.owed().rows > 0, _WORK_S, "something is staged")
    node.kill()
    said = arena.finish()
    died = not _starts(node, point) or not node.terminate_or_die()
    return _compared(arena, node, said, died=died)


def _employ(arena: Arena, node: Node) -> None:
    for slot in range(2):
        arena.employ(node, slot, fetches=_FETCHES)


def _dies(node: Node) -> bool:
    try:
        eventually(lambda: not node.running, _WORK_S, "the daemon dies")
    except AssertionError:
        return False
    return True


def _starts(node: Node, crash_at: str) -> bool:
    """Mount; False if the daemon died on the way."""
    try:
        node.start(crash_at)
    except AssertionError:
        if node.last_exit():
            raise
        return False
    return True


def _compared(arena: Arena, node: Node, said: list[tuple[Job, Record]], *, died: bool) -> bool:
    """If it died, then by SIGKILL: it left no word. The next one must make it good, and stays."""
    if died and node.last_exit():
        raise RoundFailed(f"the daemon of {node.name} ended, but not by a kill")
    rounds.resume(arena, [node], said)
    if died:
        _check(node)
    return died


def _check(node: Node) -> None:
    """What a crash leaves is no damage, or such as `volfs fsck` mends."""
    done = node.volume.volfs("fsck", str(node.mountpoint))
    if done.returncode not in (0, 1):
        raise RoundFailed(f"fsck of {node.name} ends with {done.returncode}: {done.stdout}{done.stderr}")
