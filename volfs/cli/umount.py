"""`volfs umount`: commit, unmount, wait for the daemon's end, and say if something was left.

*Invariants:* exit code 0 means that every acknowledged byte is in the store. It
returns within the deadline and a grace, whatever state the mount is in.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from volfs.cli import control, exit_record
from volfs.cli.output import EXIT_JOURNAL, fail, reason, warn
from volfs.kernel import mounts

__all__ = ["umount"]

#: What unmounting and the daemon's end may take once the time for commits is over. The daemon itself
#: drains for up to 20 s.
_GRACE_S = 30.0
_NEXT: Final = "the next mount of the same directories commits it, or keeps it for `volfs recover`"


@click.command()
@click.argument("mountpoint", type=click.Path(path_type=Path))
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=60.0,
    metavar="S",
    help="How long commits may take. [default: 60]",
)
@click.option("--force", is_flag=True, help="Also while processes hold it, or when it does not answer.")
def umount(mountpoint: Path, timeout: float, force: bool) -> None:
    """Commit what is staged, then unmount MOUNTPOINT.

    Exit code 0: everything is in the store. 1: it is still mounted. 3: unmounted, but something stays in
    the journal.
    """
    mount = mounts.find(mountpoint)
    if mount is None:
        fail(f"{mountpoint} is not a volfs mount: nothing is mounted there")
    if not mount.is_volfs:
        fail(f"{mountpoint} is not a volfs mount: {mount.source} ({mount.fstype}) is mounted there")
    deadline = time.monotonic() + timeout
    try:
        document = control.read_status(mountpoint)
    except TimeoutError:
        _take_away_hung(mountpoint, force=force)
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            _take_away_dead(mountpoint)
        fail(f"{mountpoint} gives no status: {reason(error)}")
    with _watched(int(document.get("pid", 0))) as daemon:
        left = _commit(mountpoint, document, deadline)
        # A commit that is still running holds the mount in its own right, so only a lazy unmount can work.
        stuck = isinstance(left, TimeoutError)
        detached = _unmount(mountpoint, force=force, stuck=stuck)
        if stuck and daemon is not None:
            # It cannot see that the mount is gone while our request is in it. This it sees, and its own
            # deadline bounds what it still commits.
            signal.pidfd_send_signal(daemon, signal.SIGTERM)
        ended = daemon is None or _has_ended(daemon, max(0.0, deadline - time.monotonic()) + _GRACE_S)
    _conclude(mountpoint, document, left, detached=detached, ended=ended)


def _commit(mountpoint: Path, document: dict[str, Any], deadline: float) -> OSError | None:
    """Commit everything; what went wrong, if something did. Unmounting goes on all the same (B4)."""
    if document.get("mode", {}).get("read_only"):
        return None
    try:
        control.commit(mountpoint, max(0.1, deadline - time.monotonic()))
    except OSError as error:
        return error
    return None


def _unmount(mountpoint: Path, *, force: bool, stuck: bool) -> bool:
    """Take the mount away, or end with exit code 1; returns whether lazily."""
    if not stuck:
        try:
            control.unmount(mountpoint, lazy=False, deadline_s=_GRACE_S)
        except OSError as error:
            if not force:
                _fail_unmount(mountpoint, error)
        else:
            return False
    elif not force and (mounts.holders(mountpoint) or mounts.below(mountpoint)):
        _fail_unmount(mountpoint, OSError(errno.EBUSY, os.strerror(errno.EBUSY)))
    try:
        control.unmount(mountpoint, lazy=True, deadline_s=_GRACE_S)
    except OSError as error:
        _fail_unmount(mountpoint, error)
    return True


def _fail_unmount(mountpoint: Path, error: OSError) -> NoReturn:
    if error.errno != errno.EBUSY:
        fail(f"cannot unmount {mountpoint}: {reason(error)}")
    inside = mounts.below(mountpoint)
    holders = mounts.holders(mountpoint)
    for mount in inside:
        warn(f"{mount.source} ({mount.fstype}) is mounted inside, at {mount.mountpoint}")
    for holder in holders:
        warn(f"held by pid {holder.pid} ({holder.command}): {holder.path}")
    if not inside and not holders:
        warn("held by processes that this user cannot look into")
    fail(f"{mountpoint} is busy and stays mounted; end what holds it, or use --force")


def _take_away_dead(mountpoint: Path) -> NoReturn:
    try:
        control.unmount(mountpoint, lazy=True, deadline_s=_GRACE_S)
    except OSError as error:
        fail(f"the daemon of {mountpoint} has died, and the mount cannot be taken away: {reason(error)}")
    # Nobody is left to say whether something waited: rather a warning too many.
    fail(
        f"the daemon of {mountpoint} had died; the mount is taken away. "
        f"If something was not committed, {_NEXT}",
        EXIT_JOURNAL,
    )


def _take_away_hung(mountpoint: Path, *, force: bool) -> NoReturn:
    if not force:
        fail(f"{mountpoint} does not answer and stays mounted; to take it away all the same, use --force")
    try:
        control.unmount(mountpoint, lazy=True, deadline_s=_GRACE_S)
    except OSError as error:
        fail(f"{mountpoint} does not answer and cannot be taken away: {reason(error)}")
    fail(
        f"{mountpoint} did not answer; the mount is taken away, its daemon may still run. "
        f"If something was not committed, {_NEXT}",
        EXIT_JOURNAL,
    )


@contextlib.contextmanager
def _watched(pid: int) -> Iterator[int | None]:
    """A descriptor of the daemon's process; None where it cannot be seen (another pid namespace)."""
    try:
        descriptor = os.pidfd_open(pid) if pid > 0 else None
    except OSError:
        descriptor = None
    try:
        # Looked at after the descriptor was made: the number may be another process's in here.
        yield descriptor if descriptor is not None and _is_daemon(pid) else None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _is_daemon(pid: int) -> bool:
    try:
        return b"volfs" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _has_ended(daemon: int, within_s: float) -> bool:
    return bool(select.select([daemon], [], [], within_s)[0])


def _conclude(
    mountpoint: Path, document: dict[str, Any], left: OSError | None, *, detached: bool, ended: bool
) -> NoReturn:
    pid = document.get("pid")
    if not ended:
        why = (
            "serves the processes that hold it, and commits after them" if detached else "is still committing"
        )
        fail(f"{mountpoint} is taken away; its daemon (pid {pid}) {why}", EXIT_JOURNAL)
    directory = document.get("cache_dir")
    code = exit_record.read(Path(directory), int(pid or 0)) if directory else None
    # The daemon's own word covers what came after our commit. Without it (killed, or its directory is not
    # for us to read) only our commit speaks.
    if code == 0 or (code is None and left is None):
        raise SystemExit(0)
    why = f" ({reason(left)})" if left is not None else ""
    if kept := (document.get("commit") or {}).get("kept"):
        warn(f"{kept} unfinished files of a killed daemon are kept: volfs recover list {directory}")
    fail(f"{mountpoint} is taken away, but something stays in the journal{why}; {_NEXT}", EXIT_JOURNAL)
