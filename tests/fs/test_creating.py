"""Which names are known to be free: after a lookup, by a listing, and when they are not."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from volfs.errors import StoreError
from volfs.fs import creating
from volfs.fs.creating import Creations, Free

FRESHNESS_S = 1.0
THREAD = 4711


class Store:
    """A directory that can be listed, and counts how often."""

    def __init__(self) -> None:
        self.local = False
        self.content: list[bytes] = [b"old"]
        self.listings = 0
        self.takes_s = 0.0
        self.error: StoreError | None = None

    async def scan(self, path: bytes) -> Any:
        self.listings += 1
        pieces = [list(self.content), []]
        await trio.sleep(self.takes_s)
        if self.error is not None:
            raise self.error

        async def names(most: int) -> list[bytes]:
            return pieces.pop(0)

        return SimpleNamespace(names=names, close=lambda: None)


class Directory:
    """As much of a volume as a creation meets. `about`: what its threads are known to be about to create."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.store = Store()
        self.node: Any = SimpleNamespace(number=7, epoch=0, children={})
        self.about: set[tuple[int, bytes]] = set()
        self.recovery: Any = None
        self.policy = SimpleNamespace(commit_at_close=False, freshness_s=FRESHNESS_S)
        self.volume: Any = SimpleNamespace(
            store=self.store,
            policy=self.policy,
            recovery=None,
            tasks=nursery,
            tree=SimpleNamespace(directory_path=lambda node: b"d"),
        )
        self.creations = Creations(self.volume, lambda thread, name: (thread, name) in self.about)

    def make(self, *names: bytes) -> None:
        """Create files, which wait for their commit."""
        for name in names:
            self.node.children[name] = SimpleNamespace(pending=True)
            self.creations.made(self.node, name)

    def forget(self) -> None:
        """All were committed, and the kernel has forgotten them."""
        self.store.content += self.node.children
        self.node.children.clear()

    async def make_some(self) -> None:
        """So many that the directory has been listed."""
        self.make(b"1", b"2", b"3")
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(self.store.takes_s)
        await wait_all_tasks_blocked()

    def free(self, name: bytes) -> Free | None:
        return self.creations.free(self.node, name, THREAD)


@asynccontextmanager
async def a_directory() -> AsyncIterator[Directory]:
    """In which nothing happens after the test."""
    async with trio.open_nursery() as nursery:
        yield Directory(nursery)
        nursery.cancel_scope.cancel()


async def test_a_creation_believes_its_own_lookup(autojump_clock: MockClock) -> None:
    """One question for one system call: of this thread, for this name, lately, and once."""
    async with a_directory() as d:
        d.creations.missed(d.node, b"f", THREAD, trio.current_time())
        assert d.creations.free(d.node, b"f", THREAD + 1) is None
        assert d.free(b"f") is Free.ASKED
        assert d.free(b"f") is None
        d.creations.missed(d.node, b"f", THREAD, trio.current_time())
        assert d.free(b"g") is None
        d.creations.missed(d.node, b"f", THREAD, trio.current_time())
        d.node.epoch += 1
        assert d.free(b"f") is None
        d.creations.missed(d.node, b"f", THREAD, trio.current_time())
        await trio.sleep(FRESHNESS_S)
        assert d.free(b"f") is None
        d.creations.missed(d.node, b"f", THREAD, trio.current_time())
        d.node.children[b"f"] = object()
        assert d.free(b"f") is None


async def test_a_listing_says_what_is_free(autojump_clock: MockClock) -> None:
    """W5a: after a few files; what is there, and what was made here, is not."""
    async with a_directory() as d:
        d.make(b"1", b"2")
        await wait_all_tasks_blocked()
        assert d.store.listings == 0
        await d.make_some()
        assert d.store.listings == 1
        assert d.free(b"new") is Free.LISTED
        assert d.free(b"old") is None
        d.make(b"new")
        d.forget()
        assert [name for name in (b"1", b"2", b"3", b"new") if d.free(name)] == []


