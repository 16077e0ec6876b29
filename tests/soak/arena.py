"""Several nodes over one backing, workers in them, and the comparison of what is there with what is owed.

It owns the directories, the processes and the ledgers, and does not decide who is
killed when (`rounds`, `crashing`).

*Invariants:* between two rounds every ledger is what the backing holds, all nodes
have settled, and no worker runs.
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tests.mount.volume import REPOSITORY, eventually
from tests.soak import manifest
from tests.soak.ledger import Ledger, Operation, difference
from tests.soak.manifest import Record
from tests.soak.node import Node
from tests.soak.reading import ledger_of
from tests.soak.shared import Shared
from tests.soak.worker import DATA_BYTES, Task, data_piece
from volfs.kernel import dying

__all__ = ["Arena", "Job", "RoundFailed"]

_DATA_FILES: Final = ("x0", "x1", "x2", "x3")

#: What a call says once its daemon is dead or has left: no connection, or the empty directory below a mount.
_GONE: Final = {"ENOTCONN", "ECONNABORTED", "ESHUTDOWN", "ENOENT"}

#: A worker that was told to stop, or whose mount died, needs a moment; more is a call that hangs.
_END_S: Final = 30.0


class RoundFailed(AssertionError):
    """Something is not as was promised."""


class Job:
    """A worker process, where it works, and what it said."""

    def __init__(self, node: Node | None, area: str, task: Task, module: str) -> None:
        self.node = node
        self.area = area
        self.task = task
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(asdict(task))],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def has_begun(self) -> bool:
        """It is at its first operation, or over already."""
        said = Path(self.task.manifest)
        return self._process.poll() is not None or (said.exists() and said.stat().st_size > 0)

    def end(self) -> Record:
        """Wait for its end; what it said."""
        try:
            _, errors = self._process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise RoundFailed(f"a call of worker {self.task.name} hangs: {self.said().last}") from None
        if self._process.returncode != 0:
            raise RoundFailed(f"worker {self.task.name} broke: {errors}")
        return self.said()

    def said(self) -> Record:
        return manifest.read(Path(self.task.manifest))

    def kill(self) -> None:
        """Whatever happened, it does not stay."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


