"""A process that frees tests from a wedged mount by aborting its FUSE connection.

It is a process of its own because a page fault on a wedged mapping stops every thread of the interpreter that
faults. It does not judge: the test that it frees fails by the errno that it gets.

Protocol on stdin: `arm SECONDS`, `rest`, `bye`. End of input without `bye` means that the session died: then
whatever it left mounted is aborted and detached.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

__all__ = ["Watchdog"]


class Watchdog:
    """The session's end of the process."""

    def __init__(self, prefix: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mount.watchdog", str(prefix)],
            stdin=subprocess.PIPE,
            cwd=Path(__file__).resolve().parents[2],
            text=True,
            start_new_session=True,
        )

    def arm(self, seconds: float) -> None:
        """Abort every mount below the prefix unless told otherwise within `seconds`."""
        self._say(f"arm {seconds}")

    def rest(self) -> None:
        self._say("rest")

    def __enter__(self) -> Watchdog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._say("bye")
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


def _watch(prefix: Path) -> None:
    from tests.mount import mounts

    deadline: float | None = None
    said = b""
    while True:
        wait = None if deadline is None else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([0], [], [], wait)
        if not ready:
            for point in mounts.beneath(prefix):
                print(f"watchdog: {point} does not answer, aborted", file=sys.stderr, flush=True)
                mounts.abort(point)
            deadline = None
            continue
        piece = os.read(0, 4096)
        said += piece
        *lines, said = said.split(b"\n")
        for line in lines:
            word, *rest = line.split()
            if word == b"bye":
                return
            deadline = time.monotonic() + float(rest[0]) if word == b"arm" else None
        if not piece:
            for point in mounts.beneath(prefix):
                mounts.abort(point)
                mounts.detach(point)
            return


if __name__ == "__main__":
    _watch(Path(sys.argv[1]))
