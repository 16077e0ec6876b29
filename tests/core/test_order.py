"""Which order a reader follows, what it opens next, and how far ahead that is asked for."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volfs.core.order import FIRST_WINDOW, MOST_WINDOW, Hint, Listed, Order

Entries = list[tuple[bytes, int]]

ORDERS: dict[Order, Callable[[Entries], Entries]] = {
    Order.LISTED: lambda entries: entries,
    Order.NUMBERED: lambda entries: sorted(entries, key=lambda entry: entry[1]),
    Order.NAMED: sorted,
}


def directory(count: int, seed: int = 1) -> Entries:
    """Entries whose three orders have nothing to do with each other."""
    chance = random.Random(seed)
    numbers = chance.sample(range(10 * count), count)
    names = chance.sample(range(10 * count), count)
    return [(b"%09d" % name, number) for name, number in zip(names, numbers, strict=True)]


def names(entries: Entries) -> list[bytes]:
    """Without the numbers."""
    return [name for name, _ in entries]


def read(listed: Listed, opens: Sequence[bytes], *, waits: bool = False) -> list[list[bytes]]:
    """What each open asks for."""
    return [listed.opened(name, waited=waits) for name in opens]


@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("start", [0, 100])
def test_three_opens_in_one_order_name_the_next(order: Order, start: int) -> None:
    """Whichever order it is, and wherever it begins."""
    entries = directory(1000)
    follow = names(ORDERS[order](entries))[start:]
    listed = Listed(entries)

    asked = read(listed, follow[:3])
    assert asked == [[], [], follow[3 : 3 + FIRST_WINDOW]]
    assert listed.follows == (order, FIRST_WINDOW)


def test_the_window_goes_along() -> None:
    """Half a window at a time, so that at least half of one is ahead; nothing is asked for twice."""
    entries = directory(1000)
    follow = names(entries)
    listed, ahead = Listed(entries), 0
    for at, name in enumerate(follow):
        asked = listed.opened(name, waited=at < 7)
        if at < 2:
            assert asked == []
            continue
        ahead = max(ahead, at + 1)
        assert asked == follow[ahead : ahead + len(asked)]
        ahead += len(asked)
        assert listed.follows is not None
        window = listed.follows[1]
        assert min(at + 1 + window // 2, len(follow)) <= ahead <= min(at + 1 + window, len(follow))
        assert not asked or len(asked) > window // 2 or ahead == len(follow)


def test_the_window_doubles_while_the_reader_waits() -> None:
    """Up to a bound, and no more once it finds what it opens."""
    entries = directory(1000)
    follow = names(entries)
    listed = Listed(entries)
    read(listed, follow[:3])
    windows = []
    for name in follow[3:12]:
        listed.opened(name, waited=True)
        assert listed.follows is not None
        windows.append(listed.follows[1])
    assert windows == [8, 16, 32, 64, *5 * [MOST_WINDOW]]
    listed.opened(follow[12], waited=False)
    assert listed.follows == (Order.LISTED, MOST_WINDOW)


@pytest.mark.parametrize("step", [2, 7, 16])
def test_every_kth_file(step: int) -> None:
    """A share of the files, as one of several nodes reads it: the others are left alone."""
    entries = directory(1000)
    follow = names(entries)[::step]
    asked = read(Listed(entries), follow[:20])
    got = list(chain.from_iterable(asked))
    assert got == follow[3 : 3 + len(got)]
    assert 17 + FIRST_WINDOW // 2 <= len(got) <= 17 + FIRST_WINDOW


@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("batch", [1, 8, 32])
def test_workers_that_take_turns(workers: int, batch: int) -> None:
    """Workers of a loader read batch by batch, side by side: nearly all that they open was asked for."""
    entries = directory(4000)
    follow = names(ORDERS[Order.NAMED](entries))
    chance = random.Random(workers * batch)
    shares = [
        [name for i in range(w * batch, len(follow), workers * batch) for name in follow[i : i + batch]]
        for w in range(workers)
    ]
    listed, asked, met, opened = Listed(entries), set[bytes](), 0, 0
    while any(shares):
        share = chance.choice([share for share in shares if share])
        name = share.pop(0)
        met += name in asked
        opened += 1
        asked.update(listed.opened(name, waited=name not in asked))
    assert met > 0.9 * opened


def test_a_jump_asks_for_nothing() -> None:
    """Until it turned out to be the beginning of another stretch."""
    entries = directory(1000)
    follow = names(entries)
    listed = Listed(entries)
    read(listed, follow[:10])
    assert read(listed, follow[500:503]) == [[], [], follow[503 : 503 + FIRST_WINDOW]]


def test_random_opens_ask_for_nearly_nothing() -> None:
    """A shuffled reader must not be given a second load of files that it did not want yet."""
    entries = directory(20_000)
    follow = names(entries)
    random.Random(5).shuffle(follow)
    asked = sum(map(len, read(Listed(entries), follow[:2000], waits=True)))
    assert asked < 200


@pytest.mark.parametrize("order", list(Order))
def test_the_order_of_the_directory_before_is_presumed(order: Order) -> None:
    """Trees of small directories: the first open asks for all the rest."""
    entries = directory(10, seed=3)
    follow = names(ORDERS[order](entries))
    listed = Listed(entries, presumed=(order, 64))
    assert listed.opened(follow[0], waited=False) == follow[1:]


def test_a_wrong_presumption_is_given_up() -> None:
    """The opens say otherwise."""
    entries = directory(1000)
    listed = Listed(entries, presumed=(Order.LISTED, 8))
    follow = names(ORDERS[Order.NAMED](entries))
    read(listed, follow[:10])
    assert listed.follows == (Order.NAMED, FIRST_WINDOW)


def test_an_unknown_name_says_nothing() -> None:
    """It came after the listing."""
    listed = Listed(directory(10))
    assert listed.opened(b"new", waited=True) == []
    assert Listed([]).opened(b"new", waited=True) == []


@given(
    st.integers(1, 200),
    st.lists(st.tuples(st.integers(0, 199), st.booleans()), max_size=100),
    st.sampled_from([None, (Order.LISTED, 4), (Order.NUMBERED, 64), (Order.NAMED, 128)]),
)
def test_what_is_asked_for_is_bounded(
    count: int, opens: list[tuple[int, bool]], presumed: tuple[Order, int] | None
) -> None:
    """Whatever is opened: entries only, each once an answer, not the opened one, no more than a window."""
    entries = directory(count)
    listed = Listed(entries, presumed)
    known = set(names(entries))
    for at, waited in opens:
        name = entries[at % count][0]
        asked = listed.opened(name, waited=waited)
        assert len(asked) == len(set(asked)) <= MOST_WINDOW
        assert set(asked) <= known
        assert name not in asked


# -- hints -----------------------------------------------------------------------


def test_a_hint_is_followed_from_the_start() -> None:
    """Before the first open, and over the seam between two calls."""
    paths = [b"%d" % i for i in range(100)]
    hint = Hint()
    asked = hint.add(paths[:10]) + hint.add(paths[10:])
    assert asked == paths[:10]
    for path in paths:
        more = hint.opened(path, waited=False)
        assert more is not None
        asked += more
    assert asked == paths


def test_a_hint_says_nothing_of_other_paths() -> None:
    """They may be in a listing."""
    hint = Hint()
    hint.add([b"a"])
    assert hint.opened(b"b", waited=True) is None


def test_a_path_may_come_again() -> None:
    """Epoch after epoch, in another order."""
    hint = Hint()
    assert hint.add([b"a", b"b"]) == [b"a", b"b"]
    assert hint.add([b"b", b"a"]) == [b"b", b"a"]
    assert [hint.opened(path, waited=False) for path in (b"a", b"b", b"b", b"a")] == [[], [], [], []]
    assert hint.opened(b"a", waited=False) is None


def test_what_nobody_opens_is_given_up() -> None:
    """A reader that skips paths must not make the order grow for ever."""
    hint = Hint()
    for i in range(20):
        hint.add([b"%d-%d" % (i, j) for j in range(100)])
        hint.opened(b"%d-99" % i, waited=False)
    assert len(hint) <= MOST_WINDOW


@given(st.lists(st.sampled_from([b"a", b"b", b"c", b"d", b"e"])), st.lists(st.booleans()), st.randoms())
def test_a_hint_asks_for_each_path_once(paths: list[bytes], waits: list[bool], chance: random.Random) -> None:
    """In its order, however readers take turns within the window."""
    hint = Hint()
    asked = hint.add(paths)
    opens = list(paths)
    chance.shuffle(opens)
    for path, waited in zip(opens, waits, strict=False):
        asked += hint.opened(path, waited=waited) or []
    remaining = iter(paths)
    assert all(path in remaining for path in asked)
