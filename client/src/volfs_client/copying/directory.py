"""One directory of a copy: made before its content, closed with its mode and time after it.

*Invariants:* while it is open it is never more accessible than its source, and always ours to write into.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass

from volfs_client import temporary

__all__ = ["Directory", "close", "make", "sweep"]


@dataclass(slots=True, eq=False)
class Directory:
    """A directory, and how many things in it are not finished; its own listing is one of them."""

    source: str
    target: str
    mode: int
    times_ns: tuple[int, int]
    parent: Directory | None
    hint_root: str | None  #: the directory on a volfs mount to which hints are said
    keeps_own: bool = False  #: the target keeps its mode and time
    open: int = 1

    def child(self, name: str, st: os.stat_result) -> Directory:
        """The directory of this name in it."""
        return Directory(
            os.path.join(self.source, name),
            os.path.join(self.target, name),
            st.st_mode,
            (st.st_atime_ns, st.st_mtime_ns),
            self,
            self.hint_root,
        )


def make(directory: Directory) -> bool:
    """Make the target directory; whether it is new. What killed runs left in it is removed."""
    try:
        os.mkdir(directory.target, 0o700 | stat.S_IMODE(directory.mode) & 0o777)
        return True
    except FileExistsError:
        there = os.lstat(directory.target)
        # Not through a link: it may lead out of the tree.
        if directory.parent is None and stat.S_ISLNK(there.st_mode):
            there = os.stat(directory.target)
        if not stat.S_ISDIR(there.st_mode):
            raise NotADirectoryError(
                errno.ENOTDIR, "there is something else in the place of this directory", directory.target
            ) from None
    if there.st_mode & 0o700 != 0o700 and not directory.keeps_own:
        os.chmod(directory.target, stat.S_IMODE(there.st_mode) | 0o700)
    sweep(directory.target)
    return False


def sweep(directory: str) -> None:
    """Remove what killed runs left in the directory; OSError if it cannot be listed."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if temporary.is_ours(entry.name):
                _remove(entry)


def _remove(entry: os.DirEntry[str]) -> None:
    try:
        if temporary.is_abandoned(entry.name, entry.stat(follow_symlinks=False)):
            os.unlink(entry.path)
    except OSError:
        pass  # a directory, or somebody else was faster


def close(directory: Directory) -> None:
    """Give the target its mode and time."""
    if directory.keeps_own:
        return
    there = os.stat(directory.target)
    # The bit that hands the group down is the target's own: those above it have it too.
    mode = stat.S_IMODE(directory.mode) & 0o1777 | stat.S_IMODE(there.st_mode) & stat.S_ISGID
    if there.st_mtime_ns != directory.times_ns[1]:
        os.utime(directory.target, ns=directory.times_ns)
    if stat.S_IMODE(there.st_mode) != mode:
        os.chmod(directory.target, mode)
