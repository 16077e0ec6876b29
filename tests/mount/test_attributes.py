"""Attributes: modes, owners, times, extended attributes, statfs, and who may do what."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import time
from pathlib import Path

import pytest

from tests.conftest import Area
from tests.mount.calls import NOBODY, as_user, error_of
from tests.mount.volume import PLAIN

pytestmark = pytest.mark.modes("local", "cached", "background")

MOMENT = 1_579_091_696_123_456_789  # 2020-01-15, with all nine digits


def permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_times_survive_the_commit(area: Area) -> None:
    """mtime set by the user keeps its nanoseconds over the commit, in the backing and for cp -p."""
    path = area.here / "ut"
    path.write_text("x")
    os.utime(path, ns=(MOMENT - 1, MOMENT))
    assert path.stat().st_mtime_ns == MOMENT
    area.settle()
    assert path.stat().st_mtime_ns == MOMENT
    assert (area.back / "ut").stat().st_mtime_ns == MOMENT
    subprocess.run(["cp", "-p", str(path), str(area.here / "ut2")], check=True, timeout=20)
    assert (area.here / "ut2").stat().st_mtime_ns == MOMENT
    area.settle()
    assert (area.back / "ut2").stat().st_mtime_ns == MOMENT


def test_times_set_through_an_open_handle(area: Area) -> None:
    """futimens before the close (tar, rsync, cp) is kept by the commit at the close."""
    with (area.here / "f").open("wb") as file:
        file.write(b"abc")
        file.flush()
        os.utime(file.fileno(), ns=(MOMENT, MOMENT))
        os.fchmod(file.fileno(), 0o640)
    area.settle()
    for place in (area.here / "f", area.back / "f"):
        assert place.stat().st_mtime_ns == MOMENT
        assert permissions(place) == 0o640


def test_times_move_with_changes(area: Area) -> None:
    """A write moves mtime, chmod moves ctime only, a new name moves the directory's mtime."""
    path = area.here / "f"
    path.write_text("x")
    os.utime(path, ns=(MOMENT, MOMENT))
    os.utime(area.here, ns=(MOMENT, MOMENT))
    before = time.time_ns() - 50_000_000
    path.chmod(0o600)
    assert path.stat().st_mtime_ns == MOMENT
    assert path.stat().st_ctime_ns >= before
    with path.open("a") as file:
        file.write("y")
    assert path.stat().st_mtime_ns >= before
    (area.here / "new").touch()
    assert area.here.stat().st_mtime_ns >= before
    assert time.time_ns() - 60_000_000_000 < path.stat().st_mtime_ns < time.time_ns() + 1_000_000_000


def test_stat_agrees_before_and_after_the_commit(area: Area) -> None:
    """mtime as seen on the mount does not move by the commit itself (make, rsync and git compare it)."""
    path = area.here / "f"
    path.write_bytes(os.urandom(100_000))
    seen = path.stat()
    area.settle()
    again = path.stat()
    assert (again.st_mtime_ns, again.st_size, again.st_ino, again.st_mode) == (
        *(seen.st_mtime_ns, seen.st_size, seen.st_ino, seen.st_mode),
    )
    assert (area.back / "f").stat().st_mtime_ns == seen.st_mtime_ns


def test_modes_and_umask(area: Area) -> None:
    """The creation mode is cut by the umask; chmod is stored, setuid and sticky bits too; scripts run."""
    before = os.umask(0o027)
    try:
        (area.here / "f").touch()
        (area.here / "d").mkdir()
    finally:
        os.umask(before)
    assert (permissions(area.here / "f"), permissions(area.here / "d")) == (0o640, 0o750)
    script = area.here / "s"
    script.write_text("#!/bin/sh\necho hi\n")
    script.chmod(0o755)
    assert subprocess.run([script], capture_output=True, check=True, timeout=20).stdout == b"hi\n"
    (area.here / "d").chmod(0o3770)
    script.chmod(0o4711)
    area.settle()
    assert (permissions(area.back / "s"), permissions(area.back / "d")) == (0o4711, 0o3770)
    assert (permissions(script), permissions(area.here / "d")) == (0o4711, 0o3770)


