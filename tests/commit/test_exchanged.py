"""A commit by copy that ends between the exchange of names and the look at what came out."""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from tests.contracts.exchanges import Killed
from volfs.commit.journal import Journal, State
from volfs.commit.kept import Kept
from volfs.commit.publish import publish
from volfs.commit.recover import Recovery
from volfs.commit.staging import Staging
from volfs.core.versions import Version
from volfs.errors import StoreError
from volfs.store.base import Stat
from volfs.store.directory import DirectoryStore


@dataclass
class Daemon:
    """What one life of a daemon has open."""

    base: Path
    local: bool

    def __post_init__(self) -> None:
        self.store = DirectoryStore(self.base / "backing", local=self.local)
        self.store.open_staging("me")
        self.staging = Staging(os.open(self.base / "staging", os.O_RDONLY), in_store=False)
        self.journal = Journal(self.base / "journal")
        self.recovery = Recovery(self.store, self.staging, self.journal)

    def close(self) -> None:
        """As the kernel does with what a dead process had open."""
        self.journal.close()
        os.close(self.staging.directory)
        self.store.close()

    def staged(self, data: bytes, base: Version | None, *, closed: bool = True) -> str:
        """Acknowledged bytes for `f`, or unfinished ones; the name of the staged file."""
        staged = self.staging.create()
        os.write(staged.fd, data)
        self.journal.add(staged.name, b"f", base, 0, staged.stat().number)
        if closed:
            self.journal.close_file(staged.name)
        staged.close()
        return staged.name

    async def commit(self, name: str, base: Version | None) -> None:
        """What the daemon does with them."""
        staged = self.staging.open(name)
        try:
            await publish(
                self.store,
                self.staging,
                staged,
                b"f",
                base,
                durable=True,
                showing=lambda trace: self.journal.showing(name, trace),
            )
        finally:
            staged.close()

    def version(self) -> Version:
        """Of `f` in the store."""
        return self.store._stat(b"f").version


Start = Callable[[], Daemon]


