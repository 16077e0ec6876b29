"""A process that works in a mount until the mount dies or it is told to stop, and says what was acknowledged.

`python -m tests.soak.worker TASK` with a task of `Task` in JSON. It does random
operations in a directory of its own, reads data that lies ready, and now and then
appends to or replaces a file that others write, too. It ends with exit code 0 when
it was told to stop or a call failed, and leaves it to the reader of its manifest
whether that call had a reason to fail.
"""

from __future__ import annotations

import errno
import json
import os
import random
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mount.calls import EXCHANGE, rename_with
from tests.soak import shared
from tests.soak.drawing import draw
from tests.soak.ledger import Inode, Ledger, Operation, Piece, Step
from tests.soak.manifest import Manifest
from tests.soak.reading import ledger_of

__all__ = ["DATA_BYTES", "Task", "data_piece"]

_FLAGS: Final = {
    "create": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
    "exclusive": os.O_WRONLY | os.O_CREAT | os.O_EXCL,
    "replace": os.O_WRONLY | os.O_TRUNC,
    "append": os.O_WRONLY | os.O_APPEND,
    "patch": os.O_RDWR,
}

#: Of each file that lies ready to be read, and of the pieces that it consists of.
DATA_BYTES: Final = 12 << 20
_DATA_PIECE: Final = 1 << 20

_SHARED_PART: Final = 0.12


def data_piece(name: str, number: int) -> bytes:
    """One MiB of a file that lies ready."""
    return Piece(None, hash_of(f"{name}/{number}"), _DATA_PIECE).data


def hash_of(text: str) -> int:
    """A seed that is the same in every process."""
    return int.from_bytes(text.encode()[-6:], "big")


@dataclass(frozen=True, slots=True)
class Task:
    """Paths, all absolute; `whole`: may replace shared files; `fetches`: share of reads, above the usual."""

    name: str
    seed: int
    own: str
    shared: str
    data: str
    manifest: str
    stop: str
    whole: bool = False
    fetches: float = 0.0


class _Worker:
    def __init__(self, task: Task) -> None:
        self._task = task
        self._own, self._shared, self._data = Path(task.own), Path(task.shared), Path(task.data)
        self._rng = random.Random(task.seed)
        self._manifest = Manifest(Path(task.manifest))
        self._ledger = Ledger()
        self._count = 0

    def run(self) -> None:
        try:
            self._ledger = ledger_of(self._own)
            while not os.path.exists(self._task.stop):
                self._once()
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, str(error))
            self._manifest.say("failed", f"{name} {error.filename or ''}")
        except Wrong as error:
            self._manifest.say("failed", f"WRONG {error}")
        else:
            self._manifest.say("done")

    def _once(self) -> None:
        if self._rng.random() < self._task.fetches:
            op = Operation("fetch", size=self._rng.getrandbits(30))
        elif self._rng.random() < _SHARED_PART:
            op = self._shared_operation()
        else:
            op = draw(self._rng, self._ledger)
        self._manifest.begin(op)
        self._do(op)
        self._manifest.say("end")
        self._ledger.apply(op)

    def _shared_operation(self) -> Operation:
        self._count += 1
        word = f"{self._task.name}-{self._task.seed & 0xFFFF:04x}-{self._count}"
        if self._task.whole and self._rng.random() < 0.4:
            return Operation("whole", self._rng.choice(shared.WHOLES), word)
        return Operation("line", self._rng.choice(shared.LOGS), word)

    def _do(self, op: Operation) -> None:
        path = self._own / op.name
        if op.kind == "write":
            self._write(path, op)
        elif op.kind == "truncate":
            os.truncate(path, op.size)
        elif op.kind == "rename":
            path.rename(self._own / op.other)
        elif op.kind == "exchange":
            rename_with(EXCHANGE, path, self._own / op.other)
        elif op.kind == "link":
            os.link(path, self._own / op.other)
        elif op.kind in ("mkdir", "rmdir", "unlink"):
            getattr(path, op.kind)()
        elif op.kind == "read":
            self._read(op.name)
        elif op.kind == "fetch":
            self._fetch(op.size)
        elif op.kind == "line":
            _put(self._shared / op.name, os.O_APPEND, shared.line(op.other))
        elif op.kind == "whole":
            _put(self._shared / op.name, os.O_TRUNC, shared.whole(op.other))

    def _write(self, path: Path, op: Operation) -> None:
        fd = os.open(path, _FLAGS[op.how], 0o644)
        try:
            for step in op.steps:
                self._step(fd, path, step)
                if step.do == "rename":
                    path = self._own / step.name
                if step.do == "close":
                    fd, closing = -1, fd
                    os.close(closing)
                self._manifest.say("step")
        finally:
            if fd >= 0:
                os.close(fd)

    def _step(self, fd: int, path: Path, step: Step) -> None:
        if step.piece is not None:
            if step.piece.offset is None:
                _write_all(fd, step.piece.data)
            else:
                os.pwrite(fd, step.piece.data, step.piece.offset)
        elif step.do == "fsync":
            os.fsync(fd)
        elif step.do == "rename":
            path.rename(self._own / step.name)
        elif step.do == "unlink":
            path.unlink()

    def _read(self, name: str) -> None:
        """What was written here is what is read here (W1)."""
        node = self._ledger.names[name]
        assert isinstance(node, Inode)
        data = (self._own / name).read_bytes()
        if data != node.data:
            raise Wrong(f"{name}: read {len(data)} bytes, not the {len(node.data)} that were written")

    def _fetch(self, choice: int) -> None:
        """A run of data that nobody changes, through whatever cache there is (R4)."""
        rng = random.Random(choice)
        path = self._data / rng.choice(sorted(os.listdir(self._data)))
        with path.open("rb", 0) as file:
            first = rng.randrange(DATA_BYTES // _DATA_PIECE)
            for number in range(first, min(first + rng.choice((1, 2, 12)), DATA_BYTES // _DATA_PIECE)):
                if os.pread(file.fileno(), _DATA_PIECE, number * _DATA_PIECE) != data_piece(
                    path.name, number
                ):
                    raise Wrong(f"{path}: MiB {number} is not what lies in the backing")


class Wrong(Exception):
    """The mount answered with other bytes than it has."""


def _put(path: Path, how: int, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o644)
    try:
        _write_all(fd, data)
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    done = 0
    while done < len(data):
        done += os.write(fd, memoryview(data)[done:])


if __name__ == "__main__":
    _Worker(Task(**json.loads(sys.argv[1]))).run()
