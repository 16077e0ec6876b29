"""The manifest: what a worker was about to do, and how far it was told that it is done. Outside the mount.

One line of JSON a fact, appended by one worker, which survives the daemon:
`begin` with an operation, `step` as each part of it returned, `end` when all did,
`failed` with the errno that ended the worker and the time, `done` when it was told to stop.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.soak.ledger import Operation, Piece, Step

__all__ = ["Manifest", "Record", "read"]


class Manifest:
    """The worker's end."""

    def __init__(self, file: Path) -> None:
        self._fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def say(self, fact: str, value: object = None) -> None:
        """Append a fact, with the time: one clock for all processes."""
        os.write(self._fd, json.dumps([fact, value, time.monotonic()]).encode() + b"\n")

    def begin(self, op: Operation) -> None:
        self.say("begin", asdict(op))


@dataclass(slots=True)
class Record:
    """All that a worker said. `last`: the operation that did not end, and `steps` of it that returned."""

    ended: list[Operation] = field(default_factory=list)
    last: Operation | None = None
    steps: int = 0
    failed: str = ""
    failed_s: float = 0.0
    done: bool = False


def read(file: Path) -> Record:
    """What was said so far; a line that is being written is left out."""
    record = Record()
    whole = file.read_bytes().split(b"\n")[:-1] if file.exists() else []
    for line in whole:
        fact, value, now = json.loads(line)
        if fact == "begin":
            record.last, record.steps = _operation(value), 0
        elif fact == "step":
            record.steps += 1
        elif fact == "end":
            assert record.last is not None
            record.ended.append(record.last)
            record.last = None
        elif fact == "failed":
            record.failed, record.failed_s = value, now
        elif fact == "done":
            record.done = True
    return record


def _operation(value: dict[str, Any]) -> Operation:
    steps = tuple(
        Step(do, None if piece is None else Piece(*piece), name) for do, piece, name in value.pop("steps")
    )
    return Operation(**value, steps=steps)
