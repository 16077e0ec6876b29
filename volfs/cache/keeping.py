"""Writing fetched blocks and files into cache files, behind the readers that have had them.

Also taking a staged file over as a cache file.

It does not fetch, and nobody waits for it but the memory that the bytes take.

*Invariants:* a block becomes present after its bytes were written. A file that is
written whole gets its bytes under a number that nobody knows, so that no reader
opens it half done. Not keeping is always right: it costs a fetch, never a read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from volfs import crash
from volfs.cache.blocks import punch, sums_of, write_blocks
from volfs.cache.cachefile import CacheFile, remove
from volfs.cache.evict import DISK_FULL
from volfs.cache.flight import Traffic
from volfs.cache.shelf import Shelf
from volfs.core.spans import BLOCK_BYTES, block_count, cost_bytes
from volfs.core.versions import Version
from volfs.telemetry import get_logger

__all__ = ["keep", "keep_files", "place"]

log = get_logger(__name__)

#: A new extent of a sparse file may take one more node of the extent tree.
_NODE_BYTES: Final = 4096


async def keep(
    traffic: Traffic, file: CacheFile, blocks: range, data: memoryview, *, direct: bool = False
) -> None:
    """Write the blocks, if there is room and the disk keeps up with the store.

    `direct`: past the page cache. `data` is not used after this has returned.
    """
    if file.sealed:
        # Others have it open: what it lost is fetched into another file, at the next open.
        traffic.shelf.doom(file)
        return
    if traffic.in_flight > traffic.memory_bytes:
        return
    last = block_count(file.size) - 1 in blocks
    cost = cost_bytes(len(blocks), last, file.size) + _NODE_BYTES
    if not await traffic.room.reserve(cost):
        return
    full = False
    try:
        await _write(traffic, file, blocks, data, direct)
        traffic.failing = False
    except OSError as error:
        if not traffic.failing:
            log.warning("the cache disk fails; reading past it", error=str(error))
        traffic.failing = True
        full = error.errno in DISK_FULL
    finally:
        traffic.room.reserved -= cost
    if full:
        await traffic.room.renew(cost)


async def _write(traffic: Traffic, file: CacheFile, blocks: range, data: memoryview, direct: bool) -> None:
    shelf = traffic.shelf
    if not file.leaving.isdisjoint(blocks):
        return  # punched at this moment
    if not shelf.open(file, create=True) and not shelf.open(file, create=True):
        return  # the first one found out that the old file is gone
    file.changing += 1
    stamp_ns = 0
    try:
        past = file.direct_out() if direct else -1
        sums, stamp_ns = await shelf.thread(write_blocks, file.fd, blocks.start * BLOCK_BYTES, data, past)
    except OSError:
        try:
            stamp_ns = await shelf.thread(punch, file.fd, [blocks])
        except OSError as error:
            log.debug("a half-written block keeps its space", id=file.id, error=str(error))
        raise
    finally:
        file.changed(stamp_ns)
    crash.point("keep.written")
    file.add(blocks, sums)
    shelf.queues.admit(file, blocks)
    shelf.recount(file)
    shelf.mark(file)


# -- whole files -------------------------------------------------------------------


async def keep_files(traffic: Traffic, files: Sequence[tuple[Version, bytes]]) -> None:
    """Make each file the complete cache file of its version, as far as there is room."""
    shelf = traffic.shelf
    wanted = [(version, data) for version, data in files if data]
    costs = [cost_bytes(block_count(len(data)), True, len(data)) for _, data in wanted]
    if not wanted or not await traffic.room.reserve(sum(costs)):
        return
    work = [(*shelf.allot(), data) for _, data in wanted]
    try:
        sums, error = await shelf.thread(_write_files, [(path, data) for _, path, data in work])
        crash.point("keep.files")
        for (version, data), (number, path, _), sums_ in zip(wanted, work, sums, strict=False):
            if not shelf.put(number, version, sums_, len(data), 0, new=True):
                remove(path)
    finally:
        for number, _, _ in work:
            del shelf.arriving[number]
        traffic.room.reserved -= sum(costs)
    if error is not None and not traffic.failing:
        log.warning("the cache disk fails; reading past it", error=str(error))
    traffic.failing = error is not None
    if error is not None and error.errno in DISK_FULL:
        await traffic.room.renew(sum(costs[len(sums) :]))


def _write_files(work: list[tuple[str, bytes]]) -> tuple[list[list[int]], OSError | None]:
    """In a thread: the checksums of those that were written, in order, up to the first that could not be."""
    sums: list[list[int]] = []
    for path, data in work:
        try:
            # A daemon that was killed may have left something under this number.
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(fd, view) :]
                sums.append(sums_of(memoryview(data)))
            except OSError:
                remove(path)
                raise
            finally:
                os.close(fd)
        except OSError as error:
            return sums, error
    return sums, None


def place(shelf: Shelf, version: Version, size: int, staged: Path, sums: Iterable[int], cost: int) -> bool:
    """The complete file `staged` becomes the cache file of a version; whether it did."""
    number, path = shelf.allot()
    placed = False
    try:
        os.rename(staged, path)
        crash.point("adopt.renamed")
        os.chmod(path, 0o600)  # the user's mode could keep us out
        # Believed after a look at the bytes: the sums were made while it was copied to the store.
        placed = shelf.put(number, version, sums, size, cost, new=False)
    except OSError as error:
        log.warning("a committed file cannot be kept in the cache", error=str(error))
    finally:
        del shelf.arriving[number]
    if not placed:  # also if somebody reads bytes that were fetched again already
        remove(path)
    return placed
