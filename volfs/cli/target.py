"""TARGET of `volfs recover` and `volfs fsck`: a mount that serves, or a cache directory that no daemon uses.

It finds out which, and opens what is in a cache directory, under its lock.

*Invariants:* while `opened` is entered, no daemon starts with the directory.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from volfs.cli import control
from volfs.cli.output import EXIT_USAGE, fail, reason
from volfs.errors import SetupError
from volfs.kernel import mounts

if TYPE_CHECKING:
    from volfs.commit.staging import Staging

__all__ = ["Directory", "Mounted", "Unmounted", "find", "journal_copy", "opened"]

_JOURNAL: Final = "journal.db"


@dataclass(frozen=True, slots=True)
class Mounted:
    """A daemon serves here: it has the journal, and does what is asked."""

    mountpoint: Path


@dataclass(frozen=True, slots=True)
class Unmounted:
    """No daemon uses this cache directory: we do it ourselves."""

    cache_dir: Path


def find(target: Path) -> Mounted | Unmounted:
    """What TARGET is; SetupError if it cannot be used now, exit code 2 if it is neither."""
    mount = mounts.find(target)
    if mount is not None and mount.is_volfs:
        if control.is_dead(target):
            raise SetupError(f"the daemon of {target} has died; mount it again, or name its cache directory")
        return Mounted(target)
    if not (target / _JOURNAL).is_file():
        fail(f"{target} is neither a volfs mount nor the cache directory of one", EXIT_USAGE)
    with _lock(target) as free:
        if free:
            return Unmounted(target)
    return Mounted(_server(target))


def _server(cache_dir: Path) -> Path:
    """The mount whose daemon has the directory's lock."""
    from volfs.commit import record

    try:
        mountpoint = record.read(cache_dir).mountpoint
        if control.read_status(mountpoint).get("cache_dir") == str(cache_dir.resolve()):
            return mountpoint
    except (SetupError, OSError, ValueError):
        pass
    raise SetupError(f"{cache_dir} is in use by a daemon; name its mount point instead")


@contextmanager
def _lock(cache_dir: Path) -> Iterator[bool]:
    """Hold the directory's lock, if it is free; whether it was."""
    try:
        fd = os.open(cache_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise SetupError(f"cannot use {cache_dir}: {reason(error)}") from error
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(fd)


@dataclass(frozen=True, slots=True)
class Directory:
    """What is in a cache directory, with its lock held. Where nothing was ever staged or cached: None."""

    path: Path
    backing: Path
    mount_id: str
    staging: Staging | None

    @property
    def journal(self) -> Path:
        return self.path / _JOURNAL

    @property
    def cache(self) -> Path | None:
        directory = self.path / "cache"
        return directory if (directory / "index.db").exists() else None


@contextmanager
def opened(cache_dir: Path) -> Iterator[Directory]:
    """The directory, until the end of the block; SetupError or OSError where it cannot be used."""
    from volfs.commit import record
    from volfs.commit.staging import Staging

    with _lock(cache_dir) as free:
        if not free:
            raise SetupError(f"{cache_dir} is in use by a daemon")
        known = record.read(cache_dir)
        mount_id = record.mount_id(cache_dir)
        path = record.staging_path(cache_dir)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            _check_nothing_is_staged(cache_dir / _JOURNAL, path)
            yield Directory(cache_dir, known.backing, mount_id, None)
            return
        try:
            staging = Staging(fd, in_store=not known.cached)
            yield Directory(cache_dir, known.backing, mount_id, staging)
        finally:
            os.close(fd)


def _check_nothing_is_staged(journal: Path, staging: Path) -> None:
    """A daemon takes the directory away only when its journal is empty: else this is not the place."""
    from volfs.commit.journal import Journal

    with journal_copy(journal) as file:
        copy = Journal(file)
        rows = len(copy.entries())
        copy.close()
    if rows:
        raise SetupError(
            f"{staging} is not there, and the journal has {rows} files in it: "
            "is the file system of the backing directory mounted?"
        )


@contextmanager
def journal_copy(journal: Path) -> Iterator[Path]:
    """A copy of the journal's file: what is done to it, mending included, the journal never sees."""
    with tempfile.TemporaryDirectory() as aside:
        for suffix in ("", "-wal"):
            source = journal.with_name(journal.name + suffix)
            if source.exists():
                shutil.copyfile(source, Path(aside, source.name))
        yield Path(aside, journal.name)
