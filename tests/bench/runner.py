"""Runs scenarios: round by round, the systems in turn, each on a fresh mount over a fresh slow store.

It does not judge. What a trial cannot do is noted as its failure and the run goes on.

*Invariants:* after a trial nothing of it is mounted, runs, or takes room on the disk, however it ended; after
the run nothing is left at all. A peer that was cut off is not measured in the rounds that follow.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from subprocess import SubprocessError
from typing import Final

from tests.bench import dlio
from tests.bench.daemon import Daemon, DaemonError
from tests.bench.data import Data
from tests.bench.deadline import DidNotEnd
from tests.bench.juicefs import Juicefs
from tests.bench.results import Entry, Measurement
from tests.bench.scenario import Scenario
from tests.bench.settings import Settings
from tests.bench.store import SlowStore, build
from tests.bench.systems import Bindfs, Direct, Local, Place, Rclone, System, Volfs
from tests.bench.targets import OURS
from tests.bench.trial import Trial, WrongBytes, bring_into_memory

__all__ = ["Runner", "chosen", "needed_bytes"]

_MEMORY: Final = Path("/dev/shm")
#: A copy is written to memory if that has so many times its size.
_ROOM: Final = 2


def chosen(scenarios: Sequence[Scenario], only: Sequence[str]) -> list[tuple[Scenario, frozenset[str]]]:
    """Which rows of which scenarios to measure: those named, by scenario or row, and what they refer to.

    Everything if nothing is named. Raises ValueError for a name that there is not.
    """
    rows = {row.key: {row.key} for one in scenarios for row in one.rows}
    names = rows | {one.name: {row.key for row in one.rows} for one in scenarios}
    unknown = [name for name in only if name not in names]
    if unknown:
        raise ValueError(f"no scenario {', '.join(unknown)}; there are: {', '.join(names)}")
    wanted = set().union(*(names[name] for name in only or names))
    for one in scenarios:
        if any(row.key in wanted for row in one.rows):
            wanted.update(one.needs)
    found = [(one, frozenset(row.key for row in one.rows) & wanted) for one in scenarios]
    return [(one, keys) for one, keys in found if keys]


def needed_bytes(settings: Settings) -> int:
    """Room on the disk for all data sets, most also as objects of JuiceFS, and the caches of one trial."""
    sizes = settings.sizes
    small = sizes.files * sizes.file_bytes
    sets = small + sizes.large_bytes + sizes.shuffled_files * sizes.shuffled_bytes + sizes.checkpoint_bytes
    trained = sum(one.files(sizes) * one.record_bytes for one in dlio.WORKLOADS)
    return 2 * sets + trained + 2 * max(small, sizes.large_bytes)


class Runner:
    """One run below `directory`, which is removed at the end."""

    def __init__(self, settings: Settings, directory: Path, say: Callable[[str], None]) -> None:
        self._settings = settings
        self._say = say
        self._base = directory
        self._data = Data(directory / "data", settings.sizes)
        self._binary = build(directory)
        self._juicefs = Juicefs(directory / "juicefs")
        systems: tuple[System, ...] = (
            *(Volfs(), Rclone(), self._juicefs, Bindfs()),
            *(Direct(name) for name in ("direct", "xargs", "dd")),
            Local(),
        )
        peers = settings.peers
        self.missing = {
            system.name: hint
            for system in systems
            if (hint := system.missing()) and (not peers or system.name in peers)
        }
        self._systems = {
            system.name: system
            for system in systems
            if system.name not in self.missing and (not peers or system.name in peers)
        }
        unknown = set(peers) - {system.name for system in systems}
        if unknown:
            raise ValueError(f"no system {', '.join(sorted(unknown))}")
        self._number = 0

    def run(self, scenarios: Sequence[tuple[Scenario, frozenset[str]]]) -> Iterator[Entry]:
        """Every measurement of the chosen rows, as it comes."""
        with ExitStack() as stack:
            stack.callback(self._remove_trials)
            yield from self._run(scenarios)

    def _run(self, scenarios: Sequence[tuple[Scenario, frozenset[str]]]) -> Iterator[Entry]:
        for scenario, rows in scenarios:
            if hint := scenario.missing():
                self._say(f"{scenario.name} is not installed, and left out ({hint})")
                continue
            systems = [self._systems[name] for name in scenario.systems if name in self._systems]
            known: set[str] = set()  # peers that are not measured again
            for number in range(self._settings.rounds):
                # Another one begins each round: whoever comes first may find a calmer machine.
                turn = number % len(systems) if systems else 0
                for system in systems[turn:] + systems[:turn]:
                    if system.name in known:
                        continue
                    for row, measurement in self._trial(scenario, system, number, rows).items():
                        self._say(_line(scenario, row, system, number, measurement))
                        if measurement.cut and system.name != OURS:
                            # So far behind that it was cut off: more rounds take long and tell nothing.
                            known.add(system.name)
                        yield Entry(row, system.name, number, measurement)

    def _trial(
        self, scenario: Scenario, system: System, number: int, wanted: frozenset[str]
    ) -> dict[str, Measurement]:
        found: dict[str, Measurement] = {}
        reason = None
        try:
            with self._mounted(scenario, system, number, wanted) as trial:
                found = trial.measurements
                with trial.deadline(scenario.deadline_s):
                    scenario.work(trial)
                if trial.mounted.daemon is not None:
                    peak = trial.mounted.daemon.peak_bytes()
                    for measurement in found.values():
                        measurement.peak_bytes = peak
        except (OSError, SubprocessError, DaemonError, DidNotEnd, WrongBytes) as error:
            reason = f"{type(error).__name__}: {error}"
        if reason is not None:  # a trial that did not end well has no figures
            found = {row: Measurement(failed=reason) for row in wanted}
        return found

    @contextmanager
    def _mounted(
        self, scenario: Scenario, system: System, number: int, wanted: frozenset[str]
    ) -> Iterator[Trial]:
        self._number += 1
        base = self._base / f"trial{self._number}"
        base.mkdir()
        with ExitStack() as stack:
            stack.callback(_empty, base)
            if scenario.data is None:
                source = base / "written"
                source.mkdir()
                stack.callback(self._juicefs.forget, source)
            else:
                source = self._data.get(scenario.data)
            behind = system.source(source)
            os.sync()  # what the trial before wrote is not to be written during this one
            store = None
            if scenario.slow:
                bring_into_memory(behind)
                store = SlowStore(self._binary, behind, base)
                stack.push(_end(store.daemon))
            sizes = self._settings.sizes
            limit = scenario.cache_bytes(sizes) if scenario.cache_bytes else None
            path = store.path if store else behind
            place = Place(base, source, path, limit, scenario.background)
            mounted = system.mount(place)
            if mounted.daemon is not None:
                stack.push(_end(mounted.daemon))
            yield Trial(
                system, mounted, store, source, self._data, sizes, self._scratch(stack), wanted, number
            )

    def _remove_trials(self) -> None:
        for base in self._base.glob("trial*"):
            shutil.rmtree(base, ignore_errors=True)

    def _scratch(self, stack: ExitStack) -> Path:
        room = _ROOM * self._settings.sizes.files * self._settings.sizes.file_bytes
        in_memory = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > room
        directory = _MEMORY if in_memory else self._base
        return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="volfs-bench-", dir=directory)))


def _empty(directory: Path) -> None:
    """Free what its files hold, and keep the files.

    ext4 does not hand out again an inode that was deleted in the last minutes, and looks past each of those
    that it finds: the thousands of files of a trial, removed now, would slow down the creations of the next.
    """
    for where, _, names in os.walk(directory):
        for name in names:
            path = Path(where, name)
            if path.is_file() and not path.is_symlink():
                with suppress(OSError):  # it takes room until the end of the run, no more
                    os.truncate(path, 0)


def _end(daemon: Daemon) -> Callable[..., None]:
    """For an exit stack: stop cleanly after success, by force after a failure."""

    def end(kind: object, *_: object) -> None:
        if kind is None:
            daemon.stop()
        else:
            daemon.destroy()

    return end


def _line(scenario: Scenario, row: str, system: System, number: int, measured: Measurement) -> str:
    unit = next(one.unit for one in scenario.rows if one.key == row)
    head = f"{row:<12} round {number + 1}  {system.name:<8}"
    if measured.failed is not None:
        return f"{head} failed: {measured.failed}"
    details = "".join(
        f", {name} {value:.4g}" if not isinstance(value, str) else f", {name} {value}"
        for name, value in measured.details.items()
    )
    cut = " (cut off)" if measured.cut else ""
    return f"{head} {measured.value:>10.4g} {unit}{cut}{details}"