def test_owners(area: Area) -> None:
    """chown is stored for files, directories and symlinks, and new files belong to their creator."""
    (area.here / "f").touch()
    (area.here / "d").mkdir()
    os.symlink("f", area.here / "l")
    for name, owner in (("f", 1000), ("d", 1001), ("l", 1002)):
        os.chown(area.here / name, owner, owner + 10, follow_symlinks=False)
    area.settle()
    for name, owner in (("f", 1000), ("d", 1001), ("l", 1002)):
        for place in (area.here, area.back):
            got = os.lstat(place / name)
            assert (got.st_uid, got.st_gid) == (owner, owner + 10)
    area.here.chmod(0o777)
    assert as_user(NOBODY, lambda: (area.here / "own").write_text("n")) == ""
    assert as_user(NOBODY, lambda: (area.here / "owndir").mkdir()) == ""
    assert as_user(NOBODY, lambda: os.symlink("x", area.here / "ownlink")) == ""
    area.settle()
    for name in ("own", "owndir", "ownlink"):
        assert os.lstat(area.here / name).st_uid == NOBODY
        assert os.lstat(area.back / name).st_uid == NOBODY
        assert os.lstat(area.back / name).st_gid == NOBODY


def test_set_group_id_directories_pass_their_group_on(area: Area) -> None:
    """In a directory with the setgid bit new names get its group, as ext4 does."""
    shared = area.here / "shared"
    shared.mkdir()
    os.chown(shared, 0, 4242)
    shared.chmod(0o2777)
    (shared / "f").write_text("x")
    (shared / "d").mkdir()
    area.settle()
    assert (area.back / "shared/f").stat().st_gid == 4242
    assert (shared / "d").stat().st_gid == 4242
    assert permissions(shared / "d") & stat.S_ISGID


def test_permissions_are_checked(area: Area) -> None:
    """Another user is refused what the modes refuse, and allowed what they allow."""
    (area.here / "secret").write_text("s")
    (area.here / "secret").chmod(0o600)
    (area.here / "open").write_text("o")
    (area.here / "open").chmod(0o644)
    (area.here / "shut").mkdir(mode=0o700)
    (area.here / "shut/f").write_text("f")
    assert as_user(NOBODY, lambda: (area.here / "secret").read_text()) == "EACCES"
    assert as_user(NOBODY, lambda: (area.here / "open").read_text()) == ""
    assert as_user(NOBODY, lambda: (area.here / "open").write_text("x")) == "EACCES"
    assert as_user(NOBODY, lambda: (area.here / "shut/f").read_text()) == "EACCES"
    assert as_user(NOBODY, lambda: (area.here / "new").write_text("x")) == "EACCES"
    assert as_user(NOBODY, lambda: (area.here / "open").chmod(0o666)) == "EPERM"
    assert as_user(NOBODY, lambda: (area.here / "open").unlink()) == "EACCES"
    sticky = area.here / "sticky"
    sticky.mkdir()
    sticky.chmod(0o1777)
    (sticky / "mine").write_text("x")
    assert as_user(NOBODY, lambda: (sticky / "mine").unlink()) in ("EPERM", "EACCES")
    assert as_user(NOBODY, lambda: (sticky / "theirs").write_text("x")) == ""
    assert as_user(NOBODY, lambda: (sticky / "theirs").unlink()) == ""


def test_write_by_another_clears_setuid(area: Area) -> None:
    """A write by a user that is not privileged takes the setuid bit away."""
    path = area.here / "s"
    path.write_text("x")
    path.chmod(0o4777)

    def write() -> None:
        with path.open("ab", 0) as file:
            file.write(b"y")

    assert as_user(NOBODY, write) == ""
    area.settle()
    assert permissions(path) == 0o777
    assert permissions(area.back / "s") == 0o777


def test_extended_attributes(area: Area) -> None:
    """user.* attributes are set, listed, replaced, removed, kept by commits, with the errnos of a local
    disk.
    """
    path = area.here / "x"
    path.write_text("1")
    os.setxattr(path, "user.color", b"blue")
    os.setxattr(path, "user.empty", b"")
    assert error_of(os.setxattr, path, "user.color", b"red", os.XATTR_CREATE) == "EEXIST"
    assert error_of(os.setxattr, path, "user.none", b"red", os.XATTR_REPLACE) == "ENODATA"
    assert sorted(n for n in os.listxattr(path) if n != "security.selinux") == ["user.color", "user.empty"]
    assert os.getxattr(path, "user.color") == b"blue"
    assert os.getxattr(path, "user.empty") == b""
    path.write_text("2")
    with path.open("a") as file:
        os.setxattr(file.fileno(), "user.open", b"while dirty")
        file.write("3")
    area.settle()
    for place in (path, area.back / "x"):
        assert place.read_text() == "23"
        assert os.getxattr(place, "user.color") == b"blue"
        assert os.getxattr(place, "user.open") == b"while dirty"
    os.removexattr(path, "user.color")
    assert error_of(os.getxattr, path, "user.color") == "ENODATA"
    assert error_of(os.removexattr, path, "user.color") == "ENODATA"
    assert error_of(os.getxattr, area.back / "x", "user.color") == "ENODATA"
    os.setxattr(area.here, "user.dir", b"d")
    assert os.getxattr(area.back, "user.dir") == b"d"
    big = os.urandom(3000)
    os.setxattr(path, "user.big", big)
    assert os.getxattr(path, "user.big") == big


