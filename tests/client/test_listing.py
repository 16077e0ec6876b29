"""Which files a data set is made of: patterns, hidden names, links, what is missing, fingerprints."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from volfs_client import NoFiles
from volfs_client.listing import Filter, Listing, find


def make(root: Path, *names: str) -> Path:
    """Files of these names, each as long as its name."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(os.fsencode(name))
    return root


def names(root: Path | Iterable[Path], **wanted: object) -> list[str]:
    """The relative paths found."""
    given = [root] if isinstance(root, Path) else list(root)
    return [file.name for file in find(given, Filter(**wanted))]  # type: ignore[arg-type]


TREE = (
    *("b.jpg", "a.jpg", "c.txt", "x/d.jpg", "x/y/e.jpg", "z/d.jpg"),
    *("_SUCCESS", ".a.crc", "_temporary/f.jpg", "x/.hidden/g.jpg", ".volfs/h.jpg"),
)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, ["a.jpg", "b.jpg", "c.txt", "x/d.jpg", "x/y/e.jpg", "z/d.jpg"]),
        ({"recursive": False}, ["a.jpg", "b.jpg", "c.txt"]),
        ({"pattern": ("*.jpg",)}, ["a.jpg", "b.jpg", "x/d.jpg", "x/y/e.jpg", "z/d.jpg"]),
        ({"pattern": ("**/*.jpg",)}, ["a.jpg", "b.jpg", "x/d.jpg", "x/y/e.jpg", "z/d.jpg"]),
        ({"pattern": ("**",)}, ["a.jpg", "b.jpg", "c.txt", "x/d.jpg", "x/y/e.jpg", "z/d.jpg"]),
        ({"pattern": ("x/*.jpg",)}, ["x/d.jpg"]),
        ({"pattern": ("x/**/*.jpg",)}, ["x/d.jpg", "x/y/e.jpg"]),
        ({"pattern": ("x/**",)}, ["x/d.jpg", "x/y/e.jpg"]),
        ({"pattern": ("*/d.jpg",)}, ["x/d.jpg", "z/d.jpg"]),
        ({"pattern": ("[ab].*", "c.tx?")}, ["a.jpg", "b.jpg", "c.txt"]),
        ({"pattern": ("[!a].jpg",)}, ["b.jpg", "x/d.jpg", "x/y/e.jpg", "z/d.jpg"]),
        ({"exclude": ("x",)}, ["a.jpg", "b.jpg", "c.txt", "z/d.jpg"]),
        ({"exclude": ("d.jpg",)}, ["a.jpg", "b.jpg", "c.txt", "x/y/e.jpg"]),
        ({"exclude": ("x/**",), "pattern": ("*.jpg",)}, ["a.jpg", "b.jpg", "z/d.jpg"]),
        (
            {"include_hidden": True, "pattern": ("*.jpg", "_*", ".*")},
            [".a.crc", "_SUCCESS", "_temporary/f.jpg", "a.jpg", "b.jpg",
             "x/.hidden/g.jpg", "x/d.jpg", "x/y/e.jpg", "z/d.jpg"],
        ),
    ],
)  # fmt: skip
def test_what_is_wanted(tmp_path: Path, wanted: dict[str, object], found: list[str]) -> None:
    """C5: A table of patterns and what they find, sorted by path; the reserved name never."""
    assert names(make(tmp_path, *TREE), **wanted) == found


def test_names_are_any_bytes(tmp_path: Path) -> None:
    """Line feeds, brackets, and bytes that are no text are part of a name."""
    odd = ["a\nb.x", "[x].x", "a b.x", os.fsdecode(b"\xff\xfe.x"), "ä.x", "a+.x"]
    make(tmp_path, *odd)
    listing = find([tmp_path], Filter(pattern=("*.x",)))
    assert sorted(file.name for file in listing) == sorted(odd)
    assert all(os.path.exists(file.path) for file in listing)


