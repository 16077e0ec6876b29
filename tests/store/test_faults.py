"""The fault store: without a plan it is the store beneath; with one, each kind of fault does what it says."""

from __future__ import annotations

import errno
import inspect
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import cast

import pytest
import trio

from tests.contracts.exchanges import ExchangeContract
from tests.contracts.store import NOBODY, StoreContract, content, names, publish, staged_file
from tests.store.fault_plan import OPERATIONS, Break, Lose, Tear
from tests.store.faults import FaultStore
from volfs.core.spans import Extent
from volfs.errors import NotFound, StoreError, StoreTimeout, VersionChanged
from volfs.store.base import Changes, DirectoryReader, Expected, Reader, Store, Transfer, Upload
from volfs.store.directory import DirectoryStore


@pytest.fixture
def backing(tmp_path: Path) -> Path:
    """The directory beneath."""
    root = tmp_path / "backing"
    root.mkdir()
    return root


@pytest.fixture
def store(backing: Path) -> Iterator[FaultStore]:
    """A fault store over a directory, with nothing planned."""
    beneath = DirectoryStore(backing)
    beneath.open_staging("test")
    yield FaultStore(beneath)
    beneath.remove_staging()
    beneath.close()
    assert not (backing / ".volfs").exists(), "something was left in the staging directory"


class TestContract(StoreContract, ExchangeContract):
    """Every promise of a store, through the wrapper."""


def test_every_call_of_the_contract_can_fail() -> None:
    """The operations are the coroutines of the five protocols, no more and no less."""
    prefixes = {
        Store: "",
        Reader: "reader.",
        DirectoryReader: "directory.",
        Upload: "upload.",
        Transfer: "transfer.",
    }
    promised = {
        prefix + name
        for protocol, prefix in prefixes.items()
        for name, member in vars(protocol).items()
        if inspect.iscoroutinefunction(member)
    }
    assert promised == OPERATIONS


async def test_counters_are_those_of_the_store_beneath(store: FaultStore, tmp_path: Path) -> None:
    """What status shows is not the wrapper's own."""
    await publish(store, tmp_path, b"f", b"12345")
    assert await content(store, b"f") == b"12345"
    assert (store.written_bytes, store.read_bytes) == (5, 5)
    assert store.requests["open"] == 1


# -- which calls ---------------------------------------------------------------


async def test_the_nth_call_fails_so_many_times(store: FaultStore) -> None:
    """`nth` and `times` count the calls of one operation; all are counted, those with a fault apart."""
    store.faults.fail("stat", errno.EACCES, nth=2, times=2)
    results = []
    for _ in range(5):
        try:
            await store.stat(b"")
            results.append("ok")
        except StoreError as error:
            results.append(errno.errorcode[error.errno])
        await store.listxattr(b"")
    assert results == ["ok", "EACCES", "EACCES", "ok", "ok"]
    assert (store.faults.calls["stat"], store.faults.met["stat"]) == (5, 2)
    assert (store.faults.calls["listxattr"], store.faults.met["listxattr"]) == (5, 0)


async def test_a_fault_for_ever_ends_when_the_plan_is_cleared(store: FaultStore) -> None:
    """`times` None."""
    store.faults.fail("stat", errno.EIO, times=None)
    for _ in range(3):
        with pytest.raises(StoreError):
            await store.stat(b"")
    store.faults.clear()
    assert (await store.stat(b"")).is_dir


async def test_where_chooses_by_path(store: FaultStore, backing: Path) -> None:
    """Calls on other paths neither fail nor count towards `nth`."""
    (backing / "a").touch()
    (backing / "b").touch()
    store.faults.fail("open", errno.EIO, nth=2, where=lambda path: path == b"a")
    for path in (b"a", b"b", b"b"):
        (await store.open(path)).close()
    with pytest.raises(StoreError):
        await store.open(b"a")


async def test_plans_that_could_never_happen_are_refused(store: FaultStore) -> None:
    """A misspelled operation, the 0th call, a lost answer that would leak: said when it is planned."""
    for operation, number in (("sttat", 1), ("stat", 0)):
        with pytest.raises(ValueError):
            store.faults.fail(operation, errno.EIO, nth=number)
    with pytest.raises(ValueError):
        store.faults.lose("open", errno.EIO)


async def test_what_moves_no_bytes_cannot_be_torn(store: FaultStore) -> None:
    """A fault that has no meaning for a call is a mistake of the test, not a quiet success."""
    for fault in (Tear(), Break(errno.EIO)):
        store.faults.plan("mkdir", fault)
        with pytest.raises(ValueError):
            await store.mkdir(b"d", 0o755, NOBODY)
    assert await names(store, b"") == []


