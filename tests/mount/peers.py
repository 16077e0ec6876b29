"""Readers and writers in processes of their own, so that a fault, a hang or the interpreter's lock stays
theirs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from tests.mount.calls import in_process

__all__ = ["Mapping", "WholeReader"]

_MAPPING = """
import mmap, sys
with open(sys.argv[1], "rb") as f:
    m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
print(len(m), flush=True)
for line in sys.stdin:
    d = m[: int(line)]
    print("".join(sorted({chr(b) for b in d})), flush=True)
"""

_WHOLE_READER = """
import mmap, os, sys
path, size, stop = sys.argv[1], int(sys.argv[2]), sys.argv[3]
piece = 1 << 20
same = [bytes([v]) * piece for v in range(256)]
passes, seen = 0, set()
while True:
    last = os.path.exists(stop)
    with open(path, "rb", 0) as f:
        if passes % 3 == 2:
            with mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as m:
                pieces = [m[o : o + piece] for o in range(0, len(m), piece)]
        else:
            pieces = []
            while d := f.read(piece):
                pieces.append(d)
    got = sum(map(len, pieces))
    assert got == size, f"pass {passes}: {got} bytes"
    values = {d[0] for d in pieces}
    assert len(values) == 1, f"pass {passes}: a mix of {values}"
    value = values.pop()
    assert all(d == same[value] for d in pieces), f"pass {passes}: a mix within a piece"
    seen.add(value)
    if not passes:
        print("reading", flush=True)
    passes += 1
    if last:
        break
print(passes, value, len(seen), flush=True)
"""


class Mapping:
    """A shared read-only mapping of a whole file in another process."""

    def __init__(self, path: Path) -> None:
        self._process = in_process(_MAPPING, path)
        self.size = int(self._line())

    def values(self, size: int) -> str:
        """The distinct characters in the first `size` bytes; "" if the process died of it (SIGBUS)."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{size}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return ""
        return self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def __enter__(self) -> Mapping:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()


class WholeReader:
    """Reads a file again and again, by read and by mapping, and fails on any mix of two versions."""

    def __init__(self, path: Path, size: int, stop: Path) -> None:
        self._stop = stop
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WHOLE_READER, str(path), str(size), os.fspath(stop)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it reads now

    @property
    def failed(self) -> bool:
        return self._process.poll() not in (None, 0)

    def finish(self, within: float = 30) -> tuple[int, int, int]:
        """Let it read once more, and answer: passes, the last value, distinct values seen."""
        self._stop.touch()
        try:
            out, err = self._process.communicate(timeout=within)
        except subprocess.TimeoutExpired:
            self._process.kill()
            out, err = self._process.communicate()
            raise
        assert self._process.returncode == 0, err
        passes, value, distinct = map(int, out.split())
        return passes, value, distinct
