"""Operations on a volume and on the model alike, and the world that they change.

Each operation does the same to both and compares the errno. Operations by hand in the backing and by the
second
mount touch only what is clean, because who wins over dirty files is tested elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path as RealPath
from typing import NamedTuple

from tests.conftest import Area
from tests.model import Directory, File, Handle, Link, Model, Path, snapshot
from tests.mount.calls import EXCHANGE, error_of, rename_with
from tests.mount.volume import eventually

__all__ = ["Fill", "World"]


class Fill(NamedTuple):
    """Bytes in few words, so that a failing list of operations can be read."""

    value: int
    size: int

    @property
    def data(self) -> bytes:
        return bytes([self.value]) * self.size


_NOWHERE = "nowhere/at/all"
_FLAGS = {
    "read": os.O_RDONLY,
    "update": os.O_RDWR,
    "append": os.O_RDWR | os.O_APPEND,
    "create": os.O_RDWR | os.O_CREAT,
    "replace": os.O_RDWR | os.O_CREAT | os.O_TRUNC,
    "log": os.O_RDWR | os.O_CREAT | os.O_APPEND,
}


@dataclass
class World:
    """A directory on a mount, the model of it, and handles open on both."""

    area: Area
    model: Model = field(default_factory=Model)
    handles: dict[int, tuple[int, Handle]] = field(default_factory=dict)
    done: int = 0

    def real(self, path: Path) -> RealPath:
        return self.area.here.joinpath(*path)

    def both(self, real: Callable[[], object], model: Callable[[], object]) -> bool:
        """Do it to both; whether it was done. The errno must be the same."""
        got, expected = error_of(real), error_of(model)
        assert got == expected, f"the mount says {got or 'done'}, the model {expected or 'done'}"
        return not expected

    # -- files and handles -----------------------------------------------------

    def write_file(self, path: Path, how: str, offset: int, fill: Fill) -> None:
        """Open, write, close."""
        both = self._open(path, _FLAGS[how])
        if both is None:
            return
        fd, handle = both
        try:
            self.both(
                lambda: os.pwrite(fd, fill.data, offset), lambda: self.model.write(handle, offset, fill.data)
            )
        finally:
            os.close(fd)
        self.check_size(path)

    def _open(self, path: Path, flags: int) -> tuple[int, Handle] | None:
        opened: list[int] = []
        held: list[Handle] = []
        try:
            if self.both(
                lambda: opened.append(os.open(self.real(path), flags, 0o644)),
                lambda: held.append(self.model.open(path, flags)),
            ):
                return opened.pop(), held[0]
        finally:
            for fd in opened:  # the model refused: nobody holds it
                os.close(fd)
        return None

    def nothing(self) -> None:
        """What other operations shrink to."""

    def open(self, slot: int, path: Path, how: str) -> None:
        """Open and keep; a directory, which opens for reading too, is not what handles are for."""
        self.close(slot)
        if isinstance(self.model.find(path), Directory):
            return
        both = self._open(path, _FLAGS[how])
        if both is not None:
            self.handles[slot] = both

    def write(self, slot: int, offset: int, fill: Fill) -> None:
        if slot in self.handles:
            fd, handle = self.handles[slot]
            self.both(
                lambda: os.pwrite(fd, fill.data, offset), lambda: self.model.write(handle, offset, fill.data)
            )
            self.check_handle(slot)

    def resize(self, slot: int, size: int) -> None:
        if slot in self.handles:
            fd, handle = self.handles[slot]
            self.both(lambda: os.ftruncate(fd, size), lambda: self.model.ftruncate(handle, size))
            self.check_handle(slot)

    def fsync(self, slot: int) -> None:
        if slot in self.handles:
            os.fsync(self.handles[slot][0])
            self.check_handle(slot)

    def close(self, slot: int) -> None:
        if slot in self.handles:
            self.check_handle(slot)
            os.close(self.handles.pop(slot)[0])

    def truncate(self, path: Path, size: int) -> None:
        if self.both(lambda: os.truncate(self.real(path), size), lambda: self.model.truncate(path, size)):
            self.check_size(path)

    # -- names -----------------------------------------------------------------

    def mkdir(self, path: Path) -> None:
        self.both(lambda: os.mkdir(self.real(path), 0o755), lambda: self.model.put(path, Directory()))

    def symlink(self, path: Path) -> None:
        self.both(lambda: os.symlink(_NOWHERE, self.real(path)), lambda: self.model.put(path, Link(_NOWHERE)))

    def unlink(self, path: Path) -> None:
        self.both(lambda: os.unlink(self.real(path)), lambda: self.model.unlink(path))

    def rmdir(self, path: Path) -> None:
        self.both(lambda: os.rmdir(self.real(path)), lambda: self.model.rmdir(path))

    def rename(self, old: Path, new: Path) -> None:
        self.both(lambda: os.rename(self.real(old), self.real(new)), lambda: self.model.rename(old, new))

    def exchange(self, old: Path, new: Path) -> None:
        self.both(
            lambda: rename_with(EXCHANGE, self.real(old), self.real(new)),
            lambda: self.model.exchange(old, new),
        )

    def link(self, old: Path, new: Path) -> None:
        self.both(
            lambda: os.link(self.real(old), self.real(new), follow_symlinks=False),
            lambda: self.model.link(old, new),
        )

    def chmod(self, path: Path, mode: int) -> None:
        self.both(lambda: os.chmod(self.real(path), mode), lambda: self.model.chmod(path, mode))

    # -- others ----------------------------------------------------------------

    def commit(self) -> None:
        self.area.settle()

    def by_hand(self, path: Path, what: str, fill: Fill) -> None:
        """An edit in the backing, of a name that is clean and that nobody here holds for writing."""
        self.area.settle()
        self._elsewhere(self.area.back.joinpath(*path), path, what, fill.data)

    def by_mount(self, path: Path, what: str, fill: Fill) -> None:
        """An edit through the second mount; of a file that is open here it would make a new object, so not
        that.
        """
        node = self.model.find(path)
        if not (isinstance(node, File) and (self._held(node) or self.model.names_of(node) > 1)):
            self.area.settle()
            self._elsewhere(self.area.there.joinpath(*path), path, what, fill.data)

    def read_by_mount(self, path: Path) -> None:
        """The second mount reads what was committed."""
        node = self.model.find(path)
        if isinstance(node, File):
            self.area.settle()
            assert self.area.there.joinpath(*path).read_bytes() == bytes(node.data)

    def _elsewhere(self, place: RealPath, path: Path, what: str, data: bytes) -> None:
        try:
            parent, node = self.model.parent(path), self.model.find(path)
        except OSError:
            return
        if isinstance(node, File) and any(h.writable for h in self._held(node)):
            return
        if what == "mkdir" and node is None:
            place.mkdir(mode=0o755)
            place.chmod(0o755)
            parent.children[path[-1]] = Directory()
        elif what == "delete" and isinstance(node, File):
            place.unlink()
            del parent.children[path[-1]]
        elif what == "rewrite" and isinstance(node, File):
            with place.open("r+b", 0) as file:
                file.write(data)
            node.data[: len(data)] = data
        elif what == "append" and isinstance(node, File):
            with place.open("ab", 0) as file:
                file.write(data)
            node.data.extend(data)
        elif what == "replace" and (node is None or isinstance(node, File)):
            fresh = place.with_name("fresh")
            fresh.write_bytes(data)
            fresh.chmod(0o644)
            fresh.rename(place)
            parent.children[path[-1]] = File(bytearray(data))
        self.area.settle()
        if isinstance(found := self.model.find(path), File):
            assert self.real(path).read_bytes() == bytes(found.data)
        self._eventually_checked(path)

    def _held(self, file: File) -> list[Handle]:
        return [handle for _, handle in self.handles.values() if handle.file is file]

    # -- comparing -------------------------------------------------------------

    def check_size(self, path: Path) -> None:
        node = self.model.find(path)
        if isinstance(node, File):
            assert os.lstat(self.real(path)).st_size == len(node.data), f"size of {path}"

    def check_handle(self, slot: int) -> None:
        fd, handle = self.handles[slot]
        expected = bytes(handle.file.data)
        assert os.fstat(fd).st_size == len(expected), "size by fstat"
        assert os.pread(fd, len(expected) + 10, 0) == expected, "bytes of an open handle"

    def _eventually_checked(self, path: Path) -> None:
        """After a change by others: what is looked at without a new open agrees within the window."""

        def agrees() -> bool:
            try:
                self.check_size(path)
                for slot in self.handles:
                    self.check_handle(slot)
                names = set(os.listdir(self.real(path).parent))
            except (AssertionError, FileNotFoundError):
                return False
            return names == set(self.model.parent(path).children)

        eventually(agrees, self.area.volume.window, f"the change of {path} is seen")

    def check_all(self) -> None:
        """The whole tree: on the mount now, and after the commit in the backing and on the second mount."""
        expected = self.model.snapshot()
        assert snapshot(str(self.area.here)) == expected
        for slot in list(self.handles):
            self.close(slot)
        self.area.settle()
        expected = self.model.snapshot()
        assert snapshot(str(self.area.back)) == expected
        eventually(
            lambda: snapshot(str(self.area.there)) == expected, self.area.volume.window, "by the second mount"
        )
        assert snapshot(str(self.area.here)) == expected
