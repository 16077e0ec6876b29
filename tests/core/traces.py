"""Uses of files as they come in work on data sets. A trace is a list of phases, a phase a list of uses."""

from __future__ import annotations

import random

from tests.core.policies import Use

Phase = list[Use]


def files(first: int, count: int, seed: int = 5) -> list[Use]:
    """A data set of files of 50 to 250 KB."""
    rng = random.Random(seed + first)
    return [(first + i, rng.randrange(50_000, 250_000)) for i in range(count)]


def size_of(phase: Phase) -> int:
    """Bytes of all its uses."""
    return sum(size for _, size in phase)


def in_order(data: list[Use], passes: int) -> list[Phase]:
    """Read from the first to the last, again and again."""
    return [data] * passes


def shuffled(data: list[Use], passes: int, seed: int = 1) -> list[Phase]:
    """Each pass in an order of its own."""
    rng = random.Random(seed)
    return [rng.sample(data, len(data)) for _ in range(passes)]


def skewed(data: list[Use], count: int, exponent: float, phases: int = 3) -> list[Phase]:
    """The file of rank n is used in proportion to n ** -exponent."""
    rng = random.Random(2)
    weights = [1 / (i + 1) ** exponent for i in range(len(data))]
    return [rng.choices(data, weights, k=count) for _ in range(phases)]


def beside(phases: list[Phase], hot: list[Use]) -> list[Phase]:
    """Two uses of a hot set between any two of the others."""
    rng = random.Random(3)
    return [[use for cold in phase for use in (cold, *rng.choices(hot, k=2))] for phase in phases]


def once(count: int, phases: int) -> list[Phase]:
    """Files that are used a single time."""
    return [files(10**9 + i * count, count) for i in range(phases)]


def with_checkpoints(phases: list[Phase], count: int) -> list[Phase]:
    """After each pass a checkpoint is written, read back once, and never looked at again."""
    written = [[(10**9 + i * count + n, 150_000) for n in range(count)] for i in range(len(phases))]
    return [[*phase, *parts, *parts] for phase, parts in zip(phases, written, strict=True)]


def twice(phases: list[Phase]) -> list[Phase]:
    """Each file is opened twice in a row: a look at its first bytes, then all of it."""
    return [[use for use in phase for _ in range(2)] for phase in phases]


def sliding(count: int, window: int) -> list[Phase]:
    """A new file, and one more use of one that came up to `window` before: no data set, only time."""
    rng = random.Random(4)
    data = files(0, count)
    return [[use for i in range(window, count) for use in (data[i], data[i - rng.randrange(1, window)])]]