class Arena:
    """See the module. `base` must not exist yet, or be empty."""

    def __init__(self, base: Path, modes: tuple[str, ...], seed: int) -> None:
        self.base = base
        self.backing = base / "backing"
        self.rng = random.Random(seed)
        self.nodes = [Node(base, self.backing, mode) for mode in modes]
        self.ledgers: dict[str, Ledger] = {}
        self.archive: dict[str, dict[str, str]] = {}
        self.shared = Shared()
        self.counts: Counter[str] = Counter()
        self.jobs: list[Job] = []
        self._started = 0
        for directory in (self.backing / "data", self.backing / "shared", base / "manifests"):
            directory.mkdir(parents=True)
        self._stop = base / "stop"
        for name in _DATA_FILES:
            pieces = (data_piece(name, number) for number in range(DATA_BYTES >> 20))
            (self.backing / "data" / name).write_bytes(b"".join(pieces))

    # -- working -----------------------------------------------------------------

    def employ(self, node: Node, slot: int, *, fetches: float = 0.0) -> None:
        """Start a worker in a mount."""
        area = f"{node.name}-{slot}"
        if area not in self.ledgers:
            (self.backing / area).mkdir()
            self.ledgers[area] = Ledger()
        self._start(node, area, node.mountpoint, "tests.soak.worker", whole=slot == 0, fetches=fetches)

    def employ_outsider(self) -> None:
        """Start a program that edits the backing."""
        self._start(None, "", self.backing, "tests.soak.outsider")

    def _start(
        self,
        node: Node | None,
        area: str,
        root: Path,
        module: str,
        *,
        whole: bool = False,
        fetches: float = 0.0,
    ) -> None:
        self._started += 1
        task = Task(
            name=area or "outside",
            seed=self.rng.getrandbits(32),
            own=str(root / area),
            shared=str(root / "shared"),
            data=str(root / "data"),
            manifest=str(self.base / "manifests" / f"{self._started}"),
            stop=str(self._stop),
            whole=whole,
            fetches=fetches,
        )
        self.jobs.append(Job(node, area, task, module))

    def await_work(self) -> None:
        """Every worker has begun its first operation, or is over."""
        for job in self.jobs:
            eventually(job.has_begun, _END_S, f"worker {job.task.name} begins")

    def finish(self) -> list[tuple[Job, Record]]:
        """Tell the workers to stop; what each said. A call that failed without a reason fails the round."""
        self._stop.touch()
        for node in self.nodes:  # a daemon that cannot die holds up its workers until the next mount ends it
            dying.end(node.mountpoint, node.volume.cache_dir / "lock")
        said = [(job, job.end()) for job in self.jobs]
        self._stop.unlink()
        self.jobs.clear()
        for job, record in said:
            self._judge(job, record)
        return said

    def _judge(self, job: Job, record: Record) -> None:
        self.counts["operations"] += len(record.ended)
        if not record.failed:
            return
        word = record.failed.split()[0]
        dead = job.node is not None and 0 < job.node.killed_s <= record.failed_s
        if not dead or word not in _GONE:
            state = "was dead or ending" if dead else "lived"
            raise RoundFailed(f"{job.task.name}: {record.failed} in {_call(record.last)}; its daemon {state}")

    # -- comparing ---------------------------------------------------------------

    def compare(self, said: list[tuple[Job, Record]], roads: dict[str, Path], *, everything: bool) -> None:
        """What the workers were told, against what is there by each road. RoundFailed with all faults."""
        wrong: list[str] = []
        touched: set[str] = set()
        self._owe_shared(said)
        for job, record in said:
            if job.area:
                touched.add(job.area)
                wrong += self._compare_area(job.area, record, roads)
        for road, root in roads.items():
            wrong += [f"shared by {road}: {each}" for each in self.shared.check(root / "shared")]
        if everything:
            wrong += self._compare_everything(touched, roads)
        self.counts["wrong"] += len(wrong)
        if wrong:
            raise RoundFailed("\n".join(wrong))

    def _compare_area(self, area: str, record: Record, roads: dict[str, Path]) -> list[str]:
        ledger = self.ledgers[area]
        for op in record.ended:
            ledger.apply(op)
        allowed = [ledger.tree()] if record.last is None else ledger.worlds(record.last, record.steps)
        wrong = []
        there = ledger_of(self.backing / area)
        self.counts["files"] += len(there.files())
        self.counts["bytes"] += sum(len(node.data) for node in there.files().values())
        for road, root in roads.items():
            seen = there if root == self.backing else ledger_of(root / area)
            last = f" (while {_call(record.last)}, {record.steps} steps done)" if record.last else ""
            wrong += [f"{area}/{each} by {road}{last}" for each in difference(seen.tree(), allowed)]
        if record.last is None:
            for names in ledger.groups():
                if len({id(there.names.get(name)) for name in names}) != 1:
                    wrong.append(f"{area}: {names} are one file no more")
        self.ledgers[area] = there
        return wrong

    def _compare_everything(self, touched: set[str], roads: dict[str, Path]) -> list[str]:
        wrong = []
        for road, root in roads.items():
            for area, ledger in self.ledgers.items():
                if area not in touched:
                    found = ledger_of(root / area).tree()
                    wrong += [f"{area}/{each} by {road}" for each in difference(found, [ledger.tree()])]
            for area, known in self.archive.items():
                if _digests(ledger_of(root / area)) != known:
                    wrong.append(f"{area} by {road}: changed since nobody used it any more")
        return wrong

    def _owe_shared(self, said: list[tuple[Job, Record]]) -> None:
        replaced: dict[str, set[str]] = {}
        for _, record in said:
            latest: dict[str, str] = {}
            for op in record.ended:
                if op.kind == "line":
                    self.shared.appended(op.name, op.other)
                elif op.kind == "whole":
                    latest[op.name] = op.other
            for name, word in latest.items():
                replaced.setdefault(name, set()).add(word)
        for name, words in replaced.items():
            self.shared.last[name] = words
        for job, record in said:
            last = record.last
            if last is not None and last.kind == "whole":
                known = self.shared.last[last.name]
                known |= {last.other} if known else {last.other, ""}
            elif last is not None and last.kind == "line":
                self.shared.broke_off(last.name, last.other)
            # In the order in which they were made: what one replaced, a later one may have seen again.
            for op in [*record.ended, *([last] if last is not None else [])]:
                aside = Path(f"{job.task.manifest}.{op.other}")
                if op.kind == "edit" and aside.exists():
                    self.shared.exchanged(op.name, aside.read_bytes(), op.other)

    def retire(self) -> None:
        """Leave the workers' directories as they are from now on, and let the next ones use new ones."""
        for area, ledger in self.ledgers.items():
            kept = f"{area}.{len(self.archive)}"
            (self.backing / area).rename(self.backing / kept)
            self.archive[kept] = _digests(ledger)
        self.ledgers.clear()

    def leftovers(self) -> list[str]:
        """What lies under `.volfs`, and has no business there; and staged files that no row speaks of."""
        known = {node.staging for node in self.nodes} | {"locks", "owners"}
        wrong = []
        reserved = self.backing / ".volfs"
        for path in [*reserved.glob("*"), *reserved.glob("owners/*")]:
            if path.name not in known:
                wrong.append(f"{path.relative_to(self.backing)} belongs to no mount")
        for node in self.nodes:
            kept, staged = node.owed().kept, node.staged()
            wrong += [
                f"{path} was never shown" for path in staged if path.name.startswith(("copy-", "swap-"))
            ]
            if len(staged) != kept:
                names = [path.name for path in staged]
                wrong.append(f"{node.name}: {kept} rows kept, but staged files {names}")
        return wrong

    @contextmanager
    def fresh(self) -> Iterator[Node]:
        """A mount with an empty cache directory, which knows nothing but the backing. It is not ready yet."""
        self._started += 1
        node = Node(self.base, self.backing, "cached", f"fresh-{self._started}")
        self.nodes.append(node)
        try:
            node.begin()
            yield node
            if node.terminate():
                raise RoundFailed(f"{node.name}, which wrote nothing, left something in its journal")
        finally:
            self.nodes.remove(node)
            node.volume.discard()

    def logs(self) -> str:
        """The ends of the daemons' logs."""
        return "\n".join(node.volume.log_tail() for node in self.nodes)

    def discard(self) -> None:
        """End everything by force."""
        for node in self.nodes:  # first, because a worker that hangs in a mount cannot be killed
            node.volume.discard()
        for job in self.jobs:
            job.kill()


def _digests(ledger: Ledger) -> dict[str, str]:
    return {name: hashlib.blake2b(node.data).hexdigest() for name, node in ledger.files().items()}


def _call(op: Operation | None) -> str:
    if op is None:
        return "nothing"
    steps = ", ".join(f"{s.do} {s.piece.size if s.piece else s.name}".strip() for s in op.steps)
    return f"{op.kind} {op.how} {op.name} {op.other} {steps}".strip()
