"""Three epochs in random order, by eight readers, over a set of files twice the size of the cache."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from tests.bench.data import first_difference
from tests.bench.scenario import Scenario
from tests.bench.settings import Sizes
from tests.bench.targets import Row, at_least
from tests.bench.trial import Trial, WrongBytes, drop_caches

__all__ = ["SCENARIO"]

_EPOCHS: Final = 3
#: The workers of a usual loader.
_READERS: Final = 8


def _cache_bytes(sizes: Sizes) -> int:
    return sizes.shuffled_files * sizes.shuffled_bytes // 2


def _own_counters(trial: Trial) -> tuple[int, int]:
    cache = trial.mounted.status().get("cache", {})
    return int(cache.get("hits", 0)), int(cache.get("misses", 0))


def _work(trial: Trial) -> None:
    names = sorted(path.name for path in trial.originals.iterdir())
    draw = random.Random(trial.round)

    def read(name: str) -> bool:
        content = (trial.files / name).read_bytes()
        return first_difference({0: content}, trial.originals / name) is None and (
            len(content) == trial.sizes.shuffled_bytes
        )

    def epoch() -> None:
        draw.shuffle(names)
        with ThreadPoolExecutor(_READERS) as readers:
            if not all(readers.map(read, names)):
                raise WrongBytes("a file differs from its original")

    epoch()
    hits, misses = _own_counters(trial)
    with trial.measure("shuffled") as measured:
        for _ in range(_EPOCHS - 1):
            drop_caches()  # the kernel's pages would answer what the cache is asked about
            epoch()
    # By what the store had to send: the same measure for every system, and what was fetched in vain counts.
    wanted = (_EPOCHS - 1) * len(names) * trial.sizes.shuffled_bytes
    measured.value = 1 - measured.read_bytes / wanted
    hits, misses = (now - then for now, then in zip(_own_counters(trial), (hits, misses), strict=True))
    if hits + misses:
        measured.details["hit ratio by its own count"] = hits / (hits + misses)


SCENARIO = Scenario(
    name="shuffled",
    rows=(
        Row(
            key="shuffled",
            title="3 shuffled epochs, set twice the cache",
            unit="hit ratio",
            target="0.40 or more in epochs 2 and 3",
            conditions=(at_least("shuffled", 0.40),),
        ),
    ),
    systems=("volfs", "juicefs"),
    work=_work,
    data="shuffled",
    cache_bytes=_cache_bytes,
)
