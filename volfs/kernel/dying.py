"""A daemon that was killed and cannot die, and the mount that hangs with it.

A thread that tells the kernel to drop pages waits, uninterruptibly, for a page that
a request holds; the request waits for the daemon. Alive, the daemon answers it. If
it is killed at that moment nobody will, so the thread stays, keeps /dev/fuse open,
and whoever uses the mount hangs instead of getting ENOTCONN. Aborting the
connection ends all of that; only root and the mount's owner may.

*Invariants:* nothing is done to a daemon that lives.
"""

from __future__ import annotations

import os
import select
from contextlib import suppress
from pathlib import Path
from typing import Final

from volfs.kernel import mounts
from volfs.kernel.tuning import connections
from volfs.telemetry import get_logger

__all__ = ["end", "note"]

log = get_logger("dying")

#: Once its requests are aborted, the kernel needs a moment to take the process apart.
_END_S: Final = 10.0


def note(lock: int) -> None:
    """Leave this process's number in the lock file that it holds."""
    with suppress(OSError):  # a full disk: then only a person can tell
        os.ftruncate(lock, 0)
        os.pwrite(lock, b"%d\n" % os.getpid(), 0)


def end(mountpoint: Path, lock: Path) -> bool:
    """If the daemon of the lock file is dead but for a thread, end it and its mount; whether it was."""
    pid = _holder(lock)
    mount = mounts.find(mountpoint)
    if pid is None or mount is None or not mount.is_volfs or not _is_dying(pid):
        return False
    log.warning("a killed daemon cannot die; aborting its mount", pid=pid, mountpoint=str(mountpoint))
    try:
        with connections() as directory:
            (directory / str(mount.device[1]) / "abort").write_text("1")
    except OSError as error:
        log.error(
            "cannot abort the mount; as root: echo 1 > /sys/fs/fuse/connections/N/abort", error=str(error)
        )
        return False
    with suppress(OSError):  # gone already
        process = os.pidfd_open(pid)
        try:
            select.select([process], [], [], _END_S)  # readable when the last thread is gone
        finally:
            os.close(process)
    return True


def _holder(lock: Path) -> int | None:
    try:
        return int(lock.read_text())
    except (OSError, ValueError):
        return None


def _is_dying(pid: int) -> bool:
    """Whether the first thread is over and others are not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        return state in (b"Z", b"X") and len(os.listdir(f"/proc/{pid}/task")) > 1
    except OSError:
        return False
