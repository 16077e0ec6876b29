"""Which files stay: hit ratios on traces beside LRU, 2-random and the optimum; and single decisions.

`pytest -s` prints the table.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core import traces
from tests.core.policies import Lru, Optimum, Policy, TwoRandom, Use, Volfs
from tests.core.traces import Phase, size_of
from volfs.core.admission import Admission, Queue

Ratios = list[float]

A, B = traces.files(0, 600), traces.files(10_000, 600)
SMALL, HOT = traces.files(20_000, 150), traces.files(30_000, 60)
POPULAR = random.Random(6).sample(traces.files(40_000, 3000), 3000)
HALF = size_of(A) // 2


def play(policy: Policy, phases: list[Phase]) -> Ratios:
    """The part of the bytes of each phase that was there."""
    ratios = []
    for phase in phases:
        hits = sum(size for key, size in phase if policy.use(key, size))
        ratios.append(hits / size_of(phase))
    return ratios


def compare(name: str, limit: int, phases: list[Phase]) -> tuple[Ratios, Ratios, Ratios, Ratios]:
    """Hit ratios of volfs, LRU, 2-random and the optimum, phase by phase; printed, too."""
    uses = [use for phase in phases for use in phase]
    policies: dict[str, Callable[[], Policy]] = {
        "volfs": lambda: Volfs(limit),
        "LRU": lambda: Lru(limit),
        "2-random": lambda: TwoRandom(limit),
        "optimum": lambda: Optimum(limit, uses),
    }
    found = {title: play(make(), phases) for title, make in policies.items()}
    print(f"\n{name}")
    for title, ratios in found.items():
        print(f"  {title:9}", *(f"{ratio:.2f}" for ratio in ratios))
    ours, lru, drawn, best = found.values()
    return ours, lru, drawn, best


@pytest.mark.parametrize("kept", [0.9, 0.5, 0.2, 0.05])
@pytest.mark.parametrize("order", [traces.in_order, traces.shuffled])
def test_passes_over_a_data_set(order: Callable[[list[Use], int], list[Phase]], kept: float) -> None:
    """B1b: from the second pass on what fits is hit, less the guests' share; more cannot be had."""
    ours, lru, drawn, best = compare(f"{order.__name__}, {kept} fit", int(size_of(A) * kept), order(A, 5))

    assert min(ours[1:]) >= kept * 0.91
    assert max(best[1:]) <= kept + 0.01
    assert min(ours[1:]) >= max(drawn[1:])
    assert min(ours[1:]) >= max(lru[1:]) + kept * 0.1


def test_another_data_set_of_the_same_size() -> None:
    """B1b: the new one has taken the place of the old one by its third pass."""
    phases = traces.shuffled(A, 3) + traces.shuffled(B, 4)
    ours, lru, _, _ = compare("A A A B B B B, shuffled", HALF, phases)
    ours_in_order, _, _, _ = compare("A A A B B B B, in order", HALF, [A] * 3 + [B] * 4)

    assert ours[5] >= 0.40 > 0.20 > lru[5]
    assert ours[6] >= 0.47
    assert ours_in_order[4] >= 0.25
    assert min(ours_in_order[5:]) >= 0.47


def test_a_small_data_set_after_a_large_one() -> None:
    """B1b: one that fits is there whole by its fifth pass, long before the old one is known to be dead."""
    phases = traces.shuffled(A, 3) + traces.shuffled(SMALL, 6)
    ours, _, _, _ = compare("A A A, then six passes over a set that fits", HALF, phases)

    assert ours[6] >= 0.85
    assert min(ours[7:]) >= 0.99


def test_a_large_data_set_after_a_small_one() -> None:
    """Waits of a small set say nothing about a larger one: the second pass over it teaches them."""
    phases = traces.shuffled(SMALL, 8) + traces.shuffled(A, 4)
    ours, _, _, _ = compare("a set that fits, then A A A A", HALF, phases)

    assert min(ours[1:8]) == 1.0
    assert ours[9] >= 0.35
    assert min(ours[10:]) >= 0.47


