"""Rounds: work, the end of a daemon in the midst of it, the next start, and the comparison.

Each round is one of `KINDS`. After it the nodes are as before, with new daemons
where one ended.
"""

from __future__ import annotations

import random
import threading
from typing import Final

from tests.soak.arena import Arena, Job, RoundFailed
from tests.soak.manifest import Record
from tests.soak.node import FRESHNESS_S, Node, Owed

__all__ = ["KINDS", "kind_of", "resume", "run"]

#: What ends a daemon, and how often in ten rounds: `kill` one, `both` two nodes at once, `stop` by SIGTERM.
KINDS: Final = {"kill": 7, "both": 2, "stop": 1}

#: How long the work goes on before the daemon ends.
_SHORTEST_S, _LONGEST_S = 0.05, 1.5

#: So many daemons that commit in the background have a long queue.
_SLOW_PART: Final = 0.6

EXIT_LEFT_IN_JOURNAL: Final = 3


def run(arena: Arena, number: int, kind: str, *, everything: bool) -> None:
    """One round. RoundFailed, or another AssertionError, if it shows anything that was not promised."""
    nodes = arena.nodes
    victim = nodes[number % len(nodes)]
    other = nodes[(number + 1 + number // len(nodes) % max(1, len(nodes) - 1)) % len(nodes)]
    for slot in range(arena.rng.randint(1, 3)):
        arena.employ(victim, slot)
    if other is not victim:
        arena.employ(other, 0)
    if arena.rng.random() < 0.6:
        arena.employ_outsider()
    arena.await_work()
    threading.Event().wait(arena.rng.uniform(_SHORTEST_S, _LONGEST_S))
    ended = [victim, other] if kind == "both" and other is not victim else [victim]
    if kind == "stop":
        _stop(arena, victim)
    else:
        for node in ended:
            node.kill()
        arena.counts["kills"] += len(ended)
    resume(arena, ended, arena.finish(), everything=everything)
    arena.counts["rounds"] += 1


def _stop(arena: Arena, node: Node) -> None:
    code = node.terminate()
    left = node.owed()
    if code != (EXIT_LEFT_IN_JOURNAL if left.rows else 0):
        raise RoundFailed(f"{node.name} ended with {code} and left {left.rows} rows in its journal")
    arena.counts["stops"] += 1


def resume(
    arena: Arena, ended: list[Node], said: list[tuple[Job, Record]], *, everything: bool = False
) -> None:
    """The next daemons, and what they made of what the last ones left; compared by every road."""
    owed = [node.owed() for node in ended]
    arena.counts["dirty"] += sum(each.rows > each.kept for each in owed)
    arena.counts["entries"] += sum(each.rows - each.kept for each in owed)
    for node in ended:
        node.begin(slow=arena.rng.random() < _SLOW_PART)
    with arena.fresh() as fresh:
        for node in [*ended, fresh]:
            node.volume.ready()
        for node in arena.nodes:
            node.settle()
        for node, before in zip(ended, owed, strict=True):
            _count(arena, node, before)
        if any(node.is_remote for node in ended):
            threading.Event().wait(FRESHNESS_S)  # what it was told while others settled may be as old (R1)
        roads = {"the backing": arena.backing, "an empty cache": fresh.mountpoint}
        roads |= {f"the mount {node.name}": node.mountpoint for node in ended}
        arena.compare(said, roads, everything=everything)
    wrong = arena.leftovers()
    if wrong:
        raise RoundFailed("\n".join(wrong))


def _count(arena: Arena, node: Node, before: Owed) -> None:
    commit = node.volume.status()["commit"]
    for count in ("recovered", "lost"):
        arena.counts[count] += commit[count]
    arena.counts["kept"] += node.owed().kept - before.kept
    if commit["lost"]:
        raise RoundFailed(f"{node.name} says that bytes are lost")


def kind_of(rng: random.Random) -> str:
    """What ends the daemon of the next round."""
    return rng.choices(list(KINDS), list(KINDS.values()))[0]
