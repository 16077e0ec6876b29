"""One commit: conflicts, names, links."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.commit.conftest import Bench
from volfs.commit.publish import Commit, publish
from volfs.core.conflicts import conflict_name
from volfs.core.versions import ABSENT, Version
from volfs.errors import NotFound, StoreError
from volfs.store.base import Expected, Stat
from volfs.store.uploading import CopiedUpload, StagedUpload


async def test_a_changed_file_is_not_overwritten(bench: Bench) -> None:
    """W7: ours goes beside it, whole, and theirs is as it was."""
    (bench.root / "f").write_bytes(b"base")
    base = (await bench.store.stat(b"f")).version
    (bench.root / "f").write_bytes(b"theirs, longer")
    staged = bench.stage(b"ours")
    done = await publish(bench.store, bench.staging, staged, b"f", base, durable=False)
    staged.close()
    assert (bench.root / "f").read_bytes() == b"theirs, longer"
    assert done.conflict is not None
    assert (bench.root / os.fsdecode(done.conflict)).read_bytes() == b"ours"


async def test_a_directory_of_the_name_is_not_replaced(bench: Bench) -> None:
    """W7: not even by a file that replaces whatever there is; ours goes beside it."""
    (bench.root / "f").mkdir()
    staged = bench.stage(b"ours")
    done = await publish(bench.store, bench.staging, staged, b"f", None, durable=False)
    staged.close()
    assert (bench.root / "f").is_dir()
    assert done.conflict is not None
    assert (bench.root / os.fsdecode(done.conflict)).read_bytes() == b"ours"


async def test_an_unchanged_file_is_replaced(bench: Bench) -> None:
    """The base is still there: ours is the new version."""
    (bench.root / "f").write_bytes(b"base")
    staged = bench.stage(b"ours")
    base = (await bench.store.stat(b"f")).version
    done = await publish(bench.store, bench.staging, staged, b"f", base, durable=False)
    staged.close()
    assert done.conflict is None
    assert (bench.root / "f").read_bytes() == b"ours"


async def test_bytes_outweigh_a_delete(bench: Bench) -> None:
    """The base is gone: ours takes the name again."""
    (bench.root / "f").write_bytes(b"base")
    base = (await bench.store.stat(b"f")).version
    (bench.root / "f").unlink()
    staged = bench.stage(b"ours")
    await publish(bench.store, bench.staging, staged, b"f", base, durable=False)
    staged.close()
    assert (bench.root / "f").read_bytes() == b"ours"


async def test_a_file_with_several_names_stays_one(bench: Bench) -> None:
    """W11: both names show the commit."""
    (bench.root / "f").write_bytes(b"base")
    os.link(bench.root / "f", bench.root / "g")
    st = await bench.store.stat(b"f")
    staged = bench.stage(b"ours")
    done = await publish(
        bench.store, bench.staging, staged, b"f", st.version, durable=False, identity=st.identity
    )
    staged.discard()
    assert not done.renamed
    assert (bench.root / "g").read_bytes() == b"ours"
    assert os.stat(bench.root / "f").st_nlink == 2


async def test_another_file_takes_one_of_several_names(bench: Bench) -> None:
    """It is not written into the file that had the name."""
    (bench.root / "f").write_bytes(b"theirs")
    os.link(bench.root / "f", bench.root / "g")
    staged = bench.stage(b"ours")
    await publish(bench.store, bench.staging, staged, b"f", None, durable=False)
    staged.close()
    assert (bench.root / "f").read_bytes() == b"ours"
    assert (bench.root / "g").read_bytes() == b"theirs"


@given(
    name=st.binary(min_size=1, max_size=255).filter(lambda name: b"/" not in name and b"\0" not in name),
    host=st.text(max_size=300),
    attempt=st.integers(0, 1000),
)
def test_conflict_names_are_names(name: bytes, host: str, attempt: int) -> None:
    """Never longer than 255 bytes, never in another directory, always telling."""
    made = conflict_name(b"d/" + name, host, 1e9, attempt)
    directory, _, last = made.rpartition(b"/")
    assert directory == b"d"
    assert len(last) <= 255
    assert b".conflict-" in last


@pytest.mark.parametrize("how", ["replaced", "in place", "deleted"])
async def test_a_change_between_look_and_rename_is_not_overwritten(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """W7 has no window: what others do after we looked is seen by the rename."""
    file = bench.root / "f"
    file.write_bytes(b"base")
    base = bench.version("f")
    staged = bench.stage(b"ours")
    original, done = bench.store.stat, False

    async def stat(path: bytes) -> Stat:
        nonlocal done
        found = await original(path)
        if path == b"f" and not done:
            done = True
            if how == "replaced":
                (bench.root / "fresh").write_bytes(b"theirs")
                (bench.root / "fresh").rename(file)
            elif how == "in place":
                file.write_bytes(b"theirs")
            else:
                file.unlink()
        return found

    monkeypatch.setattr(bench.store, "stat", stat)
    published = await publish(bench.store, bench.staging, staged, b"f", base, durable=False)
    staged.close()
    if how == "deleted":
        assert published.conflict is None
        assert file.read_bytes() == b"ours"
    else:
        assert published.conflict is not None
        assert file.read_bytes() == b"theirs"
        assert (bench.root / os.fsdecode(published.conflict)).read_bytes() == b"ours"


async def test_a_version_in_our_hands_is_not_lost(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """W7: while ours is compared, others replace it. What it was compared with, which nobody else has seen
    go, is kept beside theirs, and so is ours.
    """
    file = bench.root / "f"
    file.write_bytes(b"base")
    base = bench.version("f")
    staged = bench.stage(b"ours")
    original = bench.store.stat

    def replace(data: bytes) -> None:
        (bench.root / "fresh").write_bytes(data)
        (bench.root / "fresh").rename(file)

    async def stat(path: bytes) -> Stat:
        found = await original(path)
        if path == b"f" and file.read_bytes() == b"base":
            replace(b"first of theirs")
        return found

    def point(name: str) -> None:
        if name == "show.exchanged":
            replace(b"second of theirs")

    monkeypatch.setattr(bench.store, "stat", stat)
    monkeypatch.setattr("volfs.crash.point", point)
    published = await publish(bench.store, bench.staging, staged, b"f", base, durable=False)
    staged.close()
    assert published.conflict is not None
    assert file.read_bytes() == b"second of theirs"
    beside = {path.read_bytes() for path in bench.root.glob("f.conflict-*")}
    assert beside == {b"first of theirs", b"ours"}
    assert os.listdir(bench.store.staging) == []


@pytest.mark.parametrize("replaced", [True, False], ids=["replaced", "removed"])
@pytest.mark.parametrize("there", [True, False], ids=["instead", "new"])
async def test_what_comes_right_after_ours_is_not_taken_for_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, replaced: bool, there: bool
) -> None:
    """W7: others take the name in the moment after it was ours: what we know of our file is still ours.

    Else the next commit would replace theirs.
    """
    file = bench.root / "f"
    if there:
        file.write_bytes(b"base")
    base = bench.version("f") if there else ABSENT
    staged = bench.stage(b"ours")

    def point(name: str) -> None:
        if name == "show.after" and replaced:
            (bench.root / "n").write_bytes(b"theirs")
            (bench.root / "n").rename(file)
        elif name == "show.after":
            file.unlink()

    monkeypatch.setattr("volfs.crash.point", point)
    done = await publish(bench.store, bench.staging, staged, b"f", base, durable=False)
    staged.close()
    assert (done.conflict, done.stat.size, done.stat.nlink) == (None, 4, 0)
    assert not replaced or done.stat.identity != (await bench.store.stat(b"f")).identity


@pytest.fixture
def losing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """The first version that gets a name does so, but the answer is lost; what is to happen before that."""
    meanwhile: list[Callable[[], None]] = []
    kind = StagedUpload if bench.staging.in_store else CopiedUpload
    original, failed = kind.show, False

    async def show(self: StagedUpload, path: bytes, expected: Version | Expected) -> Stat:
        nonlocal failed
        found = await original(self, path, expected)
        if not failed:
            failed = True
            for act in meanwhile:
                act()
            raise StoreError("the answer is lost")
        return found

    monkeypatch.setattr(kind, "show", show)
    return meanwhile


async def test_a_lost_answer_is_none_where_the_file_itself_is_renamed(
    bench: Bench, losing: list[Callable[[], None]]
) -> None:
    """W7b: it is not in staging any more, so it was shown, also if others have replaced it since."""
    if not bench.staging.in_store:
        return
    losing.append(lambda: os.replace(bench.root / "theirs", bench.root / "f"))
    (bench.root / "theirs").write_bytes(b"theirs")
    staged = bench.stage(b"ours")
    done = await publish(bench.store, bench.staging, staged, b"f", ABSENT, durable=False)
    assert (done.conflict, done.stat.nlink, done.renamed) == (None, 0, True)
    staged.close()
    assert (bench.root / "f").read_bytes() == b"theirs"


async def test_a_conflict_copy_of_which_no_answer_came(
    bench: Bench, losing: list[Callable[[], None]]
) -> None:
    """W7b: the next attempt goes on with it, and with all that was written since."""
    (bench.root / "f").write_bytes(b"theirs")
    staged = bench.stage(b"ours")
    if not bench.staging.in_store:
        with pytest.raises(StoreError):
            await publish(bench.store, bench.staging, staged, b"f", Version(b"gone"), durable=False)
        await staged.write(4, b", and more")
    done = await publish(bench.store, bench.staging, staged, b"f", Version(b"gone"), durable=False)
    data = os.pread(staged.fd, 100, 0)
    staged.close()
    assert (bench.root / "f").read_bytes() == b"theirs"
    assert done.conflict is not None
    assert [path.read_bytes() for path in bench.root.glob("f.conflict-*")] == [data]


async def test_a_commit_that_fails_leaves_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is as it was, the bytes stay staged, and the next attempt succeeds."""
    staged = bench.stage(b"ours")
    with pytest.raises(NotFound):
        await publish(bench.store, bench.staging, staged, b"missing/f", None, durable=False)
    assert os.listdir(bench.store.staging) == ([staged.name] if bench.staging.in_store else [])
    await publish(bench.store, bench.staging, staged, b"f", None, durable=False)
    staged.close()
    assert (bench.root / "f").read_bytes() == b"ours"


async def test_the_row_says_so_before_the_name_changes(bench: Bench) -> None:
    """After a crash in between, a missing staged file means that it was shown."""
    seen: list[list[str]] = []
    staged = bench.stage(b"ours")

    def showing(trace: str) -> None:
        assert trace == ""  # nothing is replaced
        seen.append(os.listdir(bench.root))

    commit = Commit(bench.store, bench.staging, staged, showing=showing)
    await commit.bring(durable=False)
    await commit.show(b"f", None)
    staged.close()
    assert seen == [[".volfs"]]
    assert (bench.root / "f").exists()