# -- errors --------------------------------------------------------------------


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
async def test_every_operation_fails_with_the_planned_errno(
    store: FaultStore, backing: Path, tmp_path: Path, operation: str
) -> None:
    """The true errno, nothing done, and the next call is as if nothing had been."""
    (backing / "d").mkdir()
    (backing / "f").write_bytes(b"old")
    os.setxattr(backing / "f", "user.k", b"v")
    (backing / "l").symlink_to("f")
    before = sorted(os.listdir(backing)), (backing / "f").stat()
    fd = staged_file(tmp_path, b"new bytes")
    target = os.memfd_create("target")
    reader, scan = await store.open(b"f"), await store.scan(b"")
    upload = await store.upload(fd, None, durable=False, observe=None)
    trace = upload.trace((await store.stat(b"f")).version)
    transfer = await store.begin(fd)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "stat": lambda: store.stat(b"f"),
        "open": lambda: store.open(b"f"),
        "fetch": lambda: store.fetch(b"f", 10),
        "scan": lambda: store.scan(b"d"),
        "readlink": lambda: store.readlink(b"l"),
        "mkdir": lambda: store.mkdir(b"new", 0o755, NOBODY),
        "mknod": lambda: store.mknod(b"new", 0o100644, 0, NOBODY),
        "symlink": lambda: store.symlink(b"new", b"f", NOBODY),
        "link": lambda: store.link(b"f", b"new"),
        "unlink": lambda: store.unlink(b"f"),
        "rmdir": lambda: store.rmdir(b"d"),
        "rename": lambda: store.rename(b"f", b"new", 0),
        "change": lambda: store.change(b"f", Changes(mode=0o600)),
        "getxattr": lambda: store.getxattr(b"f", b"user.k"),
        "setxattr": lambda: store.setxattr(b"f", b"user.k2", b"v"),
        "removexattr": lambda: store.removexattr(b"f", b"user.k"),
        "listxattr": lambda: store.listxattr(b"f"),
        "capacity": lambda: store.capacity(),
        "sync_directory": lambda: store.sync_directory(b""),
        "upload": lambda: store.upload(fd, None, durable=False, observe=None),
        "begin": lambda: store.begin(fd),
        "overwrite": lambda: store.overwrite(fd, b"f", None),
        "keep_left": lambda: store.keep_left(trace, b"f"),
        "clear_left": lambda: store.clear_left(),
        "reader.read": lambda: reader.read(0, 10),
        "reader.read_into": lambda: reader.read_into(memoryview(bytearray(10)), 0),
        "reader.stat": lambda: reader.stat(),
        "reader.change": lambda: reader.change(Changes(mode=0o600)),
        "reader.copy_to": lambda: reader.copy_to(target, 3),
        "reader.overwrite": lambda: reader.overwrite(target, None),
        "reader.sync": lambda: reader.sync(),
        "directory.names": lambda: scan.names(10),
        "directory.stats": lambda: scan.stats([b"f"]),
        "upload.show": lambda: upload.show(b"new", Expected.NOTHING),
        "upload.discard": lambda: upload.discard(),
        "transfer.bring": lambda: transfer.bring([Extent(0, 9)], None),
        "transfer.finish": lambda: transfer.finish(),
        "transfer.discard": lambda: transfer.discard(),
    }
    store.faults.fail(operation, errno.EDQUOT)
    with pytest.raises(StoreError) as raised:
        await calls[operation]()
    assert raised.value.errno == errno.EDQUOT
    assert store.faults.met == {operation: 1}
    assert (sorted(os.listdir(backing)), (backing / "f").stat()) == before
    assert os.fstat(target).st_size == 0
    again = await calls[operation]()
    if operation in ("open", "scan"):
        cast(Reader, again).close()
    elif operation in ("upload", "begin", "transfer.finish"):
        await cast(Upload | Transfer, again).discard()
    await upload.discard()
    await transfer.discard()
    scan.close()
    reader.close()
    os.close(target)
    os.close(fd)


async def test_planned_errors_are_of_the_classes_of_real_ones(store: FaultStore) -> None:
    """Who catches NotFound or StoreTimeout meets it here too."""
    store.faults.fail("stat", errno.ENOENT)
    with pytest.raises(NotFound):
        await store.stat(b"")
    store.faults.fail("stat", errno.ETIMEDOUT)
    with pytest.raises(StoreTimeout):
        await store.stat(b"")


async def test_a_lost_reply_is_a_call_that_was_made(store: FaultStore, backing: Path, tmp_path: Path) -> None:
    """A rename and the showing of an upload are done, and yet they report an error."""
    (backing / "a").write_bytes(b"A")
    store.faults.lose("rename", errno.EIO)
    with pytest.raises(StoreError):
        await store.rename(b"a", b"b", 0)
    assert await names(store, b"") == [b"b"]
    store.faults.plan("upload.show", Lose(errno.EIO))
    with pytest.raises(StoreError):
        await publish(store, tmp_path, b"c", b"shown")
    assert (backing / "c").read_bytes() == b"shown"


# -- time ----------------------------------------------------------------------


async def test_a_delayed_call_is_late_and_whole(
    store: FaultStore, autojump_clock: trio.testing.MockClock
) -> None:
    """By the clock of the plan's caller, so that tests need not wait."""
    store.faults.delay("mkdir", 40.0)
    before = trio.current_time()
    await store.mkdir(b"d", 0o755, NOBODY)
    assert trio.current_time() - before == pytest.approx(40.0)
    assert await names(store, b"") == [b"d"]