def test_files_named_outright_keep_their_order(tmp_path: Path) -> None:
    """Several paths in the order given: files as they are, hidden or not, and directories sorted."""
    make(tmp_path, "d/2", "d/1", "e/_x", "f")
    listing = find([tmp_path / "f", tmp_path / "e/_x", tmp_path / "d", tmp_path / "d/2"], Filter())
    given = [os.path.relpath(file.path, tmp_path) for file in listing]
    assert given == ["f", "e/_x", "d/1", "d/2", "d/2"]


def test_links_are_followed_but_not_up(tmp_path: Path) -> None:
    """A linked directory is looked into, one that leads up is not, and a link to nowhere is no file."""
    make(tmp_path, "data/a", "other/b")
    (tmp_path / "data/more").symlink_to(tmp_path / "other")
    (tmp_path / "data/up").symlink_to(tmp_path)
    (tmp_path / "data/self").symlink_to(tmp_path / "data")
    (tmp_path / "data/nowhere").symlink_to(tmp_path / "missing")
    (tmp_path / "data/file").symlink_to(tmp_path / "other/b")
    assert names(tmp_path / "data") == ["a", "file", "more/b"]


def test_nothing_found_says_where_and_how(tmp_path: Path) -> None:
    """C5: NoFiles names the directory, the pattern, and the option for hidden names."""
    make(tmp_path, "_SUCCESS")
    with pytest.raises(NoFiles, match=r"include_hidden=True") as caught:
        names(tmp_path)
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(NoFiles, match=r"\*\.jpg"):
        names(tmp_path, pattern=("*.jpg",))
    with pytest.raises(NoFiles, match="no paths"):
        names([])


def test_what_cannot_be_listed_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C5: A missing path, and a directory below that fails: never a listing without some files."""
    make(tmp_path, "a", "x/b")
    with pytest.raises(FileNotFoundError):
        names(tmp_path / "missing")
    _fail_at(monkeypatch, tmp_path / "x", PermissionError(13, "denied"))
    with pytest.raises(PermissionError):
        names(tmp_path)
    _fail_at(monkeypatch, tmp_path / "x", FileNotFoundError(2, "removed"))
    assert names(tmp_path) == ["a"]  # removed between the two calls, as if it had been before
    _fail_at(monkeypatch, tmp_path, FileNotFoundError(2, "removed"))
    with pytest.raises(FileNotFoundError):
        names(tmp_path)


def _fail_at(monkeypatch: pytest.MonkeyPatch, directory: Path, error: OSError) -> None:
    real: Callable[[str], object] = os.scandir

    def scandir(path: str) -> object:
        if os.path.normpath(path) == str(directory):
            raise error
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)


def test_a_fingerprint_is_of_names_and_sizes(tmp_path: Path) -> None:
    """C10: It changes with a name or a size; not with the place, the times, or the order of creation."""
    make(tmp_path / "one", "a", "x/b")
    make(tmp_path / "two", "x/b", "a")
    os.utime(tmp_path / "two/a", (1, 1))
    one, two = (find([tmp_path / name], Filter()) for name in ("one", "two"))
    assert one.fingerprint == two.fingerprint
    (tmp_path / "two/a").write_text("longer")
    assert find([tmp_path / "two"], Filter()).fingerprint != one.fingerprint
    make(tmp_path / "one", "c")
    assert find([tmp_path / "one"], Filter()).fingerprint != one.fingerprint


def test_a_listing_is_a_sequence_of_any_roots() -> None:
    """Roots without files, at any place, take nothing from the others; a copy is the same."""
    found = [("/e", []), ("/r", [("a", 1), ("b/c", 2)]), ("/f", []), ("/s", [("d", 3)]), ("/g", [])]
    listing: Listing = pickle.loads(pickle.dumps(Listing(found)))
    assert [file.path for file in listing] == ["/r/a", "/r/b/c", "/s/d"]
    assert len(listing) == 3 and listing.fingerprint == Listing(found).fingerprint
    for index in (-1, 3):
        with pytest.raises(IndexError):
            listing[index]
