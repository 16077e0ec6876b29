"""Writing fetched blocks into their cache file, behind the readers that have had them.

It does not fetch, and nobody waits for it but the memory that the bytes take.

*Invariants:* a block becomes present after its bytes were written. Not keeping
is always right: it costs a fetch, never a read.
"""

from __future__ import annotations

from typing import Final

from volfs import crash
from volfs.cache.blocks import punch, write_blocks
from volfs.cache.cachefile import CacheFile
from volfs.cache.evict import DISK_FULL
from volfs.cache.flight import Traffic
from volfs.core.spans import BLOCK_BYTES, block_count, cost_bytes
from volfs.telemetry import get_logger

__all__ = ["keep"]

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
