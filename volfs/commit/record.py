"""`mount.json`: which store the journal and the staged files of a cache directory belong to.

The daemon writes it at each start. Without it nobody could tell, once the daemon
is gone, where the bytes in the directory are to go; and a mount of another store
with the same directory would commit them there.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from volfs.errors import SetupError

__all__ = ["MountRecord", "claim", "mount_id", "read", "staging_path"]

_NAME: Final = "mount.json"


@dataclass(frozen=True, slots=True)
class MountRecord:
    """`cached`: staged files lie in the cache directory; else in the backing's `.volfs/<mount-id>`."""

    backing: Path
    mountpoint: Path
    cached: bool
    commit: str
    read_only: bool


def claim(cache_dir: Path, record: MountRecord, *, owes: bool) -> None:
    """Say what the directory is of from now on; before the staging directory is made.

    `owes`: the journal has rows. SetupError if the files that they speak of are not to
    be found, or not to be committed, where this mount would look for them: it would
    take them for lost.
    """
    try:
        known: MountRecord | None = read(cache_dir)
    except SetupError:
        known = None  # the first daemon that writes one
    if owes and known is not None:
        _check_same(cache_dir, known, record)
        if record.read_only:
            return  # it commits nothing: what is written goes on to say where the files lie
    if known == record:
        return  # also on a full disk, where the next mount must start all the same
    text = json.dumps(
        {
            "backing": str(record.backing),
            "mountpoint": str(record.mountpoint),
            "mode": {"cached": record.cached, "commit": record.commit, "read_only": record.read_only},
        }
    )
    beside = cache_dir / f".{_NAME}-{os.getpid()}"
    try:
        beside.write_text(text, encoding="ascii")
        beside.rename(cache_dir / _NAME)
    except OSError as error:
        raise SetupError(f"cannot write to the cache directory {cache_dir}: {error.strerror}") from error


def _check_same(cache_dir: Path, known: MountRecord, record: MountRecord) -> None:
    if known.backing != record.backing:
        raise SetupError(
            f"the cache directory {cache_dir} holds files that are to be committed to {known.backing}: "
            "mount that again, or give this mount its own --cache-dir"
        )
    if record.read_only:
        return
    if known.cached != record.cached:
        raise SetupError(
            f"the last mount with the cache directory {cache_dir} left files that are not committed: "
            f"mount once more with --cache {'on' if known.cached else 'off'}, as it was"
        )
    if not record.cached and not staging_path(cache_dir).is_dir():
        raise SetupError(
            f"{staging_path(cache_dir)} is not there, and has files that are not committed: "
            f"is the file system of {record.backing} mounted?"
        )


def read(cache_dir: Path) -> MountRecord:
    """What the last daemon wrote. SetupError says what to do without it."""
    try:
        document = json.loads((cache_dir / _NAME).read_text(encoding="ascii"))
        mode = document["mode"]
        return MountRecord(
            Path(document["backing"]),
            Path(document["mountpoint"]),
            bool(mode["cached"]),
            str(mode["commit"]),
            bool(mode["read_only"]),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetupError(
            f"{cache_dir / _NAME} does not say which mount the directory is of; "
            "mount it once more, and name the mount point instead"
        ) from error


def mount_id(cache_dir: Path) -> str:
    """The mount's name in the backing's staging area. SetupError if the directory is of no mount."""
    try:
        return (cache_dir / "mount-id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{cache_dir} has no mount-id: no daemon has ever used it") from error


def staging_path(cache_dir: Path) -> Path:
    """Where the mount's staged files lie."""
    known = read(cache_dir)
    return cache_dir / "staging" if known.cached else known.backing / ".volfs" / mount_id(cache_dir)
