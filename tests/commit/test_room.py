"""Writers on a full local disk: what staged bytes cost, what a failed write leaves, who waits how long."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.disk import fill, needs_root, small_disk
from volfs.cache.fill import Cache
from volfs.commit.journal import Journal
from volfs.commit.queue import CommitQueue
from volfs.commit.room import PATIENCE_S, WriteRoom
from volfs.commit.staging import DiskFull, StagedFile, Staging
from volfs.core.spans import INODE_BYTES
from volfs.core.versions import Version
from volfs.errors import StoreError

K, M = 1 << 10, 1 << 20


@pytest.fixture(params=[pytest.param(kind, marks=needs_root) for kind in ("tmpfs", "ext4")])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    with small_disk(request.param, tmp_path / "disk", 8 * M) as at:
        yield at


@pytest.fixture
def staging(disk: Path) -> Iterator[Staging]:
    """A staging directory on the small disk."""
    (disk / "staging").mkdir()
    directory = os.open(disk / "staging", os.O_RDONLY | os.O_DIRECTORY)
    yield Staging(directory, in_store=False)
    os.close(directory)


def on_disk(staging: Staging) -> int:
    """What the files take, with an inode each."""
    sizes = [os.stat(name, dir_fd=staging.directory).st_blocks * 512 for name in staging.names()]
    return sum(sizes) + INODE_BYTES * len(sizes)


async def test_staged_bytes_are_counted_as_allocated(staging: Staging, disk: Path) -> None:
    """Holes cost nothing, a byte costs a page; what is cut, deleted or handed over counts no more."""
    one, two = staging.create(), staging.create()
    assert staging.allocated == 2 * INODE_BYTES
    await one.write(0, b"x")
    await two.write(2 * M, bytes(200 * K))
    assert staging.allocated == on_disk(staging)
    assert 204 * K <= staging.allocated - 2 * INODE_BYTES < 300 * K
    two.truncate(4 * M)
    two.truncate(2 * M)
    assert staging.allocated == on_disk(staging) < 16 * K + 2 * INODE_BYTES
    await two.write(0, bytes(M))
    assert staging.allocated_of(two) >= M
    # An earlier daemon's files count too.
    assert Staging(staging.directory, in_store=False).allocated == staging.allocated == on_disk(staging)
    os.rename(disk / "staging" / two.name, disk / "cache file")
    two.discard()
    assert (disk / "cache file").stat().st_size == 2 * M
    assert staging.allocated == staging.allocated_of(one) == on_disk(staging)
    one.discard()
    assert staging.allocated == 0


async def test_staged_files_in_the_store_cost_nothing_here(staging: Staging) -> None:
    """They lie on the store's disk."""
    in_store = Staging(staging.directory, in_store=True)
    staged = in_store.create()
    await staged.write(0, bytes(M))
    assert in_store.allocated == 0
    staged.discard()


