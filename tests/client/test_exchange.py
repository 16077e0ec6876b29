"""A directory takes another one's place, also where the file system cannot exchange names."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from volfs_client import exchange


@pytest.fixture(params=[True, False], ids=["exchanges", "cannot"])
def base(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a new one to publish; on a file system that has renameat2's flags, or not."""
    if not request.param:

        def cannot(old: str, new: str, flags: int) -> None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

        monkeypatch.setattr(exchange, "_rename", cannot)
    make(tmp_path / "new", "new")
    return tmp_path


def make(path: Path, text: str) -> None:
    """A directory with one file."""
    path.mkdir()
    (path / "file").write_text(text)


@pytest.mark.parametrize("replace", [True, False])
def test_a_name_that_is_free(base: Path, replace: bool) -> None:
    """It is taken."""
    exchange.publish(str(base / "new"), str(base / "target"), replace=replace)
    assert (base / "target/file").read_text() == "new"
    assert os.listdir(base) == ["target"]


def test_a_name_that_is_taken(base: Path) -> None:
    """EEXIST, or the old one goes away when the new one is there; a file too."""
    make(base / "target", "old")
    with pytest.raises(FileExistsError):
        exchange.publish(str(base / "new"), str(base / "target"), replace=False)
    assert (base / "target/file").read_text() == "old"
    exchange.publish(str(base / "new"), str(base / "target"), replace=True)
    assert (base / "target/file").read_text() == "new"
    assert os.listdir(base) == ["target"]
    (base / "name").write_text("file")
    os.rename(base / "target", base / "new")
    exchange.publish(str(base / "new"), str(base / "name"), replace=True)
    assert (base / "name/file").read_text() == "new"
    assert os.listdir(base) == ["name"]


def test_the_old_one_comes_back(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the second of two steps fails."""
    make(base / "target", "old")
    rename = os.rename

    def refuse(old: str, new: str) -> None:
        if old.endswith("new"):
            raise OSError(errno.EIO, "refused")
        rename(old, new)

    monkeypatch.setattr(os, "rename", refuse)
    monkeypatch.setattr(exchange, "_rename", lambda *a: (_ for _ in ()).throw(OSError(errno.EINVAL, "no")))
    with pytest.raises(OSError, match="refused"):
        exchange.publish(str(base / "new"), str(base / "target"), replace=True)
    assert (base / "target/file").read_text() == "old"
    assert sorted(os.listdir(base)) == ["new", "target"]
