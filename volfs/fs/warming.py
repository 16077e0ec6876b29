"""The control plane's part for `volfs warm` and `volfs evict`: what the cache has of a file.

    user.volfs.cached           how much of the file is in the cache; {"size", "cached_bytes", "complete"}
    user.volfs.warm             brings in what is missing for about a second, and answers the same
    user.volfs.verify[.OFFSET]  checks checksums for about a second; {"damaged_bytes", "next_offset"}
    user.volfs.evict            drops the file from the cache; {"freed_bytes", "kept_bytes"}.
                                Of the mount's root: everything that nobody uses

All of them are read, though two do something: whoever may read the file may ask, also
on a read-only mount, where the kernel lets nobody set an attribute. It cannot interrupt
a request, so none works for long; who wants more asks again. Answers are shorter than
the 128 bytes for which Python asks first, or each request would come twice.

It fetches nothing itself (`cache.contents`), and does not hand files out (`fs.handoff`).

*Concurrency:* requests for one file share its fetches.
"""

from __future__ import annotations

import errno
import json
import os
from typing import Any, Final

import trio

from volfs.cache.contents import Held
from volfs.cache.fill import Cache, CachedFile
from volfs.errors import NotPermitted, StoreError, VersionChanged
from volfs.fs.file import File
from volfs.fs.files import Files
from volfs.fs.tree import ROOT, Node
from volfs.fs.volume import Volume

__all__ = ["Warming", "bring", "cache_of", "unload"]

#: What one request may take: a signal to its caller waits for so long.
_SLICE_S: Final = 1.0

#: A version younger than the granule of the store's clock is waited for; the clocks may differ by so much.
_SKEW_S: Final = 10.0

_CACHED: Final = b"cached"
_WARM: Final = b"warm"
_VERIFY: Final = b"verify"
_EVICT: Final = b"evict"


class Warming:
    """See the module."""

    def __init__(self, volume: Volume, files: Files) -> None:
        self._volume = volume
        self._files = files

    async def get(self, node: Node, name: bytes, uid: int) -> bytes | None:
        """The value of the attribute `name`, without the prefix; None if it is none of ours."""
        name, _, argument = name.partition(b".")
        if name not in (_CACHED, _WARM, _VERIFY, _EVICT) or (argument and name != _VERIFY):
            return None
        cache = cache_of(self._volume)
        if name == _EVICT and node.number == ROOT:
            return _json(**await self._evict_all(cache, uid))
        if not node.is_file:
            raise StoreError("only regular files are in the cache", errno=errno.ENODATA)
        if name == _WARM:
            return _held(await self._warm(cache, node))
        now = await self._volume.look(node)
        if node.dirty:
            return _of_staged(name, now.size)
        st = node.stat
        if name == _CACHED:
            return _held(await cache.contents.of(st.version, st.size))
        if name == _EVICT:
            cache.wholes.drop(st.version)
            evicted = await cache.contents.evict(st.version, st.size)
            return _json(freed_bytes=evicted.freed_bytes, kept_bytes=evicted.kept_bytes)
        until_s = trio.current_time() + _SLICE_S
        checked = await cache.contents.check(st.version, st.size, _offset(argument), until_s)
        return _json(damaged_bytes=checked.damaged_bytes, next_offset=checked.next_offset)

    async def _warm(self, cache: Cache, node: Node) -> Held:
        until_s = trio.current_time() + _SLICE_S
        async with self._files.held(node) as file:
            if file.staged is not None:
                return Held(file.size, file.size)
            cached = await bring(self._volume, file, until_s)
            return await cache.contents.of(cached.version, cached.size)

    async def _evict_all(self, cache: Cache, uid: int) -> dict[str, int]:
        if uid not in (0, os.geteuid()):
            raise NotPermitted("only root and the user of the daemon may empty the whole cache")
        before = cache.used_bytes
        await cache.evict_all()
        return {"freed_bytes": max(0, before - cache.used_bytes), "kept_bytes": cache.used_bytes}


def cache_of(volume: Volume) -> Cache:
    """The volume's cache; EOPNOTSUPP where reads go straight to the store."""
    if volume.cache is None:
        raise StoreError("the mount has no cache", errno=errno.EOPNOTSUPP)
    return volume.cache


async def bring(volume: Volume, file: File, until_s: float) -> CachedFile:
    """Bring all of a file that is held and not staged into the cache, until a time of trio's clock.

    StoreError and VersionChanged as `cache.contents`; EAGAIN for a version that may yet change unseen.
    """
    if not file.node.names:
        raise VersionChanged("the file was removed or replaced")
    await _outlast(volume, file.node)
    if file.staged is not None:
        raise VersionChanged("the file is being written")
    await unload(cache_of(volume), file)
    cached = file.content()
    await cache_of(volume).contents.bring(cached, file.reader, lambda: file.cached is cached, until_s)
    return cached


async def unload(cache: Cache, file: File) -> None:
    """What is in memory whole is brought to the disk, or given up: then it is fetched like any other file."""
    st = file.node.stat
    if cache.wholes.has(st.version):
        file.moved()  # a cache file that somebody uses is not replaced by a whole one
        await cache.wholes.kept(st.version)
        cache.wholes.drop(st.version)


async def _outlast(volume: Volume, node: Node) -> None:
    """Until a version is older than the store's clock can tell, it is not kept: wait for that."""
    until_s = trio.current_time() + volume.store.granularity_ns / 1e9 + _SKEW_S
    while volume.racy(node.stat):
        st = node.stat
        left_ns = max(st.mtime_ns, st.ctime_ns) + volume.store.granularity_ns - volume.now_ns()
        if trio.current_time() + left_ns / 1e9 > until_s:
            raise StoreError("its time lies in the future", errno=errno.EAGAIN)
        await trio.sleep(max(left_ns, 1_000_000) / 1e9)


def _offset(argument: bytes) -> int:
    try:
        return max(0, int(argument or b"0"))
    except ValueError:
        raise StoreError("not an offset", errno=errno.EINVAL) from None


def _of_staged(name: bytes, size: int) -> bytes:
    """All of it is here, and nothing of it in the cache."""
    if name == _CACHED:
        return _held(Held(size, size))
    if name == _EVICT:
        return _json(freed_bytes=0, kept_bytes=size)
    return _json(damaged_bytes=0, next_offset=-1)


def _held(held: Held) -> bytes:
    return _json(size=held.size, cached_bytes=held.cached_bytes, complete=held.complete)


def _json(**values: Any) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode()