@pytest.mark.parametrize("size", [48 * K, 3 * M], ids=["in the trio thread", "in a thread"])
async def test_write_that_does_not_fit(staging: Staging, disk: Path, size: int) -> None:
    """The file is what it was, also its length, and the same write is right once there is space."""
    staged = staging.create()
    await staged.write(0, b"before" * 1000)
    hog = fill(disk, leave_bytes=20 * K if size < M else M)
    with pytest.raises(DiskFull) as caught:
        await staged.write(6000, bytes(range(1, 241)) * (size // 240))
    assert caught.value.errno == errno.ENOSPC
    assert staged.size == 6000
    assert await staged.read(0, 10_000) == b"before" * 1000
    assert staging.allocated == on_disk(staging) < 40 * K
    hog.unlink()
    await staged.write(staged.size, bytes(range(1, 241)) * (size // 240))
    assert await staged.read(6000, size) == bytes(range(1, 241)) * (size // 240)
    staged.discard()


def test_journal_on_a_full_disk(disk: Path) -> None:
    """Rows are written, changed and removed on a disk without a free byte, so that commits can free some."""
    Journal(disk / "journal.db").close()  # what it reserves, the second start reserves too
    journal = Journal(disk / "journal.db")
    journal.add("old", b"old", None, 0, 1)
    hog = fill(disk)
    for i in range(30):
        name = f"{i:032x}"
        journal.add(name, b"path/" * 20 + b"%d" % i, Version(b"v" * 40), 0, i)
        journal.close_file(name)
        journal.showing(name)
        journal.remove(name)
    journal.close_file("old")
    hog.unlink()
    journal.close()
    again = Journal(disk / "journal.db")
    assert [row.name for row in again.entries()] == ["old"]
    assert not again.damaged
    again.close()


@dataclass
class Bench:
    """A room over a cache and a queue that are only counted, and a disk that is full until told otherwise."""

    room: WriteRoom
    cache: FakeCache
    queue: CommitQueue
    staging: Staging
    free: bool = False
    tries: int = 0
    code: int = errno.ENOSPC
    kind: type[StoreError] = DiskFull

    async def write(self) -> str:
        """One write."""
        self.tries += 1
        if not self.free:
            raise self.kind("no space", errno=self.code)
        return "written"

    async def refused(self) -> int:
        """Try a write that is to fail; its errno."""
        with pytest.raises(StoreError) as caught:
            await self.room.with_room(self.write, 1)
        return caught.value.errno


class FakeCache:
    """What a room needs of a cache: clean blocks by the piece."""

    def __init__(self) -> None:
        self.pieces = 0
        self.shrunk = 0
        self.given: Callable[[], None] = lambda: None

    async def yield_space(self, size: int) -> bool:
        if not self.pieces:
            return False
        self.pieces -= 1
        self.given()
        return True

    async def shrink(self) -> None:
        self.shrunk += 1


@pytest.fixture
def other(bench: Bench) -> Iterator[StagedFile]:
    """Somebody else's staged file, whose commit would free space."""
    staged = bench.staging.create()
    yield staged
    staged.discard()


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """See `Bench`."""

    async def attempt(number: int) -> None:
        if number < 0:
            raise StoreError("no", errno=errno.EACCES)

    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    staging, queue, cache = Staging(directory, in_store=False), CommitQueue(attempt), FakeCache()
    yield Bench(WriteRoom(staging, cache, queue), cache, queue, staging)
    os.close(directory)


async def test_clean_blocks_go_first(bench: Bench, autojump_clock: MockClock) -> None:
    """A write that finds blocks to give up does not wait, and the limit is looked at after it."""
    bench.cache.pieces = 3

    def given() -> None:
        bench.free = not bench.cache.pieces

    bench.cache.given = given
    assert await bench.room.with_room(bench.write, 1) == "written"
    assert (bench.tries, bench.cache.shrunk, trio.current_time()) == (4, 1, 0)


async def test_nothing_can_come_free(bench: Bench, autojump_clock: MockClock) -> None:
    """A file that fills the disk alone is told so at once."""
    own = bench.staging.create()
    with pytest.raises(StoreError) as caught:
        await bench.room.with_room(bench.write, 1, lambda: own)
    assert (caught.value.errno, bench.tries, trio.current_time()) == (errno.ENOSPC, 1, 0)
    own.discard()


async def test_commit_wakes_a_writer(
    bench: Bench, other: StagedFile, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """A commit that succeeded is followed at once, by the queue or by a close; one that failed is not."""
    nursery.start_soon(bench.queue.run)
    done: list[str] = []

    async def write() -> None:
        done.append(await bench.room.with_room(bench.write, 1))

    nursery.start_soon(write)
    await wait_all_tasks_blocked()
    assert (bench.tries, bench.room.waiting) == (1, 1)
    bench.queue.add(-1)
    await wait_all_tasks_blocked()
    assert bench.tries == 1
    bench.queue.add(7)
    await wait_all_tasks_blocked()
    assert bench.tries == 2
    bench.queue.remove(8)  # a close has committed it, outside of the queue
    await wait_all_tasks_blocked()
    assert bench.tries == 3
    bench.free = True
    bench.queue.add(9)
    await wait_all_tasks_blocked()
    assert (done, bench.room.waiting) == (["written"], 0)
    assert trio.current_time() < 1
    nursery.cancel_scope.cancel()


async def test_space_that_somebody_else_made(
    bench: Bench, other: StagedFile, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """Who waits looks again by itself: a file deleted by hand tells nobody."""

    async def later() -> None:
        await trio.sleep(5.5)
        bench.free = True

    nursery.start_soon(later)
    assert await bench.room.with_room(bench.write, 1) == "written"
    assert 5.5 <= trio.current_time() <= 6.5


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
async def test_patience_ends(bench: Bench, other: StagedFile, code: int, autojump_clock: MockClock) -> None:
    """With a store that is away the writer gets the errno that the disk gave, in bounded time."""
    bench.code = code
    assert await bench.refused() == code
    assert PATIENCE_S <= trio.current_time() <= PATIENCE_S + 1
    assert (bench.room.refused, bench.room.waiting) == (1, 0)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
async def test_other_errors_pass(
    bench: Bench, other: StagedFile, code: int, autojump_clock: MockClock
) -> None:
    """A disk that fails is not a full one, and no block that is given up here makes room in a full store."""
    bench.code, bench.kind, bench.cache.pieces = code, StoreError, 5
    assert await bench.refused() == code
    assert (bench.tries, bench.cache.pieces, trio.current_time()) == (1, 5, 0)


async def test_full_store_is_not_waited_for(bench: Bench, autojump_clock: MockClock) -> None:
    """Staged files in the store: its ENOSPC is the application's."""
    staging = Staging(bench.staging.directory, in_store=True)
    bench.room = WriteRoom(staging, None, bench.queue)
    assert await bench.refused() == errno.ENOSPC
    assert (bench.tries, trio.current_time()) == (1, 0)


async def test_disk_without_a_cache(bench: Bench, other: StagedFile, autojump_clock: MockClock) -> None:
    """With the cache off, staged files on the local disk have only commits to wait for."""
    bench.room = WriteRoom(bench.staging, None, bench.queue)
    assert await bench.refused() == errno.ENOSPC
    assert PATIENCE_S <= trio.current_time() <= PATIENCE_S + 1
    bench.free = True
    assert await bench.room.with_room(bench.write, 1) == "written"


async def test_the_end_of_the_mount_ends_the_wait(
    bench: Bench, other: StagedFile, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """A shutdown does not wait for writers that wait."""
    codes: list[int] = []

    async def write() -> None:
        codes.append(await bench.refused())

    nursery.start_soon(write)
    await trio.sleep(3)
    bench.room.close()
    await write()
    await trio.sleep(1.5)
    assert codes == [errno.ENOSPC] * 2


async def test_writers_do_not_keep_each_other_awake(
    bench: Bench, other: StagedFile, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """What a failed attempt throws away of its own wakes nobody: the tries are few, however many wait."""

    async def half_done() -> str:
        staged = bench.staging.create()
        await staged.write(0, bytes(10 * K))
        staged.discard()
        return await bench.write()

    async def write() -> None:
        with pytest.raises(StoreError):
            await bench.room.with_room(half_done, 10 * K)

    for _ in range(10):
        nursery.start_soon(write)
    await trio.sleep(PATIENCE_S + 5)
    assert 10 * PATIENCE_S <= bench.tries <= 10 * (PATIENCE_S + 2)
    assert bench.room.refused == 10


async def test_one_writer_waits_and_goes_on_when_a_commit_frees_it(
    staging: Staging, disk: Path, nursery: trio.Nursery
) -> None:
    """On a real disk with a real cache: clean blocks go, then the writer waits, then it has the space."""
    (disk / "cache").mkdir()
    cache = Cache.open(disk / "cache", 1 << 30, M, staged=lambda: staging.allocated)
    files: dict[int, StagedFile] = {}

    async def attempt(number: int) -> None:
        files.pop(number).discard()

    queue = CommitQueue(attempt)
    room = WriteRoom(staging, cache, queue)
    nursery.start_soon(queue.run)
    first = staging.create()
    data = os.urandom(64 * K)

    async def grow(staged: StagedFile) -> None:
        size = staged.size
        await room.with_room(lambda: staged.write(size, data), len(data), lambda: staged)

    async def grow_until_full() -> None:
        while True:
            await grow(first)

    with pytest.raises(StoreError) as caught:
        await grow_until_full()
    assert caught.value.errno == errno.ENOSPC
    assert first.size % len(data) == 0
    assert staging.allocated == on_disk(staging)
    files[1], second = first, staging.create()

    async def write() -> None:
        for _ in range(32):
            await grow(second)

    async with trio.open_nursery() as writers:
        writers.start_soon(write)
        with trio.fail_after(10):
            while not room.waiting:
                await trio.sleep(0)
        assert second.size < 32 * len(data)
        queue.add(1)
    assert await second.read(0, 32 * len(data)) == data * 32
    assert (room.waiting, room.refused) == (0, 1)
    second.discard()
    assert staging.allocated == 0
    cache.close()
    nursery.cancel_scope.cancel()