@pytest.mark.parametrize("exponent", [0.6, 0.8, 1.0, 1.2])
def test_skewed_reuse(exponent: float) -> None:
    """What is used more often is there more often: no worse than LRU at any time, and better in the end."""
    phases = traces.skewed(POPULAR, 5000, exponent)
    ours, lru, drawn, _ = compare(f"zipf {exponent}", size_of(POPULAR) // 10, phases)

    assert all(one >= other - 0.005 for one, other in zip(ours, lru, strict=True))
    assert ours[-1] >= max(lru[-1], drawn[-1]) + 0.01


def test_hot_set_beside_files_read_once() -> None:
    """A scan that never comes back does not push out what does."""
    phases = traces.beside(traces.once(1000, 4), HOT)
    ours, lru, _, best = compare("hot set, and files read once", 2 * size_of(HOT), phases)

    assert min(one - other for one, other in zip(ours, lru, strict=True)) >= 0
    assert ours[-1] >= best[-1] - 0.02


def test_hot_set_beside_passes() -> None:
    """Both are served: all of the hot set, and of the other what fits beside it."""
    phases = traces.beside(traces.shuffled(A, 5), HOT)
    ours, lru, _, best = compare("hot set, and A shuffled", HALF + size_of(HOT), phases)

    assert min(ours[1:]) >= best[-1] - 0.02 > lru[-1] + 0.05


def test_hot_set_that_comes_late() -> None:
    """Files that are used more often than the residents move in, though the residents live."""
    phases = traces.shuffled(A, 3) + traces.beside(traces.shuffled(A, 4), HOT)
    ours, lru, _, best = compare("A shuffled, a hot set from the fourth pass on", HALF, phases)

    assert ours[4] >= best[4] - 0.04
    assert ours[-1] >= best[-1] - 0.02 > lru[-1]


def test_checkpoints_between_passes() -> None:
    """What is written and read once costs the data set little more than its own reads."""
    phases = traces.with_checkpoints(traces.shuffled(A, 5), 40)
    ours, lru, _, best = compare("A shuffled, checkpoints", HALF, phases)

    assert min(ours[1:]) >= best[-1] - 0.08 > lru[-1] + 0.1


def test_growing_data_set() -> None:
    """A tenth more each pass: what fits of it goes on being hit."""
    growing = traces.files(50_000, 1200)
    phases = [traces.shuffled(growing[: 400 + 80 * i], 1, seed=i)[0] for i in range(10)]
    ours, lru, _, best = compare("growing", size_of(growing[:400]), phases)

    assert all(one >= other * 0.88 for one, other in zip(ours[2:], best[2:], strict=True))
    assert all(one >= 1.4 * other for one, other in zip(ours[2:], lru[2:], strict=True))


def test_one_file_larger_than_the_cache() -> None:
    """Parts of it stay; LRU has thrown each away when the reader comes to it again."""
    parts = [(i, 1 << 20) for i in range(400)]
    ours, lru, _, best = compare("one file in 400 parts", 200 << 20, traces.in_order(parts, 4))

    assert min(ours[1:]) >= best[-1] - 0.03 >= 0.46
    assert max(lru) == 0.0


def test_few_large_files() -> None:
    """Thirty shards of one size and of many: a pass is thirty samples, and still no pass disturbs."""
    rng = random.Random(1)
    even = [(i, 1 << 30) for i in range(30)]
    odd = [(i, rng.randrange(1 << 28, 1 << 31)) for i in range(30)]
    ours, lru, _, _ = compare("30 shards", 15 << 30, traces.shuffled(even, 6))
    ours_odd, lru_odd, _, _ = compare("30 shards of many sizes", size_of(odd) // 2, traces.shuffled(odd, 6))

    assert min(ours[1:]) >= 0.46 > max(lru[1:])
    assert min(ours_odd[2:]) >= 0.40 > max(lru_odd[2:])


def test_files_opened_twice_in_a_row() -> None:
    """A look at the first bytes is the same use as the read that follows."""
    ours, _, _, best = compare("each file opened twice", HALF, traces.twice(traces.shuffled(A, 4)))

    assert min(ours[1:]) >= best[-1] - 0.03


@pytest.mark.parametrize(("window", "margin"), [(100, 0.01), (150, 0.01), (300, 0.1)])
def test_files_that_come_back_soon(window: int, margin: float) -> None:
    """Where files come back before the cache has turned over it is LRU.

    Where most do and some come back later it is worse than LRU: it waits for all of them. That is its price.
    """
    limit = size_of(A[:300])
    ours, lru, _, _ = compare(f"files of the last {window}", limit, traces.sliding(3000, window))

    assert ours[0] >= lru[0] - margin


# -- decisions -----------------------------------------------------------------------


def test_nothing_is_waited_for_before_it_was_seen_to_come_back() -> None:
    """Without a second use of anything the one used longest ago gives, whichever queue it is in."""
    admission = Admission(1000)
    for key in range(100):
        admission.use(key, 10)
        admission.read(10)

    assert admission.patience_bytes == 0
    assert admission.gives(500, 400, 900) is Queue.RESIDENTS
    assert admission.gives(400, 500, 900) is Queue.GUESTS


def test_who_gives() -> None:
    """Empty queues give nothing; too many residents give first; then dead ones; then guests."""
    admission = Admission(1 << 20)
    for _ in range(300):
        admission.use(1, 1)
        admission.read(1 << 16)

    assert 1 << 16 <= admission.patience_bytes <= 1 << 17
    young, old = admission.clock - (1 << 15), admission.clock - (1 << 18)
    assert admission.gives(None, young, 0) is Queue.RESIDENTS
    assert admission.gives(young, None, 0) is Queue.GUESTS
    assert admission.gives(young, young - 1, 1 << 20) is Queue.RESIDENTS
    assert admission.gives(young, old, 1 << 19) is Queue.RESIDENTS
    assert admission.gives(old, young, 1 << 19) is Queue.GUESTS
    assert admission.gives(young, young - 1, 1 << 19) is Queue.GUESTS


def test_place_for_what_is_ahead() -> None:
    """What guests needed more than their share is theirs until the cache was read twice."""
    admission = Admission(1 << 20)

    assert admission.guest_bytes == 1 << 15
    assert admission.has_place(31 << 15, 0)
    admission.overflow(1 << 18)
    admission.overflow(1 << 17)
    assert admission.has_place(24 << 15, 0)
    assert not admission.has_place((24 << 15) + 1, 0)
    admission.read(2 << 20)
    assert admission.has_place(31 << 15, 0)
    admission.overflow(1 << 16)
    assert admission.has_place(30 << 15, 0)


def test_place_for_the_largest_file() -> None:
    """A file that comes whole has place among guests, up to an eighth of the cache."""
    admission = Admission(1 << 20, whole_bytes=1 << 16)
    admission.use(1, 1 << 30)

    assert admission.has_place(30 << 15, 0)
    assert not admission.has_place((30 << 15) + 1, 0)


def test_three_uses_within_half_the_idle_time() -> None:
    """That is what takes a resident's place; two uses, however close, do not."""
    admission = Admission(1 << 20)
    admission.read(1 << 20)
    spans = []
    for _ in range(3):
        spans.append(admission.use(7, 1000))
        admission.read(1 << 16)

    assert spans == [None, None, 1 << 17]
    assert admission.displaces(1 << 17, admission.clock - (1 << 18))
    assert not admission.displaces(1 << 17, admission.clock - (1 << 18) + 1)
    assert not admission.displaces(None, 0)


@given(st.integers(2, 60), st.integers(2, 8), st.randoms(use_true_random=False))
def test_a_pass_moves_nothing(count: int, passes: int, rng: random.Random) -> None:
    """Whatever the orders of the passes, no file takes the place of one that is still read."""
    size, data = 1 << 20, list(range(count))
    admission = Admission(count * size // 2)
    used: dict[int, int] = {}
    for _ in range(passes):
        rng.shuffle(data)
        for key in data:
            span = admission.use(key, size)
            if len(used) == count:
                assert not admission.displaces(span, min(used.values()))
            used[key] = admission.clock
            admission.read(size)


def test_memory_is_bounded() -> None:
    """A hundred thousand files: the sample is what it is, and still tells how long they wait."""
    admission = Admission(100_000 * 1000 // 2)
    for _ in range(2):
        for key in range(100_000):
            admission.use(key, 1000)
            admission.read(1000)

    assert len(admission._sample) <= 8192 + 1
    assert 100_000_000 <= admission.patience_bytes <= 120_000_000


def test_files_that_never_come_back_leave_the_sample() -> None:
    """A stream of new files does not take the place of those whose waits are to be measured."""
    admission = Admission(1_000_000)
    for key in range(50_000):
        admission.use(key, 1000)
        admission.read(1000)
    sampled = admission._sampled
    for _ in range(30):
        for key in range(10**6, 10**6 + 500):
            admission.use(key, 1000)
            admission.read(1000)

    assert sampled > 1 << 60
    assert 500_000 <= admission.patience_bytes <= 700_000


@given(st.lists(st.integers(0, 40), max_size=200), st.integers(0, 50_000))
def test_limits_hold(keys: list[int], limit: int) -> None:
    """Whatever is used: no more is kept than the limit, no file in both queues, none is counted twice."""
    policy = Volfs(limit)
    for key in keys:
        policy.use(key, key * 7919 % 5000 + 1)
        assert policy.guest_bytes + policy.resident_bytes <= limit
        assert not policy.guests.keys() & policy.residents.keys()
        assert policy.guest_bytes == sum(kept.size for kept in policy.guests.values())
