"""One control of many files: found below paths, asked for in many threads, reported as they come.

It knows how files are found and how often a control is asked, not what to print.

*Concurrency:* the threads live in a forked child, for the reasons in `cli.control`: a thread in a
hung FUSE request can not be interrupted, and a process does not end before all its threads do.
What they have to say comes through one pipe, a line each. Whoever is tired of it leaves the child
behind; it ends with its last request, which the daemon keeps short.
"""

from __future__ import annotations

import errno
import json
import math
import os
import select
import signal
import stat
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from volfs.cli import control
from volfs.cli.output import EXIT_USAGE, fail
from volfs.core.spans import block_count, cost_bytes

__all__ = ["Done", "Event", "Failed", "Found", "Part", "ask", "events", "status_of"]

#: A file that was replaced meanwhile is asked for again so often.
_TRIES: Final = 3

#: An event, at the latest, after so many seconds: None, so that who draws a clock can.
_TICK_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class Found:
    """All files are known. Of these, `left_out` are not asked for: they do not fit into `room_bytes`."""

    files: int
    bytes: int
    left_out: int
    left_out_bytes: int


@dataclass(frozen=True, slots=True)
class Part:
    """So many bytes more of a file that is not done yet."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Done:
    """One file, what the control said last, and how many of its bytes no `Part` has told of."""

    size: int
    answer: dict[str, Any]
    rest: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A file or directory, and the error."""

    path: str
    errno: int


Event = Found | Part | Done | Failed

#: Asks for one file until it is done: path, size, and whom to tell of parts.
Ask = Callable[[str, int, Callable[[int], None]], dict[str, Any]]

_KINDS: Final = {kind.__name__: kind for kind in (Found, Part, Done, Failed)}


def ask(path: str, name: str) -> dict[str, Any]:
    """A control of a file that answers a JSON object; OSError."""
    for left in reversed(range(_TRIES)):
        try:
            answer = json.loads(os.getxattr(path, name))
        except OSError as error:
            if error.errno != errno.ESTALE or not left:
                raise
        else:
            if isinstance(answer, dict):
                return answer
            break
    raise OSError(errno.EPROTO, os.strerror(errno.EPROTO))


def status_of(paths: Iterable[Path]) -> dict[str, Any]:
    """The status of the mount that all paths lie on; ends with exit code 2 if they do not lie on one."""
    given = list(paths)

    def look() -> bytes:
        found: dict[int, str] = {}
        for path in given:
            with suppress(OSError):  # whoever goes through the files will say it
                found.setdefault(os.stat(path).st_dev, str(path))
        return json.dumps(sorted(found.items())).encode()

    devices = json.loads(control.bounded(look, control.STATUS_DEADLINE_S))
    if not devices:
        fail(f"{given[0]} cannot be read, nor any other of the paths", EXIT_USAGE)
    for device, path in devices:
        if not control.on_volfs(Path(path)):
            fail(f"{path} is not on a volfs mount", EXIT_USAGE)
        if device != devices[0][0]:
            fail(f"{devices[0][1]} and {path} lie on different mounts: one call for each", EXIT_USAGE)
    document = control.read_status(Path(devices[0][1]))
    if not document["mode"]["cache"]:
        fail("the mount has no cache (--cache): reads go straight to the backing", EXIT_USAGE)
    return document


