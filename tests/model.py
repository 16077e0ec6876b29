"""The reference model: what a volume holds, as plain objects in memory. The one definition of right.

It knows names, bytes, modes and links as a local disk has them, and the errno of what is refused (errors are
`OSError`). It does not know time, owners, permissions, commits or mounts: on one mount these change nothing
that
it holds. Symlinks are kept, never followed: their targets do not exist.

*Invariants:* a name leads to one node; two names of one file lead to the same `File`, which is also what an
open
handle holds, so that unlinking or replacing a name does not touch it.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field

__all__ = ["Directory", "File", "Handle", "Link", "Model", "Node", "Path", "snapshot"]

Path = tuple[str, ...]


@dataclass(eq=False)
class File:
    """Bytes and a mode; identity is the inode."""

    data: bytearray = field(default_factory=bytearray)
    mode: int = 0o644


@dataclass(eq=False)
class Link:
    """A symlink."""

    target: str
    mode: int = 0o777


@dataclass(eq=False)
class Directory:
    """Names and what they lead to."""

    children: dict[str, Node] = field(default_factory=dict)
    mode: int = 0o755


Node = File | Link | Directory


@dataclass(eq=False)
class Handle:
    """An open file."""

    file: File
    writable: bool
    appending: bool


def _refuse(number: int) -> OSError:
    return OSError(number, os.strerror(number))


class Model:
    """A tree of nodes and the calls on it, named after the system calls."""

    def __init__(self) -> None:
        self.root = Directory()

    # -- resolving -------------------------------------------------------------

    def parent(self, path: Path) -> Directory:
        """The directory that holds the last name."""
        at = self.root
        for name in path[:-1]:
            node = at.children.get(name)
            if node is None or isinstance(node, Link):
                raise _refuse(errno.ENOENT)
            if isinstance(node, File):
                raise _refuse(errno.ENOTDIR)
            at = node
        return at

    def node(self, path: Path) -> Node:
        """What the path names; a symlink is not followed."""
        node = self.parent(path).children.get(path[-1])
        if node is None:
            raise _refuse(errno.ENOENT)
        return node

    def file(self, path: Path) -> File:
        """The regular file to open for reading and writing."""
        node = self.node(path)
        if isinstance(node, Link):
            raise _refuse(errno.ENOENT)
        if isinstance(node, Directory):
            raise _refuse(errno.EISDIR)
        return node

    def find(self, path: Path) -> Node | None:
        """The node, or None where there is none."""
        try:
            return self.node(path)
        except OSError:
            return None

    # -- files -----------------------------------------------------------------

    def open(self, path: Path, flags: int) -> Handle:
        """With O_CREAT and O_TRUNC, read-write or read-only."""
        parent = self.parent(path)
        if path[-1] not in parent.children and flags & os.O_CREAT:
            parent.children[path[-1]] = File()
        file = self.file(path)
        if flags & os.O_TRUNC:
            file.data.clear()
        return Handle(file, bool(flags & os.O_RDWR), bool(flags & os.O_APPEND))

    def write(self, handle: Handle, offset: int, data: bytes) -> None:
        """At the offset, or at the end of an appending handle; a gap is zeros."""
        if not handle.writable:
            raise _refuse(errno.EBADF)
        held = handle.file.data
        if handle.appending:
            offset = len(held)
        if data and offset > len(held):
            held.extend(bytes(offset - len(held)))
        held[offset : offset + len(data)] = data

    def ftruncate(self, handle: Handle, size: int) -> None:
        if not handle.writable:
            raise _refuse(errno.EINVAL)
        self._resize(handle.file, size)

    def truncate(self, path: Path, size: int) -> None:
        self._resize(self.file(path), size)

    def _resize(self, file: File, size: int) -> None:
        del file.data[size:]
        file.data.extend(bytes(size - len(file.data)))

    # -- names -----------------------------------------------------------------

    def put(self, path: Path, node: Node) -> None:
        """A new name: mkdir, symlink, mknod."""
        parent = self.parent(path)
        if path[-1] in parent.children:
            raise _refuse(errno.EEXIST)
        parent.children[path[-1]] = node

    def link(self, old: Path, new: Path) -> None:
        node = self.node(old)
        if self.parent(new).children.get(new[-1]) is not None:
            raise _refuse(errno.EEXIST)
        if isinstance(node, Directory):
            raise _refuse(errno.EPERM)
        self.put(new, node)

    def unlink(self, path: Path) -> None:
        if isinstance(self.node(path), Directory):
            raise _refuse(errno.EISDIR)
        del self.parent(path).children[path[-1]]

    def rmdir(self, path: Path) -> None:
        node = self.node(path)
        if not isinstance(node, Directory):
            raise _refuse(errno.ENOTDIR)
        if node.children:
            raise _refuse(errno.ENOTEMPTY)
        del self.parent(path).children[path[-1]]

    def rename(self, old: Path, new: Path) -> None:
        source_parent, target_parent = self.parent(old), self.parent(new)
        source, target = self.node(old), target_parent.children.get(new[-1])
        if new[: len(old)] == old and new != old:
            raise _refuse(errno.EINVAL)
        if old[: len(new)] == new and new != old:
            raise _refuse(errno.ENOTEMPTY)
        if source is target:
            return
        if isinstance(target, Directory):
            if not isinstance(source, Directory):
                raise _refuse(errno.EISDIR)
            if target.children:
                raise _refuse(errno.ENOTEMPTY)
        elif target is not None and isinstance(source, Directory):
            raise _refuse(errno.ENOTDIR)
        del source_parent.children[old[-1]]
        target_parent.children[new[-1]] = source

    def exchange(self, old: Path, new: Path) -> None:
        source_parent, target_parent = self.parent(old), self.parent(new)
        source, target = self.node(old), self.node(new)
        if old != new and (new[: len(old)] == old or old[: len(new)] == new):
            raise _refuse(errno.EINVAL)
        source_parent.children[old[-1]], target_parent.children[new[-1]] = target, source

    def chmod(self, path: Path, mode: int) -> None:
        node = self.node(path)
        if isinstance(node, Link):
            raise _refuse(errno.ENOENT)
        node.mode = mode

    # -- looking ---------------------------------------------------------------

    def names_of(self, file: File) -> int:
        """How many names lead to a file."""
        return sum(node is file for _, node in self.walk())

    def walk(self) -> list[tuple[Path, Node]]:
        """Every path below the root, parents first."""
        found: list[tuple[Path, Node]] = []
        todo: list[tuple[Path, Directory]] = [((), self.root)]
        for path, directory in todo:
            for name, node in sorted(directory.children.items()):
                found.append(((*path, name), node))
                if isinstance(node, Directory):
                    todo.append(((*path, name), node))
        return found

    def snapshot(self) -> dict[str, tuple[object, ...]]:
        """In the form of `snapshot` of a real directory."""
        seen: dict[str, tuple[object, ...]] = {}
        for path, node in self.walk():
            if isinstance(node, Directory):
                seen["/".join(path)] = ("directory", node.mode)
            elif isinstance(node, Link):
                seen["/".join(path)] = ("link", node.target)
            else:
                seen["/".join(path)] = ("file", node.mode, self.names_of(node), bytes(node.data))
        return seen


def snapshot(root: str) -> dict[str, tuple[object, ...]]:
    """All that is below a real directory, in the form of `Model.snapshot`."""
    seen: dict[str, tuple[object, ...]] = {}
    for directory, directories, files in os.walk(root):
        for name in directories + files:
            path = os.path.join(directory, name)
            relative = os.path.relpath(path, root)
            attributes = os.lstat(path)
            mode = attributes.st_mode & 0o7777
            if os.path.islink(path):
                seen[relative] = ("link", os.readlink(path))
            elif os.path.isdir(path):
                seen[relative] = ("directory", mode)
            else:
                with open(path, "rb") as file:
                    data = file.read()
                assert len(data) == attributes.st_size, (
                    f"{relative}: {len(data)} bytes, stat {attributes.st_size}"
                )
                seen[relative] = ("file", mode, attributes.st_nlink, data)
    return seen
