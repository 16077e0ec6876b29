"""What an application gets when a store call fails, and what is true afterwards (W4, B3).

Each act of `errno_scenarios` is done once without faults, which tells the store
calls that it makes, and once more for each of these calls and each errno: the
call, and all later ones of its kind, fail until the act is over. Calls that change
something are also made with their reply lost.

The rule: the application gets the store's own errno, and the mount shows what was
there before (`=`), or what the act made, from bytes that are staged (`~`). When the
fault is gone, the backing comes to have what the mount showed, by itself and within
a back-off period, and nothing is left in between: no staged file, nothing that
waits. What deviates is in `OTHERWISE`, with its reason.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mount.calls import error_of
from tests.mount.errno_scenarios import SCENARIOS, Scenario
from tests.mount.errno_table import ErrnoTable
from tests.mount.faulty_mount import MODES, FaultyMount, Look, look
from tests.mount.volume import eventually
from tests.store.fault_plan import OPERATIONS

pytestmark = pytest.mark.timeout(100)

ERRNOS = ("ENOSPC", "EDQUOT", "EACCES", "EROFS", "ESTALE", "EIO", "ETIMEDOUT")

#: What a store over a network adds is retries of errors that may pass (`store.retry`). They take a while and
#: do not change what is true afterwards: an error that is not tried again stands for all.
ERRNOS_OF_MODE = {"local": ERRNOS, "cached": ERRNOS, "remote": ("EACCES",)}

LOST = "lost EIO"

LEGEND = (
    "Each entry: what the application got, and then the state.  = as before the act  + the act is done",
    "~ done on the mount, staged, and committed by itself when the fault was gone  ? something in between",
    "lost EIO: the store made the call and reported an error.  stat 1/2: the first calls of that kind",
    "remote: tried with EACCES and with lost replies only",
)

#: Calls whose reply can be lost after they were made.
CHANGES = frozenset(
    (
        *("mkdir", "mknod", "symlink", "link", "unlink", "rmdir", "rename", "change", "setxattr"),
        *("removexattr", "upload.show", "overwrite", "reader.change"),
    )
)

#: Entries that the rule does not allow, by act (or all) and store call.
OTHERWISE = {
    ("", "stat", "ok+"): "the change is done; that it cannot be looked at does not make it fail",
    ("", "reader.stat", "ok="): "as above",
    ("rename (dirty)", "stat", "ok~"): "as above; what was staged still is",
    ("", "open", "ok+"): "the commit is done; a handle that stays open opens the new file when it reads",
    ("", "upload.discard", "ok+"): "the commit is done; what cannot be taken away now is swept later",
    ("fsync", "sync_directory", "errno+"): "others see the bytes, but the name may not survive a power cut",
    ("statvfs", "capacity", "ok="): "df answers from memory while the store does not",
    ("statvfs", "stat", "ok="): "and so does stat of the root",
    ("create (O_EXCL)", "mknod", "lost?"): "the name was taken, as an empty file, before a byte was written",
    ("rename (dirty)", "rename", "lost?"): "the staged bytes keep the old name, their base has the new one",
}

#: Copies ahead of a file's end begin at 64 MiB (test_written_ahead.py has them).
AHEAD = frozenset(("begin", "transfer.bring", "transfer.finish", "transfer.discard"))

#: What a crash left is kept and cleared by the next mount (tests/commit/test_exchanged.py has it).
AT_START = frozenset(("clear_left", "keep_left"))

#: What no act of a mode can make the store do.
UNPROVOKED = {
    # Of a file whose names the mount does not know, it cannot show what is staged (test_links.py has it).
    # Bytes are read into the memory of the cache, where there is one. An error of a fetch is nobody's: the
    # open meets it itself (tests/fs/test_siblings.py has it).
    "local": AHEAD | AT_START | {"fetch", "reader.overwrite", "reader.read_into"},
    # What is to be changed is read through the cache.
    "cached": AHEAD | AT_START | {"fetch", "reader.copy_to", "reader.overwrite", "reader.read"},
    "remote": AHEAD | AT_START | {"fetch", "reader.copy_to", "reader.overwrite", "reader.read"},
}

#: The first back-off is at most 0.5 s, the second 1 s: a retry may meet the fault of another trial.
WITHIN_S = 3.0

#: The first back-off, and what a busy machine takes for the commit itself.
BACK_OFF_S = 0.5 + 0.75


#: How often an act is done without faults.
DOINGS = 3


class StoreCall(NamedTuple):
    """The nth call of an operation in an act."""

    operation: str
    nth: int


class Trial:
    """One doing of an act, in a directory of its own."""

    def __init__(self, faulty: FaultyMount, scenario: Scenario) -> None:
        self.faulty = faulty
        self.scenario = scenario
        self.name = f"{slug(scenario)}-{faulty.number()}"
        self.got = ""
        self.here = faulty.volume.mountpoint / self.name
        self.back = faulty.volume.backing / self.name
        self.back.mkdir()
        scenario.prepare(self.back)
        self.handle = scenario.hold(self.here)

    def act(self) -> None:
        self.got = error_of(self.scenario.act, self.here, self.handle) or "ok"

    def let_go(self) -> None:
        if self.handle >= 0:
            handle, self.handle = self.handle, -1
            os.close(handle)


class FaultyTrial(Trial):
    """One while a store call fails."""

    def __init__(self, faulty: FaultyMount, scenario: Scenario, call: StoreCall, fault: str) -> None:
        super().__init__(faulty, scenario)
        self.call = call
        self.fault = fault
        self.met = False
        self.shown: Look = {}
        self.stored: Look = {}

    def __str__(self) -> str:
        return f"{self.scenario.name}: {self.call.operation} {self.call.nth}, {self.fault}"

    def act(self) -> None:
        """The fault is taken away before the looks: they ask the store, too."""
        operation, nth = self.call
        times = "" if self.fault == LOST else "always"
        file = self.faulty.inject(operation, f"{self.fault} {times} nth={nth} under={self.name}")
        self.faulty.calls()
        try:
            super().act()
        finally:
            file.unlink(missing_ok=True)
        called = self.faulty.calls()
        self.met = any(each.operation == operation and each.met == "met" for each in called)
        if self.fault == LOST:
            # A change that nobody told of is found as one by others is: within the window (R2).
            with suppress(AssertionError):
                eventually(lambda: not _is_outdated(look(self.here)), WITHIN_S)
        self.shown, self.stored = look(self.here), look(self.back)


def _is_outdated(shown: Look) -> bool:
    """Whether a file is shown as it was last, with no name left: it was replaced, as the kernel will hear."""
    return any(entry[:2] == ("-rw-r--r--", 0) for entry in shown.values())


@dataclass(frozen=True)
class Reference:
    """What the act does when nothing fails."""

    before: Look
    after: Look
    calls: list[StoreCall]


def reference(faulty: FaultyMount, scenario: Scenario) -> Reference:
    """The calls are those of each of several doings.

    What the watcher says of the making of a trial may come amid the act: the kernel looks again then.
    """
    untouched = Trial(faulty, scenario)
    before = look(untouched.here)
    trials = [Trial(faulty, scenario) for _ in range(DOINGS)]
    made = [_calls_made(faulty, trial) for trial in trials]
    assert {trial.got for trial in trials} == {"ok"}
    for each in (untouched, *trials):
        each.let_go()
    eventually(lambda: faulty.waiting() == 0, WITHIN_S, "the references are committed")
    after = look(trials[0].back)
    for trial in trials:
        assert look(trial.here) == look(trial.back) == after
    return Reference(before, after, [call for call in made[0] if all(call in calls for calls in made)])


def _calls_made(faulty: FaultyMount, trial: Trial) -> list[StoreCall]:
    faulty.calls()
    trial.act()
    seen: Counter[str] = Counter()
    calls = []
    for operation, path, _ in faulty.calls():
        if path.startswith(trial.name) or (not path and operation != "stat"):
            seen[operation] += 1
            calls.append(StoreCall(operation, seen[operation]))
    return calls


def slug(scenario: Scenario) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in scenario.name)


@pytest.fixture(scope="module", params=list(MODES))
def mounted(request: pytest.FixtureRequest, volumes_base: Path, watchdog: object) -> Iterator[FaultyMount]:
    """A mount of each mode."""
    made = FaultyMount(request.param, volumes_base)
    yield made
    made.renew_unless_clean()
    assert made.finish() == []


@pytest.fixture
def faulty(mounted: FaultyMount, guarded: None) -> FaultyMount:
    """The mount, with nothing left over from another test."""
    mounted.renew_unless_clean()
    return mounted


@pytest.mark.parametrize("scenario", SCENARIOS, ids=slug)
def test_errno_of_each_store_call(faulty: FaultyMount, scenario: Scenario, errno_table: ErrnoTable) -> None:
    """The store's own errno, the state before or bytes that are staged, and all committed by itself."""
    right = reference(faulty, scenario)
    errnos = ERRNOS_OF_MODE[faulty.mode]
    trials: list[FaultyTrial] = []
    for call in right.calls:
        for fault in (*errnos, LOST) if call.operation in CHANGES else errnos:
            trial = FaultyTrial(faulty, scenario, call, fault)
            trials.append(trial)
            trial.act()
            with suppress(OSError):  # the queue has it then; that all is committed is judged below
                trial.let_go()
    with suppress(AssertionError):  # said below, with all that is wrong
        eventually(lambda: faulty.waiting() == 0, WITHIN_S)
    deviations = [f"{faulty.waiting()} wait to be committed"] if faulty.waiting() else []
    deviations += [f"left: {path}" for path in faulty.volume.leftovers()]
    rows: dict[StoreCall, dict[str, str]] = {}
    for trial in trials:
        entry, wrong = judge(trial, right)
        rows.setdefault(trial.call, {})[trial.fault] = entry
        deviations += [f"{faulty.mode}, {trial}: {entry}: {each}" for each in wrong]
    errno_table.legend = LEGEND
    for name, entries in together(rows):
        errno_table.add(f"{scenario.name}: {name}", faulty.mode, entries)
    assert not deviations, "\n".join(deviations)


