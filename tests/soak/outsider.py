"""A program that knows nothing of volfs and edits the backing: it puts new versions of shared logs in place.

By RENAME_EXCHANGE, so that it knows exactly what it replaced. Runs until told to stop.
"""

from __future__ import annotations

import json
import os
import random
import sys
import threading
from pathlib import Path
from typing import Final

from tests.mount.calls import EXCHANGE, NOREPLACE, rename_with
from tests.soak import shared
from tests.soak.ledger import Operation
from tests.soak.manifest import Manifest
from tests.soak.worker import Task

__all__: list[str] = []

#: An editor, not a storm: the nodes shall win most of the time.
_BETWEEN_S: Final = 0.15


def edit(task: Task) -> None:
    """Replace shared logs until told to stop; what was replaced is kept beside the manifest, by word."""
    rng = random.Random(task.seed)
    manifest = Manifest(Path(task.manifest))
    pause = threading.Event()
    count = 0
    while not os.path.exists(task.stop):
        pause.wait(rng.random() * 2 * _BETWEEN_S)
        count += 1
        word = f"outside-{task.seed & 0xFFFF:04x}-{count}"
        name = rng.choice(shared.LOGS)
        manifest.begin(Operation("edit", name, word))
        aside = Path(f"{task.manifest}.{word}")
        aside.write_bytes(shared.line(word))
        target = Path(task.shared) / name
        try:
            rename_with(EXCHANGE, aside, target)
        except FileNotFoundError:
            try:
                rename_with(NOREPLACE, aside, target)
            except FileExistsError:
                aside.unlink()
                continue
            aside.write_bytes(b"")
        manifest.say("end")
    manifest.say("done")


if __name__ == "__main__":
    edit(Task(**json.loads(sys.argv[1])))