async def test_a_hanging_call_goes_on_when_it_is_released(
    store: FaultStore, autojump_clock: trio.testing.MockClock
) -> None:
    """Not before, however long that is; other calls pass, and after the release none hangs."""
    store.faults.hang("mkdir", times=None)
    done: list[bytes] = []

    async def make(path: bytes) -> None:
        await store.mkdir(path, 0o755, NOBODY)
        done.append(path)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(make, b"a")
        nursery.start_soon(make, b"b")
        await trio.sleep(1e6)
        assert done == []
        assert await names(store, b"") == []
        store.faults.release()
    assert sorted(done) == [b"a", b"b"]
    await make(b"c")
    assert await names(store, b"") == [b"a", b"b", b"c"]


async def test_a_hanging_call_can_be_given_up(
    store: FaultStore, autojump_clock: trio.testing.MockClock
) -> None:
    """A deadline of the caller ends it, and nothing was done."""
    store.faults.hang("mkdir")
    with trio.move_on_after(30) as deadline:
        await store.mkdir(b"d", 0o755, NOBODY)
    assert deadline.cancelled_caught
    assert await names(store, b"") == []


# -- torn ----------------------------------------------------------------------


async def test_a_torn_read_has_half_of_the_bytes(store: FaultStore, backing: Path) -> None:
    """And claims to be whole."""
    (backing / "f").write_bytes(b"0123456789")
    reader = await store.open(b"f")
    store.faults.tear("reader.read")
    assert bytes(await reader.read(0, 10)) == b"01234"
    assert bytes(await reader.read(0, 10)) == b"0123456789"
    store.faults.tear("reader.read_into")
    buffer = memoryview(bytearray(10))
    assert (await reader.read_into(buffer, 0))[0] == 5
    assert (await reader.read_into(buffer, 0))[0] == 10
    reader.close()


async def test_a_torn_copy_has_half_of_the_bytes(store: FaultStore, backing: Path) -> None:
    """Quietly, or with an error after the half."""
    (backing / "f").write_bytes(b"0123456789")
    reader = await store.open(b"f")
    target = os.memfd_create("target")
    store.faults.tear("reader.copy_to")
    await reader.copy_to(target, 10)
    assert os.pread(target, 20, 0) == b"01234"
    os.ftruncate(target, 0)
    store.faults.break_off("reader.copy_to", errno.ESTALE)
    with pytest.raises(StoreError) as raised:
        await reader.copy_to(target, 10)
    assert raised.value.errno == errno.ESTALE
    assert os.pread(target, 20, 0) == b"01234"
    reader.close()
    os.close(target)


async def test_an_upload_whose_source_ends_early_is_short(
    store: FaultStore, backing: Path, tmp_path: Path
) -> None:
    """The store shows half of the file and reports success; the attributes are right."""
    fd = staged_file(tmp_path, b"0123456789")
    os.fchmod(fd, 0o640)
    store.faults.tear("upload")
    upload = await store.upload(fd, None, durable=False, observe=None)
    assert (await upload.show(b"f", Expected.NOTHING)).size == 5
    assert (backing / "f").read_bytes() == b"01234"
    assert (backing / "f").stat().st_mode & 0o777 == 0o640
    os.close(fd)


async def test_an_upload_that_fails_half_way_leaves_nothing(
    store: FaultStore, backing: Path, tmp_path: Path
) -> None:
    """The observer has seen the first part, and the store has cleared it away."""
    fd = staged_file(tmp_path, os.urandom((3 << 20) + 1))
    seen: list[int] = []
    store.faults.break_off("upload", errno.ENOSPC)
    with pytest.raises(StoreError) as raised:
        await store.upload(fd, None, durable=False, observe=lambda offset, piece: seen.append(len(piece)))
    assert raised.value.errno == errno.ENOSPC
    assert 0 < sum(seen) < 3 << 20
    assert list((backing / ".volfs").rglob("copy-*")) == []
    os.close(fd)


async def test_an_overwrite_that_fails_half_way_has_torn_the_file(
    store: FaultStore, backing: Path, tmp_path: Path
) -> None:
    """In place there is no other way (W11): half of the new bytes are all that is there."""
    (backing / "f").write_bytes(b"the old content")
    fd = staged_file(tmp_path, b"0123456789")
    store.faults.break_off("overwrite", errno.EIO)
    with pytest.raises(StoreError):
        await store.overwrite(fd, b"f", None)
    assert (backing / "f").read_bytes() == b"01234"
    await store.overwrite(fd, b"f", None)
    assert (backing / "f").read_bytes() == b"0123456789"
    os.close(fd)


async def test_a_refused_show_is_not_a_fault(store: FaultStore, backing: Path, tmp_path: Path) -> None:
    """What the store beneath raises passes as it is, and counts as no fault."""
    (backing / "f").touch()
    fd = staged_file(tmp_path, b"x")
    upload = await store.upload(fd, None, durable=False, observe=None)
    with pytest.raises(VersionChanged):
        await upload.show(b"f", Expected.NOTHING)
    await upload.discard()
    os.close(fd)
    assert not store.faults.met
