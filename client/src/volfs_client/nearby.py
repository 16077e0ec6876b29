"""Where a file can be read fastest: a mount's cache file, a local copy, or the file itself.

For one pass of one worker it says to the mount, from the thread that opens, what will be opened, a bounded
number of files ahead, and asks for the hand-off path of each file as its turn comes. A mount that hands
nothing out (no cache, another user's daemon, a container that does not see the cache directory) is read
through. Elsewhere, and only if asked to, it copies files into a local directory that all processes of the
machine share.

That directory has one file for each path, size and mtime, named after these, so that a changed
file is another one; each appears complete by a rename, and two processes that copy the same file do it
twice. It is not bounded: when the disk is full, files are read where they are. Whoever made it removes it.

*Concurrency:* one thread. It starts none, and holds no file open between two calls.
"""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from hashlib import sha256
from itertools import islice
from typing import Final

from volfs_client import mount
from volfs_client.listing import File, Listing
from volfs_client.paths import LocalPath

__all__ = ["Nearby"]

#: After so many files of a mount that were not handed out, none is asked for any more: each answer takes a
#: call, and the reason is the mount's far more often than the file's (empty, or not committed yet).
_REFUSALS: Final = 16

#: A full or foreign disk is no reason to end a training run.
_NO_COPY: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM})


class Nearby:
    """See the module. `upcoming`: the indexes in the listing of what will be placed, in that order."""

    def __init__(
        self, listing: Listing, upcoming: Iterator[int], ahead: int, cache_dir: str | None, handoff: bool
    ) -> None:
        self._listing = listing
        self._upcoming = upcoming
        self._most = ahead
        self._ahead = 0  # files said and not placed yet
        self._mounts = {root: mount.is_volfs(root) for root in listing.roots}
        self._hints = ahead > 0 and any(self._mounts.values())
        self._cache_dir = cache_dir
        self._handoff = handoff
        self._refusals = 0

    def place(self, file: File) -> LocalPath:
        """The path to read the file at. Raises OSError if there is no such file any more."""
        if self._hints:
            self._ahead = max(0, self._ahead - 1)
            if self._ahead <= self._most // 2:
                self._hint()
        path = file.path
        if self._mounts[file.root]:
            if self._handoff and self._refusals < _REFUSALS:
                local = mount.local_path(path)
                if local is not None and os.access(local, os.R_OK):
                    self._refusals = 0
                    return LocalPath(local, path)
                self._refusals += 1
        elif self._cache_dir is not None:
            return LocalPath(self._copy(path), path)
        return LocalPath(path, path)

    def release(self, path: LocalPath) -> None:
        """The file was read: the mount need not keep it for us."""
        if path != path.source and self._cache_dir is None:
            mount.release(path.source)

    def _hint(self) -> None:
        """Say the next files, as many as may be ahead. If the mount does not listen, say no more."""
        below: dict[str, list[str]] = {}
        for index in islice(self._upcoming, self._most - self._ahead):
            file = self._listing[index]
            self._ahead += 1
            if self._mounts[file.root]:
                below.setdefault(file.root, []).append(file.name)
        for root, names in below.items():
            if not mount.prefetch(root, names):
                self._hints = False

    def _copy(self, path: str) -> str:
        """A local copy of the file; the file itself if there can be none."""
        assert self._cache_dir is not None
        with open(path, "rb") as source:
            before = os.fstat(source.fileno())
            key = sha256(os.fsencode(f"{path}\0{before.st_size}\0{before.st_mtime_ns}")).hexdigest()
            copy = os.path.join(self._cache_dir, key[:2], key[2:] + os.path.splitext(path)[1])
            if os.path.exists(copy):
                return copy
            temporary = ""
            try:
                os.makedirs(os.path.dirname(copy), exist_ok=True)
                handle, temporary = tempfile.mkstemp(dir=os.path.dirname(copy), prefix=".")
                with open(handle, "wb") as target:
                    shutil.copyfileobj(source, target, 1 << 20)
                after = os.fstat(source.fileno())
                if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
                    return path  # it is being written
                os.replace(temporary, copy)
                temporary = ""
                return copy
            except OSError as error:
                if error.errno not in _NO_COPY:
                    raise
                warnings.warn(f"no more local copies in {self._cache_dir}: {error}", stacklevel=2)
                self._cache_dir = None
                return path
            finally:
                if temporary:
                    os.unlink(temporary)
