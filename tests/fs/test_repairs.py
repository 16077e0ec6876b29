"""The control plane of recover and fsck: what is set is noted, who reads waits, and nobody for ever."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from tests.commit.conftest import Bench, bench
from volfs.commit.journal import State
from volfs.commit.kept import Kept
from volfs.errors import StoreError
from volfs.fs.locks import SharedLock
from volfs.fs.repairs import Repairs
from volfs.fs.tree import ROOT

__all__ = ["bench"]

ROOT_NODE: Any = SimpleNamespace(number=ROOT, children={})
UID = os.geteuid()


def repairs_of(bench: Bench, told: list[bytes]) -> Repairs:
    """The control plane over a volume that knows no name but its root."""

    async def happened(events: Iterable[tuple[int, bytes, bool]]) -> None:
        told.extend(name for _, name, _ in events)

    volume: Any = SimpleNamespace(
        store=bench.store,
        staging=bench.staging,
        journal=bench.journal,
        structure=SharedLock(),
        recovery=SimpleNamespace(kept=0),
        cache=None,
        tree=SimpleNamespace(root=ROOT_NODE, by_number={}),
    )
    cache_dir = bench.root.parent
    (cache_dir / "journal.db").symlink_to(cache_dir / "journal")
    return Repairs(volume, happened, lambda: {"cache_dir": str(cache_dir)})


def keep(bench: Bench, path: bytes) -> str:
    """A kept file; its id."""
    staged = bench.stage(b"x")
    bench.journal.add(staged.name, path, None, 0, 1, State.KEPT)
    staged.close()
    return staged.name


@asynccontextmanager
async def serving(repairs: Repairs) -> AsyncIterator[None]:
    """Its task runs."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(repairs.run)
        yield
        nursery.cancel_scope.cancel()


async def ask(repairs: Repairs, name: bytes, **wish: object) -> None:
    """Set a control, which waits for nothing."""
    with trio.testing.assert_no_checkpoints():
        assert await repairs.set(ROOT_NODE, name, json.dumps(wish).encode(), UID)


async def read(repairs: Repairs, name: bytes) -> Any:
    """Get a control."""
    answer = await repairs.get(ROOT_NODE, name, UID)
    assert answer is not None
    return json.loads(answer)


async def test_a_wish_is_noted_and_a_reader_waits(bench: Bench) -> None:
    """The kernel locks the root while an attribute is set: nothing may be done in that time."""
    told: list[bytes] = []
    repairs = repairs_of(bench, told)
    id_ = keep(bench, b"d/f")
    await ask(repairs, b"recover.publish", id=id_[:8])
    assert not (bench.root / "d").exists()
    async with serving(repairs):
        (result,) = await read(repairs, b"recover.last")

    assert result == {"id": id_, "errno": 0, "error": None, "path": "d/f", "conflict": False}
    assert (bench.root / "d/f").read_bytes() == b"x"
    assert told == [b"d"]  # no further: the kernel knows nothing below


async def test_reading_twice_does_nothing_twice(bench: Bench) -> None:
    """getxattr(2) is called once for the size and once for the value; only what is set is done again."""
    repairs = repairs_of(bench, [])
    name = keep(bench, b"f")
    bench.journal.remove(name)
    async with serving(repairs):
        await ask(repairs, b"fsck", repair=True)
        first = await read(repairs, b"fsck")
        second = await read(repairs, b"fsck")
        await ask(repairs, b"fsck", repair=True)
        third = await read(repairs, b"fsck")

    assert first["journal"]["quarantined"] == 1
    assert second == first
    assert third["found"] == 0


async def test_a_report_without_a_wish(bench: Bench) -> None:
    """Who only reads gets a check that repairs, once, however many read at the same time."""
    repairs = repairs_of(bench, [])
    bench.journal.remove(keep(bench, b"f"))
    reports: list[Any] = []

    async def reader() -> None:
        reports.append(await read(repairs, b"fsck"))

    async with serving(repairs):
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(reader)
    assert [report["repaired"] for report in reports] == [1, 1, 1]


async def test_results_come_in_order(bench: Bench) -> None:
    """Each wish has its own result, with the store's errno where it failed; those that worked worked."""
    (bench.root / "file").write_bytes(b"")
    repairs = repairs_of(bench, [])
    first, second, third = (keep(bench, path) for path in (b"a", b"b", b"c"))
    async with serving(repairs):
        await ask(repairs, b"recover.publish", id=first, to="file/a")
        await ask(repairs, b"recover.discard", id=second)
        await ask(repairs, b"recover.publish", id=third)
        results = await read(repairs, b"recover.last")

    assert [(result["id"], result["errno"]) for result in results] == [
        (first, errno.ENOTDIR),
        (second, 0),
        (third, 0),
    ]
    assert [entry.name for entry in bench.journal.entries()] == [first]
    assert (bench.root / "c").read_bytes() == b"x"


async def test_an_unexpected_error_frees_the_reader(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """B5: the task ends, to be started again by whoever supervises it; the reader hears of the failure."""
    repairs = repairs_of(bench, [])
    id_ = keep(bench, b"f")

    async def broken(*args: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Kept, "publish", broken)
    await ask(repairs, b"recover.publish", id=id_)
    with pytest.raises(ZeroDivisionError):
        await repairs.run()
    (result,) = await read(repairs, b"recover.last")
    assert (result["errno"], result["error"]) == (errno.EIO, "unexpected error, see the log")


@pytest.mark.parametrize(
    ("name", "value", "number"),
    [
        (b"recover.publish", b"no JSON", errno.EINVAL),
        (b"recover.publish", b"[]", errno.EINVAL),
        (b"recover.publish", b"{}", errno.ENOENT),
        (b"recover.publish", b'{"id": ""}', errno.ENOENT),
        (b"recover.discard", b'{"id": "unknown"}', errno.ENOENT),
        (b"recover.publish", b'{"id": "known", "to": "../x"}', errno.EINVAL),
    ],
)
async def test_wishes_that_are_none(bench: Bench, name: bytes, value: bytes, number: int) -> None:
    """Refused at once, with the errno that says why; nothing waits afterwards."""
    bench.journal.add("known", b"f", None, 0, 1, State.KEPT)
    repairs = repairs_of(bench, [])
    with pytest.raises(StoreError) as raised:
        await repairs.set(ROOT_NODE, name, value, UID)
    assert raised.value.errno == number
    assert await read(repairs, b"recover.last") == []


async def test_who_may_ask_and_where(bench: Bench) -> None:
    """Root and the daemon's user, on the mount's root; other names are left to others."""
    repairs = repairs_of(bench, [])
    elsewhere: Any = SimpleNamespace(number=ROOT + 1)
    for name in (b"recover", b"recover.last", b"fsck"):
        with pytest.raises(Exception, match="only root") as raised:
            await repairs.get(ROOT_NODE, name, 65534)
        assert raised.value.errno == errno.EPERM  # type: ignore[attr-defined]
        with pytest.raises(StoreError, match="only the mount's root"):
            await repairs.get(elsewhere, name, UID)
    assert await repairs.get(ROOT_NODE, b"status", 65534) is None
    assert not await repairs.set(ROOT_NODE, b"commit", b"1", 65534)


async def test_too_many_wishes(bench: Bench) -> None:
    """They do not pile up without end."""
    repairs = repairs_of(bench, [])
    for _ in range(16):
        await ask(repairs, b"fsck")
    with pytest.raises(StoreError) as raised:
        await ask(repairs, b"fsck")
    assert raised.value.errno == errno.EBUSY
