"""The control plane's part for hand-off: a loader on this host reads a cache file with no FUSE in between.

    user.volfs.path     the local path of the file's complete, verified and leased cache file
    user.volfs.release  ends the lease before its time; answers whether there was one

One request does all: it asks the store which version there is (R1), fetches what is missing,
verifies, and leases. Asked again, it makes the lease last longer. Errors of `path`:

    EACCES      the caller cannot open files of the cache directory: neither root nor the daemon's user
    ENODATA     there is no snapshot to hand out: the file is empty, or waits for its commit
    EOPNOTSUPP  the mount has no cache. The store's own file is no snapshot: anybody may write into it
    EAGAIN      it takes longer than a request should; what was fetched is kept: ask again
    ENOSPC      it does not fit into the cache, or as much is leased as may be

In all of these, reading through the mount is right, and in EAGAIN asking again as well.
It holds no lease itself (`cache.lease`).
"""

from __future__ import annotations

import errno
import os
from typing import Final

import trio

from volfs.cache.fill import Cache, CachedFile
from volfs.errors import NotPermitted, StoreError, VersionChanged
from volfs.fs.file import File
from volfs.fs.files import Files
from volfs.fs.tree import Node
from volfs.fs.volume import Volume
from volfs.fs.warming import bring, cache_of, unload

__all__ = ["Handoff"]

#: What one request may take: signals to its caller wait for so long, SIGKILL included.
_PATIENCE_S: Final = 10.0

#: A damaged file is dropped and fetched again; damage of what was just fetched is the disk's.
_TRIES: Final = 3

_PATH: Final = b"path"
_RELEASE: Final = b"release"


class Handoff:
    """See the module."""

    def __init__(self, volume: Volume, files: Files) -> None:
        self._volume = volume
        self._files = files

    async def get(self, node: Node, name: bytes, uid: int) -> bytes | None:
        """The value of the attribute `name`, without the prefix; None if it is none of ours."""
        if name not in (_PATH, _RELEASE):
            return None
        if uid not in (0, os.geteuid()):
            raise NotPermitted("only root and the daemon's user can open cache files", errno=errno.EACCES)
        cache = cache_of(self._volume)
        if not node.is_file:
            raise StoreError("only regular files are handed out", errno=errno.ENODATA)
        if name == _RELEASE:
            return b"1" if cache.release(node.stat.version, node.stat.size) else b"0"
        until_s = trio.current_time() + _PATIENCE_S
        async with self._files.held(node) as file:
            for _ in range(_TRIES):
                if file.staged is not None or not file.size:
                    raise StoreError("there is no version to hand out", errno=errno.ENODATA)
                path = await self._hand_out(cache, file, until_s)
                if path is not None:
                    return path
        raise StoreError("what is kept is damaged again and again", errno=errno.EIO)

    async def _hand_out(self, cache: Cache, file: File, until_s: float) -> bytes | None:
        """The path; None if the cache file turned out to be damaged."""
        await unload(cache, file)
        cached = file.content()
        new = not cached.local.leased
        if not cache.leases.take(cached.local):
            raise StoreError("as much is leased as may be", errno=errno.ENOSPC)
        try:
            path = await self._complete(cache, file, cached, until_s)
        except BaseException as error:
            # What was fetched so far stays for the one who asks again, who then finds it verified.
            if new and getattr(error, "errno", None) != errno.EAGAIN:
                cache.leases.end(cached.local)
            raise
        if path is None:
            cache.leases.end(cached.local)
        return path

    async def _complete(self, cache: Cache, file: File, cached: CachedFile, until_s: float) -> bytes | None:
        if await bring(self._volume, file, until_s) is not cached:
            raise VersionChanged("the file changed while it was fetched")
        local = cached.local
        if not cached.complete or not await cache.contents.prove(local, until_s):
            raise StoreError("it is not complete yet: ask again", errno=errno.EAGAIN)
        if file.cached is not cached:
            raise VersionChanged("the file changed while it was verified")
        if not cached.complete or local.doomed:
            return None
        if not local.sealed:
            try:
                local.seal()
            except OSError:
                return None
        return os.fsencode(local.path)
