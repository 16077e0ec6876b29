"""What the index is told of a cache file in one transaction. Who tells it, and when, is `shelf`'s.

*Invariants:* what was taken from a file is in the batch, and the file says so no more.
"""

from __future__ import annotations

from volfs.cache.cachefile import CacheFile
from volfs.cache.index import Batch, Row

__all__ = ["take_news"]


def take_news(file: CacheFile, row: Row, batch: Batch) -> None:
    """Move what the index does not know of the file yet into the batch; `row` is what it has of all files."""
    batch.files.append(row)
    if file.rewrite:
        batch.emptied.append(file.id)
        batch.blocks.extend((file.id, n, sum_) for n, sum_ in (file.present or {}).items())
    else:
        batch.lost.extend((file.id, n) for n in file.lost)
        batch.blocks.extend((file.id, n, sum_) for n, sum_ in file.unsaved.items())
    file.rewrite = False
    file.unsaved.clear()
    file.lost.clear()
