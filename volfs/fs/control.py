"""The control plane: extended attributes `user.volfs.*`, reachable wherever the mount is.

It answers with JSON and starts what `Volume` and `Files` do. Names it does not
know do not exist. Values stay below the kernel's 64 KiB.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Protocol

import trio

from volfs.errors import StoreError, VolfsError
from volfs.fs.files import Files
from volfs.fs.repairs import Repairs
from volfs.fs.tree import Node
from volfs.fs.volume import Volume

__all__ = ["PREFIX", "Answers", "Control"]

PREFIX = b"user.volfs."


class Answers(Protocol):
    """A part of the control plane that has attributes of its own."""

    async def get(self, node: Node, name: bytes, uid: int) -> bytes | None: ...


class Control:
    """See the module. `others`: parts that answer more names. `about` adds what only the daemon knows;
    `refresh` looks at everything known.
    """

    def __init__(
        self,
        volume: Volume,
        files: Files,
        repairs: Repairs,
        others: Iterable[Answers],
        about: Callable[[], dict[str, Any]],
        refresh: Callable[[], Awaitable[None]],
    ) -> None:
        self._volume = volume
        self._files = files
        self._repairs = repairs
        self._others = tuple(others)
        self._about = about
        self._refresh = refresh

    async def get(self, node: Node, name: bytes, uid: int) -> bytes:
        if name == PREFIX + b"status":
            return json.dumps(self.status()).encode()
        if name == PREFIX + b"refresh":
            # An attribute that is read, because the kernel locks the directory under one that is set,
            # and would wait for this very request before it dropped a name in it.
            await self._refresh()
            await self._volume.notifier.told()
            return b"done"
        for part in (self._repairs, *self._others):
            value = await part.get(node, name.removeprefix(PREFIX), uid)
            if value is not None:
                return value
        raise StoreError("no such control", errno=errno.ENODATA)

    async def set(self, node: Node, name: bytes, value: bytes, uid: int) -> None:
        if name == PREFIX + b"commit":
            await self.commit(node)
        elif not await self._repairs.set(node, name.removeprefix(PREFIX), value, uid):
            raise StoreError("no such control", errno=errno.EOPNOTSUPP)

    async def commit(self, node: Node) -> None:
        """Commit the file, or everything below the directory. Raises the first error after all were tried."""
        failed: list[VolfsError] = []
        limit = trio.CapacityLimiter(16)

        async def one(dirty: Node) -> None:
            async with limit:
                try:
                    if dirty.file is not None:
                        await dirty.file.commit(durable=False)
                except VolfsError as error:
                    failed.append(error)
                    self._volume.queue.failed_once(dirty.number, error)

        async with trio.open_nursery() as nursery:
            for each in self._below(node):
                if each.file is not None and each.file.owed:
                    nursery.start_soon(one, each)
        if failed:
            raise failed[0]

    def _below(self, node: Node) -> list[Node]:
        """The node and what is below it; below the root is also what others took the names of."""
        tree = self._volume.tree
        return list(tree.by_number.values() if node is tree.root else tree.below(node))

    def _recovery(self) -> dict[str, int]:
        """What an earlier daemon left: committed since, waiting for that, kept for the user, lost."""
        left = self._volume.recovery
        if left is None:
            return {}
        return {
            "recovered": left.recovered,
            "replaying": left.waiting,
            "kept": left.kept,
            "lost": left.lost,
        }

    def status(self) -> dict[str, Any]:
        volume = self._volume
        queue, cache, store = volume.queue, volume.cache, volume.store
        hits = cache.hits if cache is not None else 0
        misses = cache.misses if cache is not None else 0
        return {
            **self._about(),
            "cache": {
                "used_bytes": cache.used_bytes if cache is not None else 0,
                "limit_bytes": cache.limit_bytes if cache is not None else 0,
                "room_bytes": cache.room_bytes if cache is not None else 0,
                "evicted_bytes": cache.evicted_bytes if cache is not None else 0,
                "hits": hits,
                "misses": misses,
                "hit_ratio": hits / (hits + misses) if hits + misses else None,
                "corrupt_blocks": cache.corrupt_blocks if cache is not None else 0,
            },
            "commit": {
                "waiting": len(queue),
                "open": sum(1 for node in self._files.open_nodes() if node.dirty),
                "oldest_age_s": queue.oldest_age_s,
                "committed": volume.counters["committed"],
                "failed": queue.failed,
                "last_error": queue.last_error or (volume.recovery.last_error if volume.recovery else None),
                **self._recovery(),
            },
            "leases": {
                "count": len(cache.leases) if cache is not None else 0,
                "bytes": cache.leases.bytes if cache is not None else 0,
            },
            "conflicts": volume.conflicts + (volume.recovery.conflicts if volume.recovery else 0),
            "errors": volume.errors,
            "stale_answers": volume.counters["stale"],
            "nodes": len(volume.tree),
            "handles": len(self._files),
            "requests": volume.operations.total(),
            "operations": dict(volume.operations),
            "store_requests": dict(store.requests),
            "store_read_bytes": store.read_bytes,
            "store_written_bytes": store.written_bytes,
        }
