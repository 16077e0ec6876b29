"""What the kernel says about mounts and processes, read without touching a mount, so that it never hangs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from volfs.kernel.tuning import connections

__all__ = ["abort", "beneath", "detach", "is_mounted", "is_running", "processes"]


def _fuse_mounts() -> dict[str, str]:
    """Mount point -> minor device number, for every FUSE mount."""
    found = {}
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        left, _, right = line.partition(" - ")
        if right.split(" ")[0].split(".")[0] == "fuse":
            fields = left.split(" ")
            point = fields[4].encode(errors="surrogateescape").decode("unicode_escape").encode("latin-1")
            found[os.fsdecode(point)] = fields[2].split(":")[1]
    return found


def beneath(prefix: Path) -> list[Path]:
    """FUSE mounts at or below a directory."""
    return [Path(p) for p in _fuse_mounts() if Path(p).is_relative_to(prefix)]


def is_mounted(point: Path) -> bool:
    """Whether a FUSE file system is mounted exactly here."""
    return str(point) in _fuse_mounts()


def abort(point: Path) -> None:
    """Fail every request of a mount, waiting ones included: whoever hangs in it comes back with an error."""
    minor = _fuse_mounts().get(str(point))
    if minor is not None:
        try:
            with connections() as directory:
                (directory / minor / "abort").write_text("1")
        except FileNotFoundError:  # its daemon is dead: nothing can hang in it
            pass


def detach(point: Path) -> None:
    """Unmount lazily, whatever still uses it."""
    subprocess.run(["fusermount3", "-u", "-z", str(point)], check=False, capture_output=True, timeout=20)


def is_running(pid: int) -> bool:
    """Whether a process exists and is more than a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="surrogateescape")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"


def processes(prefix: Path) -> list[str]:
    """Daemons (processes whose command line mounts something) below a directory."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                command = Path(f"/proc/{entry}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            concerned = b"mount" in command and any(a.startswith(os.fsencode(prefix)) for a in command)
            if concerned and is_running(int(entry)):
                found.append(f"{entry} {b' '.join(command).decode(errors='replace')}")
    return found