@contextmanager
def events(
    paths: Iterable[Path], work: Ask, jobs: int, room_bytes: int | None
) -> Iterator[Iterator[Event | None]]:
    """What happens while `work` is done for each regular file at or below the paths, by `jobs` at once.

    None now and then, while nothing happens. Files are taken in the order of the listings. OSError
    EPIPE if the child ended before its time.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _child(list(paths), work, jobs, room_bytes, writing)
    os.close(writing)
    try:
        yield _read(reading)
    finally:
        os.close(reading)
        os.kill(child, signal.SIGKILL)  # ended, or left behind: it may not be able to die yet
        os.waitpid(child, os.WNOHANG)


def _read(reading: int) -> Iterator[Event | None]:
    buffer = b""
    while True:
        if not select.select([reading], [], [], _TICK_S)[0]:
            yield None
            continue
        piece = os.read(reading, 65536)
        if not piece:
            raise OSError(errno.EPIPE, "the work ended before its time")
        *lines, buffer = (buffer + piece).split(b"\n")
        for line in lines:
            kind, values = json.loads(line)
            if kind is None:
                return
            yield _KINDS[kind](**values)


# -- in the child -----------------------------------------------------------------


def _child(paths: list[Path], work: Ask, jobs: int, room_bytes: int | None, writing: int) -> None:
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _Crew(work, jobs, room_bytes, control.alone(writing)).run(paths)
    finally:
        # Whatever happened: a second copy of the CLI must not go on from here.
        os._exit(0)


class _Crew:
    def __init__(self, work: Ask, jobs: int, room_bytes: int | None, writing: int) -> None:
        self._work = work
        self._jobs = jobs
        self._room_bytes = room_bytes
        self._writing = writing
        self._lock = threading.Lock()
        self._too_large = math.inf  # bytes: a file of this size had no room

    def run(self, paths: list[Path]) -> None:
        with ThreadPoolExecutor(self._jobs) as pool:
            files = list(self._walk(paths, pool))
            chosen = list(self._that_fit(files))
            out = len(files) - len(chosen)
            total, taken = (sum(size for _, size in some) for some in (files, chosen))
            self._tell(Found(len(files), total, out, total - taken))
            left = iter(chosen)
            for job in [pool.submit(self._job, left) for _ in range(self._jobs)]:
                job.result()
        self._say([None, {}])

    def _walk(self, paths: list[Path], pool: ThreadPoolExecutor) -> Iterator[tuple[str, int]]:
        """Files at and below the paths, each once; directories are listed side by side."""
        seen: set[tuple[int, int]] = set()
        listings: deque[Future[_Listing]] = deque(pool.submit(_look, str(path)) for path in paths)
        while listings:
            listing = listings.popleft().result()
            for path, number in listing.failed:
                self._tell(Failed(path, number))
            listings.extend(pool.submit(_list, path) for path in listing.directories)
            for path, size, identity in listing.files:
                if identity not in seen:
                    seen.add(identity)
                    yield path, size

    def _that_fit(self, files: list[tuple[str, int]]) -> Iterator[tuple[str, int]]:
        """Files in order, without those that have no room beside the ones before them."""
        left = self._room_bytes
        for path, size in files:
            if left is not None:
                cost = cost_bytes(block_count(size), bool(size), size)
                if cost > left:
                    continue
                left -= cost
            yield path, size

    def _job(self, files: Iterator[tuple[str, int]]) -> None:
        while True:
            with self._lock:
                path, size = next(files, ("", 0))
            if not path:
                return
            told = 0

            def part(count: int) -> None:
                nonlocal told
                told += count
                self._tell(Part(count))

            try:
                if size >= self._too_large:
                    raise OSError(errno.ENOSPC, "nothing so large fits any more")
                answer = self._work(path, size, part)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    self._too_large = min(self._too_large, size)
                self._tell(Failed(path, error.errno or errno.EIO))
            else:
                self._tell(Done(size, answer, size - told))

    def _tell(self, event: Event) -> None:
        values = {name: getattr(event, name) for name in event.__slots__}
        self._say([type(event).__name__, values])

    def _say(self, message: list[Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        with self._lock:
            while line:
                line = line[os.write(self._writing, line) :]


@dataclass(slots=True)
class _Listing:
    files: list[tuple[str, int, tuple[int, int]]]
    directories: list[str]
    failed: list[tuple[str, int]]


def _look(path: str) -> _Listing:
    """A path that was given, which may be a symlink."""
    found = _Listing([], [], [])
    try:
        _sort(path, os.stat(path), found)
    except OSError as error:
        found.failed.append((path, error.errno or errno.EIO))
    return found


def _list(directory: str) -> _Listing:
    found = _Listing([], [], [])
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                _sort_entry(entry, found)
    except OSError as error:
        found.failed.append((directory, error.errno or errno.EIO))
    return found


def _sort_entry(entry: os.DirEntry[str], found: _Listing) -> None:
    try:
        _sort(entry.path, entry.stat(follow_symlinks=False), found)
    except FileNotFoundError:
        pass  # removed since it was listed
    except OSError as error:
        found.failed.append((entry.path, error.errno or errno.EIO))


def _sort(path: str, st: os.stat_result, found: _Listing) -> None:
    if stat.S_ISDIR(st.st_mode):
        found.directories.append(path)
    elif stat.S_ISREG(st.st_mode):
        found.files.append((path, st.st_size, (st.st_dev, st.st_ino)))
