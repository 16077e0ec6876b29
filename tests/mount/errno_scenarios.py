"""What an application does while the store fails: one short act for each system call that reaches the store.

It owns the acts and what they start from. It does not know faults, nor what is right
afterwards: that is what the same act leaves behind when nothing fails.

*Invariants:* an act may be done again after it failed and left nothing; descriptors
that it opens are closed when it ends, with the error of whichever call failed first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.mount.calls import EXCHANGE, rename_with

__all__ = ["SCENARIOS", "Scenario"]

OLD = b"what was there before"
NEW = b"and what is written now, which is longer"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One act. `prepare` makes its files in the backing; `hold` opens what it works with on the mount."""

    name: str
    act: Callable[[Path, int], object]
    prepare: Callable[[Path], object] = lambda back: None
    hold: Callable[[Path], int] = lambda here: -1


def _write(here: Path, flags: int, *, sync: bool = False) -> None:
    with _opened(here, flags) as handle:
        os.write(handle, NEW)
        if sync:
            os.fsync(handle)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    handle = os.open(path, flags, 0o644)
    try:
        yield handle
    except OSError:
        with suppress(OSError):
            os.close(handle)
        raise
    os.close(handle)


def _read(here: Path, handle: int) -> None:
    with _opened(here / "f", os.O_RDONLY) as own:
        assert os.pread(own, 1000, 0) == OLD, "bytes that nobody wrote"


def _file(back: Path) -> None:
    (back / "f").write_bytes(OLD)


def _file_with_attribute(back: Path) -> None:
    _file(back)
    os.setxattr(back / "f", "user.k", b"v")


def _two_files(back: Path) -> None:
    _file(back)
    (back / "g").write_bytes(b"the other one")


def _two_names(back: Path) -> None:
    _file(back)
    os.link(back / "f", back / "g")


def _directory(back: Path) -> None:
    (back / "d").mkdir()


def _full_directory(back: Path) -> None:
    _directory(back)
    (back / "d" / "f").write_bytes(OLD)


def _link(back: Path) -> None:
    (back / "l").symlink_to("somewhere")


def _known(name: str) -> Callable[[Path], int]:
    """The application has looked at the name, so that the act itself looks up nothing."""

    def look(here: Path) -> int:
        os.lstat(here / name)
        return -1

    return look


def _open(name: str, flags: int = os.O_RDONLY) -> Callable[[Path], int]:
    return lambda here: os.open(here / name, flags)


def _dirty(here: Path) -> int:
    """Written to and not closed."""
    handle = os.open(here / "f", os.O_WRONLY | os.O_APPEND)
    os.write(handle, NEW)
    return handle


def _nameless(here: Path) -> int:
    handle = os.open(here / "f", os.O_RDWR)
    (here / "f").unlink()
    return handle


SCENARIOS = (
    # What changes nothing.
    Scenario("stat", lambda here, _: os.stat(here / "f"), _file),
    Scenario("listdir", lambda here, _: os.listdir(here), _two_files),
    Scenario("readlink", lambda here, _: os.readlink(here / "l"), _link, _known("l")),
    Scenario("open, read", _read, _file, _known("f")),
    Scenario("statvfs", lambda here, _: os.statvfs(here)),
    Scenario(
        "getxattr", lambda here, _: os.getxattr(here / "f", "user.k"), _file_with_attribute, _known("f")
    ),
    Scenario("listxattr", lambda here, _: os.listxattr(here / "f"), _file_with_attribute, _known("f")),
    # Names.
    Scenario("mkdir", lambda here, _: os.mkdir(here / "d")),
    Scenario("mkfifo", lambda here, _: os.mkfifo(here / "p")),
    Scenario("symlink", lambda here, _: os.symlink("somewhere", here / "l")),
    Scenario("link", lambda here, _: os.link(here / "f", here / "g"), _file, _known("f")),
    Scenario("unlink", lambda here, _: os.unlink(here / "f"), _file, _known("f")),
    Scenario("unlink (open)", lambda here, _: os.unlink(here / "f"), _file, _open("f")),
    Scenario("rmdir", lambda here, _: os.rmdir(here / "d"), _directory, _known("d")),
    Scenario("rename", lambda here, _: os.rename(here / "f", here / "g"), _file, _known("f")),
    Scenario("rename (replaces)", lambda here, _: os.rename(here / "f", here / "g"), _two_files, _open("g")),
    Scenario("rename (directory)", lambda here, _: os.rename(here / "d", here / "e"), _full_directory),
    Scenario("rename (exchange)", lambda here, _: rename_with(EXCHANGE, here / "f", here / "g"), _two_files),
    # Attributes.
    Scenario("chmod", lambda here, _: os.chmod(here / "f", 0o700), _file, _known("f")),
    Scenario("fchmod (unlinked)", lambda _, handle: os.fchmod(handle, 0o700), _file, _nameless),
    Scenario("setxattr", lambda here, _: os.setxattr(here / "f", "user.n", b"1"), _file, _known("f")),
    Scenario("removexattr", lambda here, _: os.removexattr(here / "f", "user.k"), _file_with_attribute),
    # Bytes.
    Scenario("create", lambda here, _: _write(here / "f", os.O_WRONLY | os.O_CREAT)),
    Scenario("create (O_EXCL)", lambda here, _: _write(here / "f", os.O_WRONLY | os.O_CREAT | os.O_EXCL)),
    Scenario("replace", lambda here, _: _write(here / "f", os.O_WRONLY | os.O_TRUNC), _file, _known("f")),
    Scenario("append", lambda here, _: _write(here / "f", os.O_WRONLY | os.O_APPEND), _file_with_attribute),
    Scenario("append (two names)", lambda here, _: _write(here / "f", os.O_WRONLY | os.O_APPEND), _two_names),
    Scenario("truncate", lambda here, _: os.truncate(here / "f", 4), _file, _known("f")),
    Scenario("fsync", lambda here, _: _write(here / "f", os.O_WRONLY | os.O_TRUNC, sync=True), _file),
    Scenario("fsync (clean)", lambda _, handle: os.fsync(handle), _file, _open("f")),
    Scenario("fsync (directory)", lambda _, handle: os.fsync(handle), _directory, _open("d")),
    Scenario("rename (dirty)", lambda here, _: os.rename(here / "f", here / "g"), _file, _dirty),
    Scenario("unlink (dirty)", lambda here, _: os.unlink(here / "f"), _file, _dirty),
    Scenario("link (dirty)", lambda here, _: os.link(here / "f", here / "g"), _file, _dirty),
)
