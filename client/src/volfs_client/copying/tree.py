"""Copy a tree or a file: what callers use.

It checks what can be known before, reports how far the work is, and says what went wrong. The
calling thread only waits and reports, so that Ctrl-C, or an error in `progress`, ends the work
within a chunk and leaves nothing half done.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable
from typing import Final

from volfs_client import mount
from volfs_client.copying.backlog import Entry
from volfs_client.copying.crew import Crew, Overwrite
from volfs_client.copying.directory import Directory, sweep
from volfs_client.copying.progress import CopyCounts, Line
from volfs_client.errors import CopyFailed

__all__ = ["JOBS", "copy_pairs", "copy_tree"]

AnyPath = str | os.PathLike[str]

#: Files copied at once. Round trips are what a copy waits for, not the processor.
JOBS: Final = 32

#: Seconds between two reports.
_REPORT_S: Final = 0.2

#: Failures that the message names; the error has all of them.
_NAMED: Final = 3

#: A thread whose request does not end is left behind after so many seconds; it publishes nothing.
_LEAVE_S: Final = 30.0


def copy_tree(
    src: AnyPath,
    dst: AnyPath,
    *,
    jobs: int = JOBS,
    progress: bool | Callable[[CopyCounts], object] = False,
    overwrite: Overwrite = "changed",
    fsync: bool = False,
) -> CopyCounts:
    """Copy the directory `src`, or the file, so that `dst` is what it is; in `jobs` threads.

    A file appears under its name when it is complete: with the size of its source, which did not
    change meanwhile (else it is copied again). Permissions and times of files and directories are
    kept, owners and extended attributes are not; symlinks are copied as they are, holes stay holes,
    and a file with several names becomes several files. A directory `dst` that was there keeps its
    own mode and time, and what else is in it.

    overwrite: "changed": a file whose copy has its size and time is not copied again, so that a call
    that was interrupted goes on where it was. "never": nothing that is there is touched. "always".
    progress: called with the counts, in this thread, a few times a second and at the end; True:
    one line on stderr, if that is a terminal.
    fsync: each file survives a power cut once it has its name.

    Raises CopyFailed with the errors of what could not be copied, after all the rest was; at once
    where the rest would fail too (no space, read-only). FileNotFoundError: no `src`.
    NotADirectoryError, IsADirectoryError: `dst` is of the other kind. OSError EINVAL: `dst` is in
    `src`, or is it.
    """
    return copy_pairs([(src, dst)], jobs=jobs, progress=progress, overwrite=overwrite, fsync=fsync)


def copy_pairs(
    pairs: Iterable[tuple[AnyPath, AnyPath]],
    *,
    jobs: int = JOBS,
    progress: bool | Callable[[CopyCounts], object] = False,
    overwrite: Overwrite = "changed",
    fsync: bool = False,
) -> CopyCounts:
    """As `copy_tree`, for several pairs of a source and its target. No two targets may overlap."""
    if jobs < 1:
        raise ValueError("jobs: at least 1")
    if overwrite not in ("changed", "never", "always"):
        raise ValueError("overwrite: changed, never or always")
    line = Line() if progress is True else None
    report = line or (progress if callable(progress) else None)
    firsts = _firsts(pairs)
    crew = Crew(jobs, overwrite, fsync=fsync)
    for first in firsts:
        crew.add(first)
    try:
        crew.start()
        while not crew.wait(_REPORT_S):
            if report is not None:
                report(crew.counts)
    finally:
        crew.stop(_LEAVE_S)
        if line is not None:
            line(crew.counts)
            line.end()
    counts = crew.counts
    if crew.bug is not None:
        raise crew.bug
    if report is not None and line is None:
        report(counts)
    if crew.failed:
        raise CopyFailed(_message(crew, counts), crew.failed, stopped=crew.lasting is not None)
    return counts


def _firsts(pairs: Iterable[tuple[AnyPath, AnyPath]]) -> list[Directory | Entry]:
    firsts: list[Directory | Entry] = []
    hint_roots: dict[str, str | None] = {}
    swept: set[str] = set()
    for src, dst in pairs:
        # What was given may be a link; links below it are copied.
        source, target = os.path.realpath(src), os.path.realpath(dst)
        st = os.stat(src)
        is_tree = stat.S_ISDIR(st.st_mode)
        _check(is_tree, source, target, os.fspath(dst))
        above = os.path.dirname(target)
        os.makedirs(above, exist_ok=True)
        root = source if is_tree else os.path.dirname(source)
        if root not in hint_roots:
            hint_roots[root] = root if mount.is_volfs(root) else None
        if is_tree:
            times_ns = (st.st_atime_ns, st.st_mtime_ns)
            was_there = os.path.isdir(target)
            firsts.append(
                Directory(source, target, st.st_mode, times_ns, None, hint_roots[root], keeps_own=was_there)
            )
        else:
            if above not in swept:
                sweep(above)
                swept.add(above)
            firsts.append(Entry(source, target, st, None, hint_roots[root]))
    return firsts


def _check(is_tree: bool, source: str, target: str, dst: str) -> None:
    if target == source or (is_tree and target.startswith(os.path.join(source, ""))):
        raise OSError(errno.EINVAL, "a copy cannot be put into what it is of", dst)
    if is_tree and os.path.lexists(target) and not os.path.isdir(target):
        raise NotADirectoryError(errno.ENOTDIR, "it is a file, and the source is a directory", dst)
    if not is_tree and os.path.isdir(target):
        raise IsADirectoryError(errno.EISDIR, "it is a directory, and the source is a file", dst)


def _message(crew: Crew, counts: CopyCounts) -> str:
    if crew.lasting is not None:
        left = counts.found - counts.files - counts.unchanged
        more = "" if counts.listed else ", and what was not listed yet"
        where = f" ({crew.lasting.filename})" if crew.lasting.filename else ""
        return (
            f"stopped: {os.strerror(crew.lasting.errno or errno.EIO)}{where}; {counts.files} files were "
            f"copied, {left} were not{more}. Called again, it goes on from there"
        )
    named = "; ".join(f"{path}: {error.strerror}" for path, error in crew.failed[:_NAMED])
    rest = len(crew.failed) - _NAMED
    more = f"; and {rest} more" if rest > 0 else ""
    return f"{len(crew.failed)} of {counts.found} could not be copied: {named}{more}"
