"""A daemon whose store fails on demand: the command line over a `FaultStore`, driven from outside.

`VOLFS_TEST_FAULTS` names a directory. A file `OPERATION` or `OPERATION@LABEL` in
it is one fault of that operation, for as long as the file is there:

    EIO                 the next call fails with this errno; `EIO 3` the next three, `EIO always` all
    lost EIO            the call is made, and fails all the same
    broken EIO          half of the bytes are moved, then it fails
    torn                half of the bytes are moved, and all is said to be well
    delay 0.5           the call is made so many seconds later
    hang                calls are made when the file is gone

Words after these choose the calls: `nth=2` from the second on, `under=a/b` on this
path or below it; calls that know no path (an upload, say) are always meant. A fault that was met
as often as it says takes its file away. Every call is a line of the file `calls`:
operation, path, and `met` or `-`.

With `VOLFS_TEST_STORE=remote` the store is treated as one over a network is.

Looks by the watcher and the poll come when they come. They are not counted and
meet no fault, so that a test can say which call it means.
"""

from __future__ import annotations

import contextvars
import errno
import functools
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import trio

from tests.store.fault_plan import Break, Call, Delay, Fail, Fault, Faults, Lose, Tear, Which
from tests.store.faults import FaultStore
from volfs import daemon
from volfs.cli import main
from volfs.fs.changes import Changes
from volfs.store.directory import DirectoryStore

__all__: list[str] = []

T = TypeVar("T")

_POLL_S = 0.02

_looking: contextvars.ContextVar[bool] = contextvars.ContextVar("looking", default=False)


@dataclass(frozen=True, slots=True)
class _HangWhile:
    """The call is made once the file is gone."""

    file: Path

    async def around(self, call: Call[T]) -> T:
        while self.file.exists():
            await trio.sleep(_POLL_S)
        return await call.whole()


class _FaultDirectory(Faults):
    """The plan that the files of a directory are."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory
        self._plans: dict[str, tuple[tuple[int, int], Faults]] = {}
        self._log = (directory / "calls").open("a", buffering=1)

    def take(self, operation: str, path: bytes) -> Fault | None:
        if _looking.get():
            return None
        fault = self._planned(operation, path)
        print(operation, os.fsdecode(path), "met" if fault is not None else "-", file=self._log)
        return fault

    def _planned(self, operation: str, path: bytes) -> Fault | None:
        for name in sorted(os.listdir(self._directory)):
            if name.partition("@")[0] != operation:
                continue
            file = self._directory / name
            try:
                fault = self._plan(file).take(operation, path)
            except FileNotFoundError:  # taken away just now
                continue
            if fault is not None:
                return fault
        return None

    def _plan(self, file: Path) -> Faults:
        """A plan of this one fault, the same until the file is another one."""
        st = file.stat()
        known = self._plans.get(file.name)
        if known is None or known[0] != (st.st_ino, st.st_mtime_ns):
            known = self._plans[file.name] = (st.st_ino, st.st_mtime_ns), _Once(file)
        return known[1]


class _Once(Faults):
    """The plan that one file is. It takes the file away when it is used up."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        fault, which = _parse(file)
        self._left = which["times"]
        self.plan(file.name.partition("@")[0], fault, **which)

    def take(self, operation: str, path: bytes) -> Fault | None:
        fault = super().take(operation, path)
        if fault is not None and self._left is not None:
            self._left -= 1
            if not self._left:
                self._file.unlink(missing_ok=True)
        return fault


def _parse(file: Path) -> tuple[Fault, Which]:
    words = file.read_text().split()
    chosen = dict(word.split("=", 1) for word in words if "=" in word)
    kind, *rest = [word for word in words if "=" not in word]
    fault: Fault
    if kind == "hang":
        fault, rest = _HangWhile(file), ["always"]
    elif kind == "torn":
        fault = Tear()
    elif kind == "delay":
        fault = Delay(float(rest.pop(0)))
    elif kind in ("lost", "broken"):
        number = getattr(errno, rest.pop(0))
        fault = Lose(number) if kind == "lost" else Break(number)
    else:
        fault = Fail(getattr(errno, kind))
    times = rest[0] if rest else "1"
    under = os.fsencode(chosen.get("under", ""))
    operation = file.name.partition("@")[0]
    pathless = operation in ("upload", "upload.discard", "capacity") or operation.startswith("reader.")

    def meant(path: bytes) -> bool:
        if not under or (pathless and not path):
            return True
        return path == under or path.startswith(under + b"/")

    return fault, {
        "nth": int(chosen.get("nth", "1")),
        "times": None if times == "always" else int(times),
        "where": meant,
    }


class _FaultyDirectoryStore(FaultStore):
    """What `volfs.daemon` takes for a DirectoryStore; the staging directory and the like have no faults."""

    def __init__(self, root: Path) -> None:
        local = False if os.environ.get("VOLFS_TEST_STORE") == "remote" else None
        self._beneath = DirectoryStore(root, local=local)
        super().__init__(self._beneath, _FaultDirectory(Path(os.environ["VOLFS_TEST_FAULTS"])))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._beneath, name)


def _without_faults(look: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(look)
    async def looking(*args: Any) -> None:
        token = _looking.set(True)
        try:
            await look(*args)
        finally:
            _looking.reset(token)

    return looking


if __name__ == "__main__":
    for _name in ("happened", "everything", "poll"):
        setattr(Changes, _name, _without_faults(getattr(Changes, _name)))
    daemon.DirectoryStore = _FaultyDirectoryStore  # type: ignore[assignment, attr-defined]
    sys.exit(main())
