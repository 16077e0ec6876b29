"""One commit: making a staged file the new version in the store.

The order, for a store of files (after restic's "Read and Write Ordering"):
  1. the journal row exists before the first staged byte;
  2. bytes are durable before the name shows them, where they replace a file or fsync asked;
  3. the name changes atomically;
  4. the journal row goes last.
A crash between any two leaves the old file or the new one, and a row that says which bytes are owed.

It decides about conflicts (W7) and does not know inodes, handles or the kernel.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass

import structlog

from volfs.commit.checksums import BlockSums
from volfs.commit.staging import StagedFile, Staging
from volfs.core.versions import Version
from volfs.errors import NotFound
from volfs.store.base import Stat, Store

__all__ = ["Published", "conflict_name", "publish"]

log = structlog.get_logger(__name__)

_NAME_MAX = 255


@dataclass(frozen=True, slots=True)
class Published:
    """What a commit did. `renamed`: the staged file itself is the store's file now.

    `sums`: checksums by block of a file that was copied, if they were asked for.
    """

    stat: Stat
    conflict: bytes | None
    renamed: bool
    sums: list[int] | None = None


def conflict_name(path: bytes, host: str, when_s: float, attempt: int = 0) -> bytes:
    """`NAME.conflict-HOST-TIME` beside `path`, never longer than a name may be."""
    directory, slash, name = path.rpartition(b"/")
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(when_s))
    suffix = f".conflict-{host}-{stamp}".encode("utf-8", "replace").replace(b"/", b"_")[:200]
    if attempt:
        suffix += b".%d" % attempt
    return directory + slash + name[: _NAME_MAX - len(suffix)] + suffix


async def publish(
    store: Store,
    staging: Staging,
    staged: StagedFile,
    path: bytes,
    base: Version | None,
    *,
    durable: bool,
    checksums: bool = False,
) -> Published:
    """Commit `staged` to `path`. `base` None: it replaces whatever is there.

    If the file at `path` is no longer `base`, ours goes beside it (W7). If it is
    gone, ours takes its place: a delete does not outweigh bytes.
    """
    blocks = BlockSums() if checksums else None
    observe = blocks.update if blocks is not None else None
    try:
        current: Stat | None = await store.stat(path)
    except NotFound:
        current = None
    conflict = current is not None and base is not None and current.version != base
    if conflict:
        path = await _free_conflict_name(store, path)
        log.warning("conflict: the file changed in the store since it was opened here", kept_as=path)
        current = None
    if current is not None and current.is_file and current.nlink > 1:
        st = await store.overwrite(staged.fd, path, observe)
        return Published(st, None, renamed=False, sums=blocks.finish() if blocks is not None else None)
    name = staged.name if staging.in_store else None
    # An empty file (the name taken by an O_EXCL open, say) has no bytes that a power cut could cost.
    replaces = current is not None and current.size > 0
    st = await store.publish(staged.fd, name, path, durable=durable or replaces, observe=observe)
    sums = blocks.finish() if blocks is not None else None
    return Published(st, path if conflict else None, renamed=staging.in_store, sums=sums)


async def _free_conflict_name(store: Store, path: bytes) -> bytes:
    now = time.time()
    attempt = 0
    while True:
        name = conflict_name(path, socket.gethostname(), now, attempt)
        try:
            await store.stat(name)
        except NotFound:
            return name
        attempt += 1