def judge(trial: FaultyTrial, right: Reference) -> tuple[str, list[str]]:
    """What the table says of it, and what is wrong."""
    wrong = []
    final = look(trial.back)
    if trial.shown == right.before:
        mark, expected = "=", right.before
    elif trial.shown == right.after:
        mark, expected = ("+" if trial.stored == right.after else "~"), right.after
    else:
        mark, expected = "?", trial.shown
    kind = "lost" if trial.fault == LOST else "errno" if trial.got == trial.fault else trial.got
    usual = ("lost=", "lost+", "lost~") if trial.fault == LOST else ("errno=", "errno~")
    reasons = {(act, trial.call.operation, kind + mark) for act in ("", trial.scenario.name)}
    if kind + mark not in usual and reasons.isdisjoint(OTHERWISE):
        wrong.append(f"not to be expected; the mount showed {trial.shown}")
    if not trial.met:
        wrong.append("the fault was not met")
    if final != expected:
        wrong.append(f"finally {final}, not {expected}")
    if look(trial.here) != final:
        wrong.append(f"finally the mount shows {look(trial.here)}, the backing has {final}")
    return trial.got + mark, wrong


def together(rows: dict[StoreCall, dict[str, str]]) -> Iterator[tuple[str, dict[str, str]]]:
    """Rows by name; those of calls of one kind that follow one another and are alike are one."""
    for kind in dict.fromkeys(call.operation for call in rows):
        alike = [rows[call] for call in rows if call.operation == kind]
        different = [entries for entries, _ in itertools.groupby(alike)]
        for number, entries in enumerate(different, 1):
            yield kind if len(different) == 1 else f"{kind} {number}/{len(different)}", entries


