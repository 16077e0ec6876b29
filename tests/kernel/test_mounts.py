"""The mount table: parsing, what is found where, and who holds it."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
from pathlib import Path

import pytest

from volfs.kernel import mounts, tuning

_TABLE = b"""\
22 28 0:21 / /sys rw,nosuid - sysfs sysfs rw
36 28 8:1 /sub\\040dir /mnt/a\\040b\\011c\\134d rw,noatime master:1 shared:2 - ext4 /dev/sda1 rw
41 28 0:300 / /Volumes/\\303\\251 rw - fuse.volfs volfs:/srv rw,user_id=0
broken line
42 28 0:301 / /x rw - tmpfs
"""

bind = pytest.mark.skipif(os.geteuid() != 0, reason="only root may bind-mount; make test runs as root")


def test_parse() -> None:
    """Octal escapes, optional fields and odd lines."""
    first, second, third = mounts.mounts(_TABLE)

    assert (first.fstype, first.mountpoint, first.is_volfs) == ("sysfs", Path("/sys"), False)
    assert (second.device, second.root) == ((8, 1), Path("/sub dir"))
    assert second.mountpoint == Path("/mnt/a b\tc\\d")
    assert (third.is_volfs, third.source, third.mountpoint) == (True, "volfs:/srv", Path("/Volumes/é"))


def test_the_real_table_is_understood() -> None:
    """Every line of this machine's own table is parsed."""
    lines = Path("/proc/self/mountinfo").read_bytes().splitlines()

    assert len(mounts.mounts()) == len(lines)
    found = mounts.find(Path("/proc"))
    assert found is not None
    assert found.fstype == "proc"


def test_find_is_exact(tmp_path: Path) -> None:
    """A directory inside a mount is not one; a link to one is."""
    (tmp_path / "link").symlink_to("/proc")

    assert mounts.find(tmp_path) is None
    assert mounts.find(tmp_path / "link") == mounts.find(Path("/proc"))
    assert mounts.find(tmp_path / "missing") is None
    assert mounts.is_dead(tmp_path) is False


_HOLD = """
import ctypes, mmap, os, sys
how, directory = sys.argv[1:]
if how == "cwd":
    os.chdir(directory)
else:
    file = open(os.path.join(directory, "f"), "r+b")
    if how == "map":
        libc = ctypes.CDLL(None)  # Python's own mapping keeps a descriptor
        libc.mmap.restype = ctypes.c_void_p
        libc.mmap(None, ctypes.c_size_t(mmap.PAGESIZE), 1, mmap.MAP_SHARED, file.fileno(), ctypes.c_long(0))
        file.close()
print("holding", flush=True)
sys.stdin.read()
"""


@bind
@pytest.mark.parametrize("how", ["cwd", "fd", "map"])
def test_holders(tmp_path: Path, how: str) -> None:
    """A working directory, a descriptor and a mapping each make a holder; EBUSY until it ends."""
    here = tmp_path / "tmpfs"
    here.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", here], check=True)
    try:
        (here / "f").write_bytes(b"x" * mmap.PAGESIZE)
        with subprocess.Popen(
            [sys.executable, "-c", _HOLD, how, here], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            assert process.stdout.readline() == b"holding\n"
            (holder,) = mounts.holders(here)
            with pytest.raises(OSError) as busy:
                mounts.unmount(here, lazy=False)
            process.stdin.close()
            process.wait(10)

        assert busy.value.errno == errno.EBUSY
        assert holder.pid == process.pid
        assert holder.command.startswith(sys.executable)
        assert holder.path == str(here if how == "cwd" else here / "f")
        assert mounts.holders(here) == []
        mounts.unmount(here, lazy=False)
    finally:
        if mounts.find(here) is not None:
            mounts.unmount(here, lazy=True)
    assert mounts.find(here) is None


@bind
def test_the_topmost_of_several_is_found(tmp_path: Path) -> None:
    """Where mounts lie over one another, the last one is what is there."""
    for source in ("lower", "upper"):
        subprocess.run(["mount", "-t", "tmpfs", source, tmp_path], check=True)
    found = mounts.find(tmp_path)
    mounts.unmount(tmp_path, lazy=False)
    below = mounts.find(tmp_path)
    mounts.unmount(tmp_path, lazy=False)

    assert [mount.source if mount else None for mount in (found, below)] == ["upper", "lower"]
    assert mounts.find(tmp_path) is None


@bind
def test_below(tmp_path: Path) -> None:
    """Mounts inside a directory, not beside it and not itself."""
    for name in ("a", "ab"):
        (tmp_path / name).mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path / name], check=True)
    try:
        assert [mount.mountpoint for mount in mounts.below(tmp_path)] == [tmp_path / "a", tmp_path / "ab"]
        assert mounts.below(tmp_path / "a") == []
    finally:
        for name in ("a", "ab"):
            mounts.unmount(tmp_path / name, lazy=True)


def test_only_fuse_mounts_are_tuned(tmp_path: Path) -> None:
    """Another file system, or none, has no FUSE connection and is left alone."""
    assert tuning.fuse_connection(Path("/proc")) is None
    assert tuning.tune(Path("/proc")) == {}
    assert tuning.tune(tmp_path) == {}


def test_large_minor_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection is named by the kernel's own number, also above 255 mounts."""
    mount = mounts.Mount((0, 300), Path("/"), Path("/m"), "fuse.volfs", "x")
    monkeypatch.setattr(tuning, "find", lambda path: mount)

    assert tuning.fuse_connection(Path("/m")) == 300