def test_the_control_names_are_not_listed(area: Area) -> None:
    """`user.volfs.*` answers on request, is in no list (cp -a copies lists), and is not stored."""
    if PLAIN:
        return
    (area.here / "f").touch()
    for path in (area.volume.mountpoint, area.here / "f"):
        assert not [n for n in os.listxattr(path) if n.startswith("user.volfs")]
    assert error_of(os.setxattr, area.here / "f", "user.volfs.nonsense", b"1") in (
        "EOPNOTSUPP",
        "EPERM",
        "EINVAL",
    )
    assert error_of(os.getxattr, area.here / "f", "user.volfs.nonsense") in ("ENODATA", "EOPNOTSUPP")
    assert area.volume.status()["backing"] == str(area.volume.backing)


def test_statfs(area: Area) -> None:
    """df shows the backing's own numbers."""
    got, real = os.statvfs(area.here), os.statvfs(area.back)
    assert got.f_namemax == 255
    assert got.f_blocks * got.f_frsize == real.f_blocks * real.f_frsize
    assert got.f_files == real.f_files > 0
    assert 0 < got.f_bavail <= got.f_bfree <= got.f_blocks
    assert abs(got.f_bavail * got.f_frsize - real.f_bavail * real.f_frsize) < 1 << 30


def test_blocks_say_what_is_used(area: Area) -> None:
    """st_blocks is not zero for data (du, and tools that skip holes), also before the commit."""
    path = area.here / "b"
    with path.open("wb", 0) as file:
        file.write(os.urandom(1 << 20))
        assert path.stat().st_blocks * 512 >= 1 << 20
    area.settle()
    assert path.stat().st_blocks * 512 >= 1 << 20
    assert path.stat().st_blksize >= 512


def test_access_time_is_not_an_error(area: Area) -> None:
    """D7: utime of atime alone keeps mtime, and UTIME_NOW sets the current time."""
    path = area.here / "f"
    path.write_text("x")
    os.utime(path, ns=(MOMENT, MOMENT))
    before = time.time_ns() - 50_000_000
    subprocess.run(["touch", "-a", str(path)], check=True, timeout=20)
    assert path.stat().st_mtime_ns == MOMENT
    os.utime(path)
    assert path.stat().st_mtime_ns >= before
    os.utime(path, ns=(-1_500_000_000, -2_500_000_000))
    assert (path.stat().st_atime_ns, path.stat().st_mtime_ns) == (-1_500_000_000, -2_500_000_000)
    area.settle()
    assert (area.back / "f").stat().st_mtime_ns == -2_500_000_000


def test_device_nodes_are_refused_or_made(area: Area) -> None:
    """A device node cannot come from an unprivileged user; no call answers ENOSYS."""
    name = area.here / "null"
    mode, device = stat.S_IFCHR | 0o666, os.makedev(1, 3)
    area.here.chmod(0o777)
    assert as_user(NOBODY, lambda: os.mknod(name, mode, device)) == "EPERM"
    assert error_of(os.mknod, name, mode, device) in ("", "EPERM", "EOPNOTSUPP")


def test_unsupported_calls_say_so(area: Area) -> None:
    """D2: what the file system cannot do is answered with an errno that programs know how to handle."""
    (area.here / "f").write_text("x")

    def unnamed() -> None:
        os.close(os.open(area.here, os.O_TMPFILE | os.O_RDWR))

    assert error_of(unnamed) in ("", "EOPNOTSUPP")
    assert error_of(os.setxattr, area.here / "f", "system.nonsense", b"1") == "EOPNOTSUPP"
    assert errno.errorcode[errno.ENOSYS] not in (error_of(unnamed),)