def test_every_store_call_is_in_the_table(faulty: FaultyMount) -> None:
    """The acts make the store do everything that it can."""
    provoked = {call.operation for scenario in SCENARIOS for call in reference(faulty, scenario).calls}
    assert OPERATIONS - provoked == UNPROVOKED[faulty.mode]


@pytest.mark.parametrize("ending", ["close", "fsync"])
@pytest.mark.parametrize("operation", ["upload", "upload.show"])
def test_a_failed_commit_is_made_up_for_within_a_back_off(
    faulty: FaultyMount, operation: str, ending: str
) -> None:
    """W4: the errno is the store's, the bytes stay staged and readable, and go out when the fault is gone."""
    path = faulty.volume.mountpoint / f"commit-{faulty.number()}"
    stored = faulty.volume.backing / path.name
    stored.write_bytes(b"the old content")
    fault = faulty.inject(operation, f"ENOSPC always under={path.name}")
    handle = os.open(path, os.O_WRONLY | os.O_TRUNC)
    os.write(handle, b"the new bytes")
    if ending == "close":
        assert error_of(os.close, handle) == "ENOSPC"
    else:
        assert error_of(os.fsync, handle) == "ENOSPC"
    assert path.read_bytes() == b"the new bytes"
    assert stored.read_bytes() == b"the old content"
    assert len(faulty.volume.leftovers()) == 1
    fault.unlink()
    healed = time.monotonic()
    eventually(lambda: stored.read_bytes() == b"the new bytes", WITHIN_S, "committed by itself")
    assert time.monotonic() - healed < BACK_OFF_S
    eventually(lambda: faulty.waiting() == 0, WITHIN_S, "the queue knows")
    assert faulty.volume.leftovers() == []
    if ending == "fsync":
        os.close(handle)


def test_a_call_that_hangs_holds_up_no_other(faulty: FaultyMount) -> None:
    """One name of the store does not answer: everything else does, and then so does the name."""
    directory = f"hanging-{faulty.number()}"
    back, here = faulty.volume.backing / directory, faulty.volume.mountpoint / directory
    for name in ("stuck", "free"):
        (back / name).mkdir(parents=True)
        (back / name / "f").write_bytes(b"x")
    got: list[object] = []

    def use_others() -> None:
        (here / "free" / "g").write_bytes((here / "free" / "f").read_bytes())
        got.append(faulty.volume.is_alive())

    stuck = threading.Thread(target=lambda: got.append((here / "stuck" / "f").stat().st_size), daemon=True)
    others = threading.Thread(target=use_others, daemon=True)
    faulty.calls()
    hang = faulty.inject("stat", f"hang under={directory}/stuck/f")
    try:
        stuck.start()
        eventually(lambda: any(call.met == "met" for call in faulty.calls()), 5, "the call hangs")
        others.start()
        others.join(10)
        assert got == [True]
        assert (back / "free" / "g").read_bytes() == b"x"
        assert stuck.is_alive()
    finally:
        hang.unlink()
    stuck.join(10)
    assert got == [True, 1]
