"""Which file systems are local disks, by what the kernel calls them.

A local file system tells of changes at once (inotify sees every writer) and
answers metadata calls without leaving the machine. Anything not listed here is
taken for remote: being wrong that way costs speed, the other way costs
correctness.
"""

from __future__ import annotations

__all__ = ["LOCAL_TYPES", "filesystem_type", "is_local"]

LOCAL_TYPES = frozenset(
    ["bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "tmpfs", "xfs", "zfs"]
)


def filesystem_type(fd: int) -> str:
    """The type of the file system behind a descriptor, as mountinfo(5) has it; "" if not found there."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as info:
        mount_id = next(line.split()[1] for line in info if line.startswith("mnt_id:"))
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        for line in mounts:
            fields = line.split()
            if fields[0] == mount_id:
                return fields[fields.index("-") + 1]
    return ""


def is_local(fd: int) -> bool:
    """Whether the file system behind a descriptor is a local one."""
    return filesystem_type(fd) in LOCAL_TYPES
