"""What a scenario is: rows of the table, the systems that do its work, and the work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.bench.settings import Sizes
from tests.bench.targets import Row
from tests.bench.trial import Trial

__all__ = ["Scenario"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """`work` fills a trial's measurements. `data` is what it reads; None: an empty directory to write to.

    `missing` says how to install what it needs, if that is not there; it is left out then.
    """

    name: str
    rows: tuple[Row, ...]
    systems: tuple[str, ...]
    work: Callable[[Trial], None]
    data: str | None = None
    needs: tuple[str, ...] = ()  #: rows that its targets refer to
    cache_bytes: Callable[[Sizes], int] | None = None
    background: bool = False
    slow: bool = True  #: False: the systems use the directory itself as their store, and nothing counts
    missing: Callable[[], str | None] = lambda: None
    deadline_s: float = 300.0
