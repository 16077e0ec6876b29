"""`make soak`: rounds of killed daemons until the time is over, each crash point among them, and the counts.

Exit code 0: nothing that was acknowledged is missing or torn, nothing lies about,
and the run was one that could have shown it. 1: the first failure, with what is
needed to see it again; the directories of the run stay.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Final

from tests.soak import crashing, rounds
from tests.soak.arena import Arena
from tests.soak.node import MODES
from tests.soak.points import points

__all__ = ["main"]

_MINUTES: Final = 20.0

#: A run of a minute cannot have so many rounds; one of the usual length that has fewer proves too little.
_ROUNDS_A_MINUTE: Final = 10.0

_EVERYTHING_EACH: Final = 20


def main() -> int:
    """Run for SOAK_MINUTES; SOAK_SEED repeats the choices of an earlier run."""
    minutes = float(os.environ.get("SOAK_MINUTES", _MINUTES))
    seed = int(os.environ.get("SOAK_SEED", random.SystemRandom().getrandbits(32)))
    print(f"soak of {minutes:g} minutes, SOAK_SEED={seed}", flush=True)
    base = Path(tempfile.mkdtemp(prefix="volfs-soak-")).resolve()
    base.chmod(0o711)
    soak = Soak(base, seed)
    try:
        soak.run(minutes * 60)
    except BaseException as error:
        soak.tell(error)
        return 1
    finally:
        soak.arena.discard()
    shutil.rmtree(base)
    return 0


class Soak:
    """One run: what it has left to do, and what it did."""

    def __init__(self, base: Path, seed: int) -> None:
        self._seed = seed
        self._started_s = time.monotonic()
        self.arena = Arena(base, tuple(MODES), seed)
        self._number = 0
        self._points = points()
        self._doing = "the first mounts"

    def run(self, seconds: float) -> None:
        """Rounds, and the crash points spread over the first half; AssertionError at the first fault."""
        arena = self.arena
        for node in arena.nodes:
            node.start()
        waiting = list(self._points)
        arena.rng.shuffle(waiting)
        while waiting or self._seconds < seconds:
            if waiting and self._seconds >= seconds / 2 * (1 - len(waiting) / len(self._points)):
                self._point(waiting.pop())
            else:
                self._round()
        self._doing = "the end"
        for node in arena.nodes:
            assert node.terminate() == 0 or node.owed().rows == node.owed().kept, (
                f"{node.name} owes something"
            )
        self._report()
        self._proved(seconds / 60)

    @property
    def _seconds(self) -> float:
        return time.monotonic() - self._started_s

    def _round(self) -> None:
        self._number += 1
        kind = rounds.kind_of(self.arena.rng)
        self._doing = f"round {self._number} ({kind})"
        everything = self._number % _EVERYTHING_EACH == 0
        rounds.run(self.arena, self._number, kind, everything=everything)
        if everything:
            self._say()
            self.arena.retire()

    def _point(self, name: str) -> None:
        self._doing = f"crash point {name}"
        for node in sorted(self.arena.nodes, key=lambda node: crashing.order(name, node.mode)):
            if crashing.die_at(self.arena, node, name):
                self.arena.counts["crash points"] += 1
                return
        raise AssertionError(f"no daemon passes {name}: the point is dead, or the work misses it")

    # -- saying ------------------------------------------------------------------

    def _say(self) -> None:
        print(f"{self._seconds:6.0f} s  {self._counted()}", flush=True)

    def _counted(self) -> str:
        counts = self.arena.counts
        names = ("rounds", "kills", "stops", "crash points", "dirty", "entries", "recovered", "kept")
        return ", ".join(f"{name} {counts[name]}" for name in names)

    def _report(self) -> None:
        arena = self.arena
        rows = {
            **{name: arena.counts[name] for name in ("rounds", "kills", "stops", "crash points")},
            "kills that hit a dirty state": arena.counts["dirty"],
            "journal entries at those": arena.counts["entries"],
            "operations acknowledged": arena.counts["operations"],
            "files compared": arena.counts["files"],
            "bytes compared": arena.counts["bytes"],
            "recovered": arena.counts["recovered"],
            "kept": arena.counts["kept"],
            "conflict copies": arena.shared.conflicts,
            "lost": arena.counts["lost"],
            "missing, torn or wrong": arena.counts["wrong"],
            "temporary names left": len(arena.leftovers()),
            "seconds": round(self._seconds),
        }
        print("\n".join(f"{name:<32}{value:>16,}" for name, value in rows.items()), flush=True)

    def _proved(self, minutes: float) -> None:
        """A run that could not have found anything is no success."""
        counts = self.arena.counts
        missing = [name for name in ("kills", "dirty", "entries", "recovered", "files") if not counts[name]]
        assert not missing, f"the run proved nothing: no {', '.join(missing)}"
        assert self.arena.shared.conflicts, "the run proved nothing about conflicts: there was none"
        assert counts["kills"] >= minutes * _ROUNDS_A_MINUTE, (
            f"only {counts['kills']} kills in {minutes:g} minutes"
        )

    def tell(self, error: BaseException) -> None:
        """What went wrong, and all that is needed to see it again."""
        if not isinstance(error, AssertionError):
            traceback.print_exception(error)
        print(f"\nFAILED in {self._doing}, SOAK_SEED={self._seed}\n{error}\n", flush=True)
        print(self.arena.logs(), flush=True)
        print(f"\nafter {self._counted()}\nkept for you: {self.arena.base}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
