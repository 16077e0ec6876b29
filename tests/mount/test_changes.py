"""Changes by others: each kind, by mount and by hand, seen by open, handle, mapping, listing (R1, R2, R3).

A new open sees a change at once. What is only looked at sees it within the window. A handle or a mapping
follows
a change of its own object, and keeps a version that was replaced.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import Area
from tests.mount.calls import error_of
from tests.mount.peers import Mapping, WholeReader
from tests.mount.volume import PLAIN, eventually

SIZE = 20_000
BEFORE = b"a" * SIZE
CUT = 5_000
EXPECTED = {
    "create": b"b" * SIZE,
    "overwrite": b"b" * SIZE,
    "replace": b"b" * SIZE,
    "append": BEFORE + b"c" * CUT,
    "truncate": BEFORE[:CUT],
    "rename": BEFORE,
}


def change(target: Path, kind: str) -> None:
    """One kind of change of a file, or of its name."""
    if kind == "create":
        target.write_bytes(EXPECTED[kind])
    elif kind == "overwrite":
        with target.open("r+b", 0) as file:
            file.write(EXPECTED[kind])
    elif kind == "replace":
        target.with_name("new").write_bytes(EXPECTED[kind])
        target.with_name("new").rename(target)
    elif kind == "append":
        with target.open("ab", 0) as file:
            file.write(b"c" * CUT)
    elif kind == "truncate":
        os.truncate(target, CUT)
    elif kind == "rename":
        target.rename(target.with_name("g"))
    else:
        target.unlink()


class Scene:
    """A file as one side knows it in every way, and a change that the other side makes."""

    def __init__(self, area: Area, side: str, stack: ExitStack) -> None:
        self.area = area
        self.side = side
        self.other = area.there if side == "mount" else area.back
        self.path = area.here / "d/f"
        self._stack = stack

    def know(self) -> None:
        """Read the file in every way, so that every cache on the way holds it."""
        self.path.parent.mkdir()
        self.path.write_bytes(BEFORE)
        self.area.settle()
        assert (self.other / "d/f").read_bytes() == BEFORE
        assert self.path.read_bytes() == BEFORE
        assert self.names() == ["f"]
        self.handle = self._stack.enter_context(self.path.open("rb", 0))
        assert self.handle.read() == BEFORE
        self.mapping = self._stack.enter_context(Mapping(self.path))
        assert self.mapping.values(SIZE) == "a"

    def change(self, kind: str) -> None:
        """Change the file by the other road."""
        change(self.other / "d/f", kind)

    def names(self) -> list[str]:
        return sorted(os.listdir(self.path.parent))

    def in_handle(self) -> bytes:
        """All that the open handle reads now; more than was there before, if there is more."""
        return os.pread(self.handle.fileno(), SIZE * 2, 0)

    def within(self, condition: object, what: str) -> None:
        assert callable(condition)
        eventually(condition, self.area.volume.window, what)

    def keeps(self) -> bool:
        """Whether handle and mapping still have the version from before."""
        return self.in_handle() == BEFORE and self.mapping.values(SIZE) == "a"


@pytest.fixture(params=["mount", "hand"])
def scene(request: pytest.FixtureRequest, area: Area) -> Iterator[Scene]:
    """The file, not yet known, and who will change it."""
    if request.param == "mount" and not PLAIN:
        assert area.there.exists()
    with ExitStack() as stack:
        yield Scene(area, request.param, stack)


def test_create(scene: Scene) -> None:
    """A new file is found under a name that was missing a moment ago, and appears in a listing known as
    empty.
    """
    scene.path.parent.mkdir()
    assert scene.names() == []
    assert error_of(scene.path.open) == "ENOENT"
    scene.change("create")
    assert scene.path.read_bytes() == EXPECTED["create"]
    scene.within(lambda: scene.names() == ["f"], "the new file is listed")


def test_create_is_listed_without_asking_for_it(scene: Scene) -> None:
    """A listing that was read twice, and is empty, shows a new file within the window."""
    scene.path.parent.mkdir()
    assert scene.names() == scene.names() == []
    scene.change("create")
    scene.within(lambda: scene.names() == ["f"], "the new file is listed")


@pytest.mark.parametrize("kind", ["overwrite", "replace", "append", "truncate"])
def test_new_content(scene: Scene, kind: str) -> None:
    """A new open has the new content at once; stat has its size and listing its name within the window."""
    scene.know()
    expected = EXPECTED[kind]
    scene.change(kind)
    assert scene.path.read_bytes() == expected
    scene.within(lambda: scene.path.stat().st_size == len(expected), "stat shows the new size")
    scene.within(lambda: scene.names() == ["f"], "the listing shows what is there")
    real = os.stat(scene.area.back / "d/f")
    scene.within(lambda: scene.path.stat().st_mtime_ns == real.st_mtime_ns, "stat shows the new mtime")


@pytest.mark.parametrize("kind", ["overwrite", "replace", "append", "truncate"])
def test_stat_without_an_open(scene: Scene, kind: str) -> None:
    """R2: stat shows a change within the window though nobody opens the file again."""
    scene.know()
    scene.change(kind)
    real = os.stat(scene.area.back / "d/f")
    scene.within(
        lambda: (
            (scene.path.stat().st_size, scene.path.stat().st_mtime_ns) == (real.st_size, real.st_mtime_ns)
        ),
        "stat shows what the backing has",
    )


def test_handle_follows_an_overwrite_in_place(scene: Scene) -> None:
    """Modified in place by hand: handle and mapping move to the new content; by a mount it is a new object:
    they keep.
    """
    scene.know()
    scene.change("overwrite")
    if scene.side == "mount" and not PLAIN:
        assert scene.path.read_bytes() == EXPECTED["overwrite"]
        assert scene.keeps()
        return
    scene.within(lambda: scene.in_handle() == EXPECTED["overwrite"], "the handle reads the new bytes")
    scene.within(lambda: scene.mapping.values(SIZE) == "b", "the mapping shows the new bytes")


def test_handle_goes_on_into_a_grown_file(scene: Scene) -> None:
    """Grown by hand: a reader at the end goes on into the new bytes; grown by a mount: the old version, or
    all of the new.
    """
    scene.know()
    scene.change("append")
    if scene.side == "mount" and not PLAIN:
        assert scene.path.read_bytes() == EXPECTED["append"]
        assert scene.in_handle() in (BEFORE, EXPECTED["append"])
        return
    scene.within(lambda: os.pread(scene.handle.fileno(), CUT, SIZE) == b"c" * CUT, "the new bytes")
    assert scene.handle.read() == b"c" * CUT
    assert scene.mapping.values(SIZE) == "a"
    assert os.fstat(scene.handle.fileno()).st_size == SIZE + CUT


def test_handle_of_a_truncated_file(scene: Scene) -> None:
    """Truncated by hand: the handle ends where the file ends; by a mount: the old version stays whole."""
    scene.know()
    scene.change("truncate")
    if scene.side == "mount" and not PLAIN:
        assert scene.path.read_bytes() == EXPECTED["truncate"]
        assert scene.keeps()
        return
    scene.within(lambda: scene.in_handle() == EXPECTED["truncate"], "the handle ends at the new end")
    scene.within(lambda: os.fstat(scene.handle.fileno()).st_size == CUT, "fstat shows the new size")
    assert scene.mapping.values(CUT) == "a"


def test_handle_keeps_a_replaced_version(scene: Scene) -> None:
    """Replaced by rename: handle and mapping keep the old version whole; the new file is another inode."""
    scene.know()
    number = scene.path.stat().st_ino
    scene.change("replace")
    assert scene.path.read_bytes() == EXPECTED["replace"]
    assert scene.path.stat().st_ino != number
    assert scene.keeps()
    scene.area.volume.refresh()
    assert scene.keeps()
    assert os.fstat(scene.handle.fileno()).st_ino == number
    assert os.fstat(scene.handle.fileno()).st_size == SIZE


def test_rename(scene: Scene) -> None:
    """Renamed: the new name opens at once, the old one does not; handle and mapping go on, the listing
    follows.
    """
    scene.know()
    assert error_of((scene.path.parent / "g").open) == "ENOENT"
    scene.change("rename")
    assert (scene.path.parent / "g").read_bytes() == EXPECTED["rename"]
    assert error_of(scene.path.read_bytes) == "ENOENT"
    scene.within(lambda: scene.names() == ["g"], "the listing shows the new name")
    scene.within(lambda: error_of(os.stat, scene.path) == "ENOENT", "stat of the old name fails")
    assert scene.keeps()


def test_delete(scene: Scene) -> None:
    """Deleted: open fails at once, stat and listing within the window; handle and mapping keep the bytes."""
    scene.know()
    scene.change("delete")
    assert error_of(scene.path.read_bytes) == "ENOENT"
    scene.within(lambda: scene.names() == [], "the listing is empty")
    scene.within(lambda: error_of(os.stat, scene.path) == "ENOENT", "stat fails")
    assert scene.keeps()


def test_stat_after_delete_without_an_open(scene: Scene) -> None:
    """stat of a deleted name fails within the window though nobody opens it."""
    scene.know()
    scene.change("delete")
    scene.within(lambda: error_of(os.stat, scene.path) == "ENOENT", "stat fails")


def test_directories(scene: Scene) -> None:
    """A directory tree moved and removed by the other side: paths below follow."""
    scene.know()
    (scene.area.here / "d/e").mkdir()
    (scene.area.here / "d/e/x").write_text("x")
    scene.area.settle()
    assert (scene.area.here / "d/e/x").read_text() == "x"
    (scene.other / "d").rename(scene.other / "moved")
    assert (scene.area.here / "moved/e/x").read_text() == "x"
    assert error_of((scene.area.here / "d/e/x").read_text) == "ENOENT"
    scene.within(lambda: os.listdir(scene.area.here) == ["moved"], "the listing shows the move")
    (scene.other / "moved/e/x").unlink()
    (scene.other / "moved/e").rmdir()
    scene.within(lambda: os.listdir(scene.area.here / "moved") == ["f"], "the removed directory is gone")
    assert scene.in_handle() == BEFORE


def test_attributes(scene: Scene) -> None:
    """chmod, chown, utimes and xattrs by the other side show within the window."""
    scene.know()
    target = scene.other / "d/f"
    target.chmod(0o640)
    os.chown(target, 7, 8)
    os.utime(target, ns=(10**18, 10**18))
    os.setxattr(target, "user.k", b"v")

    def seen() -> bool:
        got = scene.path.stat()
        return (got.st_mode & 0o777, got.st_uid, got.st_gid, got.st_mtime_ns) == (0o640, 7, 8, 10**18)

    scene.within(seen, "the attributes")
    assert os.getxattr(scene.path, "user.k") == b"v"
    assert scene.in_handle() == BEFORE


def test_same_size_and_mtime(area: Area) -> None:
    """An overwrite by hand that restores size and mtime is seen all the same: ctime tells."""
    for i in range(10):
        back, here = area.back / f"s{i}", area.here / f"s{i}"
        back.write_bytes(b"aaaa")
        before = back.stat()
        assert here.read_bytes() == b"aaaa"
        with back.open("r+b", 0) as file:
            file.write(b"bbbb")
        os.utime(back, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert here.read_bytes() == b"bbbb"


def test_many_quick_changes_of_one_file(area: Area) -> None:
    """Two hundred changes by hand within clock ticks: each following open has exactly the last one."""
    back, here = area.back / "q", area.here / "q"
    for i in range(200):
        if i % 2:
            back.write_bytes(b"%06d" % i)
        else:
            (area.back / "q.tmp").write_bytes(b"%06d" % i)
            (area.back / "q.tmp").rename(back)
        assert here.read_bytes() == b"%06d" % i


@pytest.mark.timeout(110)
@pytest.mark.parametrize(("side", "rounds"), [("hand", 200), ("mount", 60)])
def test_overlapped_replacements_are_never_mixed(area: Area, side: str, rounds: int) -> None:
    """W2: a reader overlapping replacements of a 64 MiB file sees whole versions only, and the last one at
    the end.
    """
    size = 64 << 20
    other = area.there if side == "mount" else area.back
    stop = area.volume.base / f"stop-{area.name}"

    def put(value: int) -> None:
        piece = bytes([value]) * (8 << 20)
        with (other / "tmp").open("wb", 0) as file:
            for _ in range(size // len(piece)):
                file.write(piece)
        (other / "tmp").rename(other / "big")

    put(0)
    reader = WholeReader(area.here / "big", size, stop)
    for i in range(1, rounds + 1):
        put(i % 251)
        if reader.failed:
            break
    passes, last, distinct = reader.finish()

    assert last == rounds % 251
    assert passes >= 5
    assert distinct >= 4, f"{passes} passes overlapped nothing"


def test_tail_of_a_growing_file(area: Area) -> None:
    """A reader at the end of a file that grows by hand gets each line, in order, within the window."""
    back = area.back / "log"
    back.write_text("0\n")
    with (area.here / "log").open() as reader:
        assert reader.readline() == "0\n"
        for i in range(1, 6):
            with back.open("a") as writer:
                writer.write(f"{i}\n")
            assert eventually(reader.readline, area.volume.window, f"line {i}") == f"{i}\n"


def test_readers_follow_a_path(area: Area, tmp_path: Path) -> None:
    """A config file that is replaced by hand is read new at each open, by 50 versions, though stat was
    cached.
    """
    path = area.here / "c"
    for i in range(50):
        (area.back / "c.new").write_text(f"version {i}" * (i + 1))
        (area.back / "c.new").rename(area.back / "c")
        assert path.read_text() == f"version {i}" * (i + 1)
        assert path.stat().st_size == len(f"version {i}") * (i + 1)


@pytest.mark.parametrize("held", [False, True], ids=["closed", "held-open"])
@pytest.mark.parametrize("kind", ["append", "truncate", "overwrite"])
@pytest.mark.parametrize("side", ["hand", "mount"])
def test_open_right_after_a_change(area: Area, side: str, kind: str, held: bool) -> None:
    """A hundred times: the first open after a change has its size and bytes, though the kernel knew the file
    (R1).
    """
    other = area.there if side == "mount" else area.back
    stale = []
    for i in range(100):
        path = area.here / f"f{i}"
        path.write_bytes(BEFORE)
        area.settle()
        assert (other / f"f{i}").read_bytes() == path.read_bytes() == BEFORE
        with ExitStack() as stack:
            if held:
                stack.enter_context(path.open("rb", 0)).read()
            change(other / f"f{i}", kind)
            got = path.read_bytes()
        if got != EXPECTED[kind]:
            stale.append((i, len(got)))
    assert stale == [], f"{len(stale)} of 100 opens were stale"


def test_deleted_by_hand_after_close_stays_deleted(area: Area) -> None:
    """An empty or written file that was closed here and deleted by hand at once is not made again by the
    daemon.
    """
    for i in range(100):
        (area.here / f"e{i}").touch()
        (area.back / f"e{i}").unlink()
        (area.here / f"w{i}").write_text("x")
        (area.back / f"w{i}").unlink()
    area.settle()
    eventually(lambda: os.listdir(area.here) == [], area.volume.window, "nothing is listed")
    assert os.listdir(area.back) == []
