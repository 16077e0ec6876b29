"""What a killed daemon leaves, for the tests of `volfs recover` and `volfs fsck`."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.mount import mounts
from tests.mount.volume import Volume

__all__ = [
    "WAYS",
    "WHERES",
    "kept",
    "killed_while_writing",
    "report",
    "rows",
    "staged",
    "target",
]

#: The two kinds of TARGET.
WHERES = ("mount", "directory")

#: The same, once with staged files in the cache directory and once in the backing.
WAYS = (("mount", "cached"), ("directory", "local"))


def killed_while_writing(volume: Volume, files: dict[str, bytes]) -> None:
    """Mount, write into new files, and kill the daemon while all of them are open."""
    volume.mount()
    handles = [(volume.mountpoint / name).open("wb", buffering=0) for name in files]
    for handle, data in zip(handles, files.values(), strict=True):
        handle.write(data)
    _dead(volume)
    for handle in handles:
        try:
            handle.close()
        except OSError:
            pass  # the mount is dead


def _dead(volume: Volume) -> None:
    """Kill the daemon, and take the dead mount away."""
    volume.kill()
    mounts.detach(volume.mountpoint)


def target(volume: Volume, where: str) -> str:
    """TARGET of either kind; the directory's is free after this."""
    if where == "mount":
        return str(volume.mountpoint)
    if mounts.is_mounted(volume.mountpoint):
        _dead(volume)
    return str(volume.cache_dir)


def rows(volume: Volume, statement: str) -> list[tuple[Any, ...]]:
    """Run a statement on the journal, of which no daemon knows."""
    with closing(sqlite3.connect(volume.cache_dir / "journal.db", isolation_level=None)) as journal:
        return journal.execute(statement).fetchall()


def staged(volume: Volume) -> list[Path]:
    """The staged files, wherever they lie."""
    return [Path(path) for path in volume.leftovers()]


def kept(volume: Volume, where: str) -> list[dict[str, Any]]:
    """What `volfs recover list` says."""
    done = volume.volfs("recover", "list", target(volume, where), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["more"] == 0
    return list(document["kept"])


def report(volume: Volume, where: str, *options: str) -> tuple[int, dict[str, Any]]:
    """Exit code and report of `volfs fsck`."""
    done = volume.volfs("fsck", target(volume, where), "--json", *options)
    return done.returncode, json.loads(done.stdout)