async def test_only_who_creates_is_told_so(autojump_clock: MockClock) -> None:
    """R1: a lookup that may be of somebody who wants to read is for the store to answer."""
    async with a_directory() as d:
        await d.make_some()
        assert not d.creations.is_about_to_be(d.node, b"new", THREAD)
        d.about.add((THREAD, b"new"))
        assert d.creations.is_about_to_be(d.node, b"new", THREAD)
        d.about.add((THREAD, b"old"))
        assert not d.creations.is_about_to_be(d.node, b"old", THREAD)


async def test_a_listing_is_believed_for_the_freshness(autojump_clock: MockClock) -> None:
    """W5a: from when it began; it is made again while files are made, before it is too old."""
    async with a_directory() as d:
        d.store.takes_s = 0.3
        await d.make_some()
        await trio.sleep(0.69)
        assert d.free(b"new") is Free.LISTED
        await trio.sleep(0.02)
        assert d.free(b"new") is None
        d.make(b"4")
        await trio.sleep(0.35)
        assert d.store.listings == 2
        d.forget()
        assert d.free(b"new") is Free.LISTED
        assert d.free(b"4") is None


async def test_what_is_made_while_a_directory_is_listed(autojump_clock: MockClock) -> None:
    """It may be missing in the listing, and is not free all the same."""
    async with a_directory() as d:
        d.store.takes_s = 0.2
        d.make(b"1", b"2", b"3")
        await trio.sleep(0.1)
        d.make(b"meanwhile")
        await trio.sleep(0.2)
        d.forget()
        assert d.free(b"new") is Free.LISTED
        assert [name for name in (b"1", b"meanwhile") if d.free(name)] == []


@pytest.mark.parametrize("when", ["while", "after"])
async def test_our_own_changes_void_a_listing(autojump_clock: MockClock, when: str) -> None:
    """A rename or a link brings names of which nobody tells us here."""
    async with a_directory() as d:
        d.store.takes_s = 0.2
        d.make(b"1", b"2", b"3")
        await trio.sleep(0.1 if when == "while" else 0.3)
        d.node.epoch += 1
        await trio.sleep(0.2)
        assert d.free(b"new") is None
        d.make(b"4")
        await trio.sleep(0.3)
        assert d.free(b"new") is Free.LISTED


@pytest.mark.parametrize("why", ["error", "slow", "many"])
async def test_what_cannot_be_listed_is_asked_for(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    """And the store is not bothered with it again for a while."""
    async with a_directory() as d:
        if why == "error":
            d.store.error = StoreError("away", errno=5)
        elif why == "slow":
            d.store.takes_s = 0.6
        else:
            monkeypatch.setattr(creating, "_MOST_NAMES", 0)
        await d.make_some()
        assert d.free(b"new") is None
        d.make(b"4")
        await trio.sleep(1)
        assert d.store.listings == 1


@pytest.mark.parametrize("how", ["close mode", "local", "always asked", "recovery"])
async def test_others_are_always_asked_for(autojump_clock: MockClock, how: str) -> None:
    """Close mode publishes at once; a local store is quick to ask; recovery makes names of its own."""
    async with a_directory() as d:
        if how == "close mode":
            d.policy.commit_at_close = True
        elif how == "local":
            d.store.local = True
        elif how == "always asked":
            d.policy.freshness_s = 0.0
        else:
            d.volume.recovery = SimpleNamespace(tried=trio.Event(), waiting=0)
        await d.make_some()
        assert d.free(b"new") is None
        assert d.store.listings == 0


async def test_few_directories_are_remembered(autojump_clock: MockClock) -> None:
    """The one that was used longest ago is forgotten."""
    async with a_directory() as d:
        await d.make_some()
        for number in range(100, 100 + creating._DIRECTORIES - 1):
            other: Any = SimpleNamespace(number=number, epoch=0, children={})
            d.creations.made(other, b"x")
        assert d.free(b"new") is Free.LISTED
        d.creations.made(SimpleNamespace(number=99, epoch=0, children={}), b"x")  # type: ignore[arg-type]
        assert d.free(b"new") is None