@pytest.fixture(params=[True, False], ids=["inline", "threads"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """Start a daemon, the next one over what the one before left."""
    for name in ("backing", "staging"):
        (tmp_path / name).mkdir()
    (tmp_path / "backing/f").write_bytes(b"base")
    lives: list[Daemon] = []

    def boot() -> Daemon:
        if lives:
            lives[-1].close()
        lives.append(Daemon(tmp_path, local=request.param))
        return lives[-1]

    yield boot
    lives[-1].close()


@pytest.fixture
def backing(tmp_path: Path) -> Path:
    """The directory of the store."""
    return tmp_path / "backing"


def replace(file: Path, data: bytes) -> None:
    """Others make a new version of the file."""
    (file.parent / "fresh").write_bytes(data)
    (file.parent / "fresh").rename(file)


def left(backing: Path) -> list[str]:
    """Names of the files in the staging directory and its lanes."""
    return sorted(path.name for path in (backing / ".volfs/me").rglob("*") if path.is_file())


def files(backing: Path) -> dict[str, bytes]:
    """What users see."""
    return {path.name: path.read_bytes() for path in backing.iterdir() if path.is_file()}


async def die(
    daemon: Daemon,
    name: str,
    base: Version,
    monkeypatch: pytest.MonkeyPatch,
    theirs: Callable[[], None] | None = None,
) -> None:
    """Commit; others act between our look and our exchange; die between that and the look at it."""
    original = daemon.store.stat

    async def stat(path: bytes) -> Stat:
        found = await original(path)
        if path == b"f" and theirs is not None:
            theirs()
        return found

    def point(name: str) -> None:
        if name == "show.exchanged":
            raise Killed

    async def dead(owed: object) -> None:
        """Who was killed takes nothing away."""

    with monkeypatch.context() as patch:
        patch.setattr(daemon.store, "stat", stat)
        patch.setattr("volfs.crash.point", point)
        patch.setattr("volfs.commit.publish.clear", dead)
        with pytest.raises(Killed):
            await daemon.commit(name, base)


@pytest.mark.parametrize("how", ["replaced", "in place"])
async def test_what_others_committed_outlives_a_crash_of_ours(
    start: Start, backing: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """W7e: theirs and ours are both there afterwards, and nothing else is."""
    daemon = start()
    base = daemon.version()
    name = daemon.staged(b"ours", base)

    def theirs() -> None:
        if how == "replaced":
            replace(backing / "f", b"theirs")
        else:
            (backing / "f").write_bytes(b"theirs")

    await die(daemon, name, base, monkeypatch, theirs)
    again = start()
    await again.recovery.start()
    held = files(backing)
    assert held.pop("f") == b"ours"
    assert list(held.values()) == [b"theirs"]
    assert [key.startswith("f.conflict-") for key in held] == [True]
    assert (again.recovery.recovered, again.recovery.conflicts, again.recovery.waiting) == (1, 1, 0)
    assert again.journal.entries() == []
    assert again.staging.names() == []
    assert left(backing) == []


async def test_what_was_to_be_replaced_goes(
    start: Start, backing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W6b: nobody came between: the commit was done, and there is no conflict."""
    daemon = start()
    base = daemon.version()
    await die(daemon, daemon.staged(b"ours", base), base, monkeypatch)
    assert left(backing) != []
    again = start()
    await again.recovery.start()
    assert files(backing) == {"f": b"ours"}
    assert (again.recovery.recovered, again.recovery.conflicts) == (1, 0)
    assert left(backing) == []


async def test_copies_go_though_there_is_nothing_to_recover(start: Start, backing: Path) -> None:
    """W6b: their rows are gone: the daemon died before it took them away."""
    daemon = start()
    fd = os.open(backing / "f", os.O_RDONLY)
    for replaces in (True, False):
        upload = await daemon.store.upload(fd, None, durable=True, observe=None, replaces=replaces)
        copy = upload.descriptor()
        assert copy is not None
        os.close(copy)
    os.close(fd)
    assert len(left(backing)) == 2
    again = start()
    await again.recovery.run()
    assert left(backing) == []


@pytest.mark.parametrize("start", [True], indirect=True, ids=["inline"])
@pytest.mark.parametrize("refused", ["keep_left", "clear_left"])
async def test_a_store_that_refuses_is_asked_again(
    start: Start,
    backing: Path,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
    refused: str,
) -> None:
    """W7e: until theirs is kept, no copy goes, and neither does the row with the trace."""
    daemon = start()
    base = daemon.version()
    name = daemon.staged(b"ours", base)
    await die(daemon, name, base, monkeypatch, lambda: replace(backing / "f", b"theirs"))
    again = start()
    original, refusals = getattr(again.store, refused), 3

    async def refuse(*args: object) -> object:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise StoreError("refused", errno=errno.EACCES)
        return await original(*args)

    monkeypatch.setattr(again.store, refused, refuse)
    await again.recovery.start()
    kept_first = refused == "keep_left"
    assert again.recovery.waiting == kept_first
    assert "refused" in (again.recovery.last_error or "")
    assert [row.name for row in again.journal.entries()] == ([name] if kept_first else [])
    assert (left(backing) != []) == kept_first
    await again.recovery.run()
    assert (again.recovery.waiting, again.recovery.conflicts, refusals) == (0, 1, 0)
    assert sorted(files(backing).values()) == [b"ours", b"theirs"]
    assert again.journal.entries() == []
    assert left(backing) == []


@pytest.mark.parametrize("start", [True], indirect=True, ids=["inline"])
async def test_a_recovery_that_fails_in_the_middle_loses_nothing(
    start: Start,
    backing: Path,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """W7e: what its own commit left in our hands is kept before it tries again, which takes another trace."""
    earlier = start()
    name = earlier.staged(b"ours", earlier.version())
    daemon = start()
    original, failures = daemon.store.stat, 1

    async def stat(path: bytes) -> Stat:
        found = await original(path)
        if path == b"f" and failures:
            replace(backing / "f", b"theirs")
        return found

    def point(name: str) -> None:
        nonlocal failures
        if name == "show.exchanged" and failures:
            failures -= 1
            raise OSError(errno.EIO, "the store fails")

    async def fail(owed: object) -> None:
        """The store refuses this, too."""

    monkeypatch.setattr(daemon.store, "stat", stat)
    monkeypatch.setattr("volfs.crash.point", point)
    with monkeypatch.context() as patch:
        patch.setattr("volfs.commit.publish.clear", fail)
        await daemon.recovery.start()
    assert [bool(row.trace) for row in daemon.journal.entries()] == [True]
    assert daemon.journal.entries()[0].name == name
    await daemon.recovery.run()
    assert sorted(files(backing).values()) == [b"ours", b"theirs"]
    assert (daemon.recovery.recovered, daemon.recovery.conflicts) == (1, 1)
    assert left(backing) == []


@pytest.mark.parametrize("then", ["kept", "discarded"])
async def test_theirs_is_kept_whatever_becomes_of_ours(
    start: Start, backing: Path, monkeypatch: pytest.MonkeyPatch, then: str
) -> None:
    """W7e: ours is offered to the user, who may discard it before theirs could be kept."""
    daemon = start()
    base = daemon.version()
    name = daemon.staged(b"ours", base, closed=False)
    await die(daemon, name, base, monkeypatch, lambda: replace(backing / "f", b"theirs"))
    daemon.journal.keep(name)
    again = start()
    if then == "discarded":

        async def refuse(trace: str, path: bytes) -> bytes | None:
            raise StoreError("refused")

        with monkeypatch.context() as patch:
            patch.setattr(again.store, "keep_left", refuse)
            await again.recovery.start()
            await Kept(again.store, again.staging, again.journal).discard(name)
        assert left(backing) != []
    await again.recovery.run()
    assert sorted(files(backing).values()) == [b"ours", b"theirs"]
    assert [row.state for row in again.journal.entries()] == ([State.KEPT] if then == "kept" else [])
    assert left(backing) == []


async def test_a_store_that_fails_in_the_middle_loses_nothing(
    start: Start, backing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """W7e: the daemon lives: theirs is kept at once, or by the next attempt before it forgets the trace."""
    daemon = start()
    base = daemon.version()
    name = daemon.staged(b"ours", base)
    staged = daemon.staging.open(name)
    replace(backing / "f", b"theirs")
    base = daemon.version()
    traces: list[str] = []
    broken = {"show.exchanged"}

    def point(name: str) -> None:
        if name in broken:
            raise OSError(errno.EIO, "the store fails")

    def kept() -> list[bytes]:
        return [path.read_bytes() for path in backing.glob("f.conflict-*")]

    def showing(trace: str) -> None:
        traces.append(trace)
        if len(traces) == 1:
            replace(backing / "f", b"theirs too")
        else:
            assert kept() == [b"theirs too"]  # the row has one trace: this one replaces the first

    def attempt() -> Awaitable[object]:
        return publish(daemon.store, daemon.staging, staged, b"f", base, durable=True, showing=showing)

    async def fail(owed: object) -> None:
        """The store refuses this, too."""

    monkeypatch.setattr("volfs.crash.point", point)
    with monkeypatch.context() as patch:
        patch.setattr("volfs.commit.publish.clear", fail)
        with pytest.raises(StoreError):
            await attempt()
    assert kept() == []
    broken.clear()
    await staged.write(4, b", and more")
    await attempt()
    staged.close()
    assert (backing / "f").read_bytes() == b"ours, and more"
    assert kept() == [b"theirs too"]
    assert len(traces) == 2
    assert left(backing) == []
