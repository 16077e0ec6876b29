"""Preflight: each obstacle to a mount has a line of its own that says what to do."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from volfs.config import MountConfig
from volfs.errors import SetupError
from volfs.kernel import mounts, preflight
from volfs.kernel.direct import device

bind = pytest.mark.skipif(os.geteuid() != 0, reason="only root may bind-mount; make test runs as root")


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Any]:
    """Three directories that are fit to mount."""
    made = {name: tmp_path / name for name in ("backing", "mountpoint", "cache_dir")}
    for path in made.values():
        path.mkdir()
    return made


@pytest.fixture
def unprivileged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As a user without capabilities, with the helper installed."""
    status = tmp_path / "status"
    status.write_text("Name:\tx\nCapEff:\t0000000000000000\n")
    monkeypatch.setattr(preflight, "_PROC_STATUS", status)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(preflight.shutil, "which", lambda name: f"/usr/bin/{name}")


def obstacle(places: dict[str, Any], **more: Any) -> str:
    """The line that a mount of these places fails with."""
    with pytest.raises(SetupError) as caught:
        preflight.check(MountConfig(**places | more))
    message = str(caught.value)
    assert "\n" not in message
    return message


@bind
def test_nothing_in_the_way(places: dict[str, Any]) -> None:
    """Fit directories pass, also a mount point with files in it and a cache directory still to be made."""
    (places["mountpoint"] / "file").touch()
    places["cache_dir"].rmdir()
    preflight.check(MountConfig(**places, allow_other=True))


def test_no_device(places: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No /dev/fuse: the module, or the container's options."""
    monkeypatch.setattr(device, "_DEVICE", tmp_path / "fuse")

    assert obstacle(places).startswith(f"there is no {tmp_path}/fuse: load the kernel module (modprobe fuse)")


def test_device_not_for_us(places: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A device that may not be opened is another matter than none."""
    monkeypatch.setattr(device, "_DEVICE", tmp_path)  # a directory does not open for writing

    assert "cannot be opened (Is a directory): allow this user" in obstacle(places)


def test_no_capability(places: dict[str, Any], unprivileged: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root in a container without CAP_SYS_ADMIN."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    assert obstacle(places).startswith("root lacks the capability CAP_SYS_ADMIN here: ")


def test_no_helper(places: dict[str, Any], unprivileged: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """fusermount3 is needed by users, and by them only."""
    monkeypatch.setattr(preflight.shutil, "which", lambda name: None)

    assert obstacle(places).endswith("install the package fuse3")


def test_allow_other(
    places: dict[str, Any], unprivileged: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A user needs the line in fuse.conf; a comment is not the line."""
    conf = tmp_path / "fuse.conf"
    monkeypatch.setattr(preflight, "_FUSE_CONF", conf)

    for text in ("", "# user_allow_other\n", "user_allow_others\n"):
        conf.write_text(text)
        assert f"needs the line user_allow_other in {conf}: " in obstacle(places, allow_other=True)
    conf.unlink()
    assert f"needs the line user_allow_other in {conf}: " in obstacle(places, allow_other=True)
    conf.write_text("mount_max = 3\n  user_allow_other \n")
    preflight.check(MountConfig(**places, allow_other=True))
    preflight.check(MountConfig(**places, allow_other=False))


def test_mountpoint(places: dict[str, Any]) -> None:
    """Missing, a file, in use: three lines."""
    point = places["mountpoint"]
    point.rmdir()
    assert obstacle(places) == f"mount point {point} does not exist: create it: mkdir -p {point}"
    point.touch()
    assert obstacle(places) == f"mount point {point} is not a directory: name a directory"
    places["mountpoint"] = Path("/proc")
    assert obstacle(places).startswith("mount point /proc is in use: proc (proc) is mounted there; ")


def test_backing(places: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing, a file, not to be read: three lines."""
    backing = places["backing"]
    backing.rmdir()
    assert obstacle(places).startswith(f"backing directory {backing} does not exist: check the name")
    backing.touch()
    assert obstacle(places).startswith(f"backing {backing} is not a directory: ")
    backing.unlink()
    backing.mkdir()

    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "scandir", refuse)
    assert obstacle(places).startswith(f"backing directory {backing} cannot be read (Permission denied): ")


@pytest.mark.parametrize("inner", ["backing", "mountpoint", "cache_dir"])
@pytest.mark.parametrize("outer", ["backing", "mountpoint", "cache_dir"])
@pytest.mark.parametrize("depth", ["itself", "in it", "deeper"])
def test_inside_each_other(places: dict[str, Any], inner: str, outer: str, depth: str) -> None:
    """None of the three may be another one or lie inside it."""
    if inner == outer:
        return
    places[inner] = places[outer] / {"itself": ".", "in it": "x", "deeper": "x/y/z"}[depth]
    places[inner].mkdir(parents=True, exist_ok=True)

    assert "choose directories apart from each other" in obstacle(places)


def test_a_new_cache_directory_inside_the_backing(places: dict[str, Any]) -> None:
    """A cache directory that does not exist yet is judged by where it will be; nothing is made there."""
    places["cache_dir"] = places["backing"] / "new/cache"

    message = obstacle(places)
    assert f"the cache directory {places['backing']}/new/cache lies inside the backing directory" in message
    assert list(places["backing"].iterdir()) == []


@pytest.fixture
def bound(tmp_path: Path) -> Iterator[Any]:
    """Binds a directory elsewhere for the length of the test."""
    made: list[Path] = []

    def make(source: Path, name: str) -> Path:
        target = tmp_path / name
        target.mkdir(parents=True, exist_ok=True)
        subprocess.run(["mount", "--bind", source, target], check=True)
        made.append(target)
        return target

    yield make
    for target in reversed(made):
        mounts.unmount(target, lazy=True)


@bind
def test_the_backing_under_another_name(places: dict[str, Any], bound: Any) -> None:
    """A bind mount of the backing, of a part of it, or of something into it is still the backing."""
    (places["backing"] / "part/deep").mkdir(parents=True)
    whole = bound(places["backing"], "whole")
    assert "choose directories apart" in obstacle(places | {"cache_dir": whole})
    assert "choose directories apart" in obstacle(places | {"cache_dir": whole / "part"})
    assert "choose directories apart" in obstacle(
        places | {"cache_dir": bound(places["backing"] / "part", "p") / "deep"}
    )


@bind
def test_the_backing_under_another_name_in_a_chroot(
    places: dict[str, Any], bound: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the mount table shows less than there is, the directories themselves are compared."""
    whole = bound(places["backing"], "whole")
    (whole / "new").mkdir()
    monkeypatch.setattr(mounts, "mounts", list)

    assert "choose directories apart" in obstacle(places | {"cache_dir": whole / "new"})


@bind
def test_a_cache_that_is_bound_into_the_backing(places: dict[str, Any], bound: Any, tmp_path: Path) -> None:
    """The cache directory shows inside the backing by way of a bind mount there."""
    (tmp_path / "elsewhere/cache").mkdir(parents=True)
    bound(tmp_path / "elsewhere", "backing/shown")

    assert "choose directories apart" in obstacle(places | {"cache_dir": tmp_path / "elsewhere/cache"})
    preflight.check(MountConfig(**places))
