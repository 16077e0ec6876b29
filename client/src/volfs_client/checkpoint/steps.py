"""The directory of a run's checkpoints: one directory a step, and hidden ones for what comes and goes.

    step-100/                          complete as soon as it has `.metadata`
    .step-200.OWNER.tmp/               being written, or left by somebody who died
    .step-50.OWNER.old/                being deleted

An OWNER is a process of one boot of one machine (`temporary`). What a dead one left is removed at once if it
was one of this machine, else when nothing in it changed for `stale_s`. It takes no decision about which
checkpoints are kept (`keeping`), and it needs no torch.

*Invariants:* one job at a time writes below a root. Nothing that is in flight is removed.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import time
import uuid
from pathlib import Path
from typing import Final

from volfs_client import temporary
from volfs_client.checkpoint.files import make_directory
from volfs_client.durable import sync_directory
from volfs_client.errors import CheckpointExists

__all__ = ["Steps"]

_log = logging.getLogger("volfs_client")

_METADATA: Final = ".metadata"
_STEP: Final = re.compile(r"step-(\d+)")
_HIDDEN: Final = re.compile(rf"\.step-\d+\.({temporary.OWNER})-[0-9a-f]{{8}}\.(?:tmp|old)")

#: Hidden directories that this process gave up. Their names are unique, and their owner lives: nobody else
#: could tell.
_abandoned: set[str] = set()


class Steps:
    """See the module. `stale_s`: how long nothing may have changed in a directory that a dead owner left."""

    def __init__(self, root: str | os.PathLike[str], stale_s: float = 24 * 3600) -> None:
        self.root = Path(root)
        self._stale_s = stale_s

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step is, or would be."""
        return self.root / f"step-{step}"

    def complete(self) -> list[int]:
        """The steps of which there is a complete checkpoint, in order."""
        try:
            names = os.listdir(self.root)
        except FileNotFoundError:
            return []
        steps = [int(match[1]) for name in names if (match := _STEP.fullmatch(name))]
        return sorted(step for step in set(steps) if (self.path(step) / _METADATA).exists())

    def begin(self, step: int) -> Path:
        """A new hidden directory for a step that is going to be written."""
        path = self._hidden(step, "tmp")
        make_directory(path)
        return path

    def publish(self, temporary: Path, step: int) -> None:
        """Give a directory that is complete and durable its name, at once and durably.

        Raises CheckpointExists if there is something of that name by now.
        """
        path = self.path(step)
        try:
            os.rename(temporary, path)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                raise CheckpointExists(errno.EEXIST, "somebody else made it meanwhile", str(path)) from error
            raise
        try:
            sync_directory(self.root)
        except BaseException:
            os.rename(path, temporary)
            raise

    def remove(self, step: int) -> None:
        """Delete a checkpoint, which is incomplete for everybody from the first moment on.

        Never fails: what could not be deleted is logged. Others may be at it as well.
        """
        path, hidden = self.path(step), self._hidden(step, "old")
        try:
            os.rename(path, hidden)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL):
                _log.warning("checkpoint %s cannot be deleted: %s", path, error)
                return
            # A store that cannot rename directories: take away what makes it complete.
            hidden = path
            try:
                (path / _METADATA).unlink(missing_ok=True)
            except OSError as refused:
                _log.warning("checkpoint %s cannot be deleted: %s", path, refused)
                return
        _remove_tree(hidden)

    def abandon(self, temporary: Path) -> None:
        """Remove a directory of `begin` that will not be published. Never fails; `sweep` tries again."""
        _abandoned.add(temporary.name)
        _remove_tree(temporary)

    def sweep(self) -> None:
        """Remove what dead owners left, and what was abandoned in this process. Never fails."""
        try:
            names = os.listdir(self.root)
        except OSError:
            return
        for name in names:
            match = _HIDDEN.fullmatch(name)
            if match is None:
                continue
            if name in _abandoned or self._is_left(self.root / name, match[1]):
                _remove_tree(self.root / name)

    def _hidden(self, step: int, kind: str) -> Path:
        return self.root / f".step-{step}.{temporary.owner()}-{uuid.uuid4().hex[:8]}.{kind}"

    def _is_left(self, path: Path, owner: str) -> bool:
        alive = temporary.is_alive(owner)
        return time.time() - _last_change_s(path) > self._stale_s if alive is None else not alive


def _last_change_s(path: Path) -> float:
    """The time of the last change in a directory; now, if that cannot be told."""
    try:
        return max(one.stat().st_mtime for one in (path, *path.iterdir()))
    except OSError:
        return time.time()


def _remove_tree(path: Path) -> None:
    def failed(_function: object, name: str, info: tuple[type[BaseException], BaseException, object]) -> None:
        if not isinstance(info[1], FileNotFoundError):
            _log.warning("%s cannot be deleted: %s", name, info[1])

    shutil.rmtree(path, onerror=failed)
