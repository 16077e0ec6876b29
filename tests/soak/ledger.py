"""What a directory must hold after operations of which each was acknowledged, and one perhaps was not.

Pure: bytes and names in, the allowed trees out. It knows what volfs promises for a
crash (W5, W6, W8, W10, W11 of SEMANTICS), not how it is done.

A name leads to an `Inode`, or to `DIRECTORY`. What an unfinished operation may have
left is a list of trees, each of which has for a name the bytes that are due, or
`Grown` for an append, of which any part may be there.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, NamedTuple

__all__ = ["DIRECTORY", "Grown", "Inode", "Ledger", "Operation", "Piece", "Step", "Tree", "difference", "put"]


class Piece(NamedTuple):
    """Bytes in few words: `size` of them, drawn from `seed`, at `offset`; None: at the end."""

    offset: int | None
    seed: int
    size: int

    @property
    def data(self) -> bytes:
        return _drawn(self.seed, self.size)


@lru_cache(maxsize=256)
def _drawn(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)


class Step(NamedTuple):
    """A part of a write that returns by itself: write, fsync, rename (to `name`), unlink or close."""

    do: str
    piece: Piece | None = None
    name: str = ""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call, or for `write` all from open to close. `how` says how a write opens its file."""

    kind: str
    name: str = ""
    other: str = ""
    how: str = ""
    size: int = 0
    steps: tuple[Step, ...] = ()


class Grown(NamedTuple):
    """The first bytes of `most`, at least as many as `least` has."""

    least: bytes
    most: bytes

    def allows(self, data: bytes) -> bool:
        return len(data) >= len(self.least) and self.most.startswith(data)


@dataclass(eq=False, slots=True)
class Inode:
    """A file with one name or several."""

    data: bytes = b""


class _Directory:
    def __repr__(self) -> str:
        return "a directory"


DIRECTORY: Final = _Directory()

Content = bytes | Grown | _Directory
Tree = dict[str, Content]


def put(data: bytes, piece: Piece) -> bytes:
    """The bytes after a write."""
    offset = len(data) if piece.offset is None else piece.offset
    return data[:offset].ljust(offset, b"\0") + piece.data + data[offset + piece.size :]


@dataclass(slots=True)
class Ledger:
    """See the module. Names are paths below the directory, without a leading slash."""

    names: dict[str, Inode | _Directory] = field(default_factory=dict)

    def tree(self) -> Tree:
        return {n: node.data if isinstance(node, Inode) else node for n, node in self.names.items()}

    def files(self) -> dict[str, Inode]:
        return {n: node for n, node in self.names.items() if isinstance(node, Inode)}

    def directories(self) -> list[str]:
        return [n for n, node in self.names.items() if not isinstance(node, Inode)]

    def below(self, directory: str) -> list[str]:
        return [name for name in self.names if name.startswith(directory + "/")]

    def links(self, name: str) -> list[str]:
        """All names of the file, this one included."""
        node = self.names[name]
        return [other for other, each in self.names.items() if each is node]

    def groups(self) -> list[list[str]]:
        """The names of each file that has several."""
        return [names for n in self.files() if len(names := self.links(n)) > 1 and names[0] == n]

    # -- what was acknowledged ---------------------------------------------------

    def apply(self, op: Operation) -> None:
        """The operation returned: all of it is there from now on."""
        names = self.names
        if op.kind == "mkdir":
            names[op.name] = DIRECTORY
        elif op.kind in ("rmdir", "unlink"):
            del names[op.name]
        elif op.kind == "link":
            names[op.other] = names[op.name]
        elif op.kind == "rename":
            self._rename(op.name, op.other)
        elif op.kind == "exchange":
            names[op.name], names[op.other] = names[op.other], names[op.name]
        elif op.kind == "truncate":
            node = names[op.name]
            assert isinstance(node, Inode)
            node.data = node.data[: op.size].ljust(op.size, b"\0")
        elif op.kind == "write":
            self._write(op)

    def _rename(self, old: str, new: str) -> None:
        for name in self.below(old):
            self.names[new + name[len(old) :]] = self.names.pop(name)
        self.names[new] = self.names.pop(old)

    def _write(self, op: Operation) -> None:
        node = self.names.get(op.name)
        if not isinstance(node, Inode):
            node = self.names[op.name] = Inode()
        if op.how == "replace":
            node.data = b""
        name = op.name
        for step in op.steps:
            if step.piece is not None:
                node.data = put(node.data, step.piece)
            elif step.do == "rename":
                self._rename(name, step.name)
                name = step.name
            elif step.do == "unlink":
                del self.names[name]

    # -- what may be there -------------------------------------------------------

    def worlds(self, op: Operation, done: int) -> list[Tree]:
        """The trees that a crash may leave while `op` is under way and `done` of its steps have returned."""
        if op.kind == "write":
            return list(_Writing(self, op).worlds(done))
        after = self.copy()
        after.apply(op)
        return [self.tree(), after.tree()]

    def copy(self) -> Ledger:
        fresh = {id(node): replace(node) for node in self.names.values() if isinstance(node, Inode)}
        return Ledger({n: fresh.get(id(node), node) for n, node in self.names.items()})


class _Writing:
    """A file between its open and its close: what is promised of it, and what is only written."""

    def __init__(self, ledger: Ledger, op: Operation) -> None:
        self._op = op
        self._tree = ledger.tree()
        node = ledger.names.get(op.name)
        self._name = op.name
        self._names = set(ledger.links(op.name)) if node is not None else {op.name}
        #: What it holds for sure; None: the name may not be there yet.
        self._kept = node.data if isinstance(node, Inode) else None
        self._written = b"" if op.how == "replace" or self._kept is None else self._kept
        #: Whether what is written but not acknowledged is the kept bytes with more at the end (W6).
        self._appends = op.how == "append"

    def worlds(self, done: int) -> Iterator[Tree]:
        for step in self._op.steps[:done]:
            self._returned(step)
        step = self._op.steps[done] if done < len(self._op.steps) else Step("close")
        yield from self._now(step)
        if step.do in ("rename", "unlink"):
            self._returned(step)
            yield from self._now(step)

    def _returned(self, step: Step) -> None:
        if step.piece is not None:
            self._written = put(self._written, step.piece)
        elif step.do == "fsync" and self._names:
            # From here on the store has what was written; in order, the rest is an append to that.
            self._kept = self._written
            self._appends = self._op.how != "patch"
        elif step.do in ("unlink", "rename"):
            if step.do == "rename" and step.name in self._tree:
                # A file that takes the place of another one is committed as it is (W8).
                self._kept = self._written
                self._appends = self._op.how != "patch"
            self._names.discard(self._name)
            if step.do == "unlink" and self._names:
                # The removal of one of several names is a commit point (W8).
                self._kept = self._written
                self._appends = self._op.how != "patch"
            kept = self._tree.pop(self._name, None)
            if step.do == "rename":
                if kept is not None:
                    self._tree[step.name] = kept
                self._names.add(step.name)
                self._name = step.name

    def _now(self, step: Step) -> Iterator[Tree]:
        if not self._names:
            yield self._tree
            return
        for content in self._contents(step):
            yield self._tree if content is None else {**self._tree, **dict.fromkeys(self._names, content)}
        if self._kept is None:
            # Its bytes were not acknowledged; what it replaced by a rename meanwhile may be gone.
            yield {n: c for n, c in self._tree.items() if n not in self._names}

    def _contents(self, step: Step) -> Iterator[bytes | Grown | None]:
        yield self._kept
        if self._appends and self._kept is not None:
            ahead = put(self._written, step.piece) if step.piece is not None else self._written
            yield Grown(self._kept, ahead)
        if step.do in ("fsync", "close", "rename", "unlink"):
            yield self._written
        if self._op.how == "exclusive" and self._kept is None:
            yield b""  # the name that O_EXCL took (W10)


# -- comparing -------------------------------------------------------------------


def difference(found: Mapping[str, Content], allowed: Iterable[Tree]) -> list[str]:
    """How what was found differs from the nearest allowed tree; [] if it is one of them."""
    tree, names = min(((tree, _unlike(found, tree)) for tree in allowed), key=lambda pair: len(pair[1]))
    return [
        f"{name}: expected {_brief(tree.get(name))}, found {_brief(found.get(name))}"
        f"{_torn(found.get(name), tree.get(name))}"
        for name in names
    ]


def _unlike(found: Mapping[str, Content], tree: Tree) -> list[str]:
    return [n for n in sorted(found.keys() | tree.keys()) if not _same(found.get(n), tree.get(n))]


def _same(data: Content | None, content: Content | None) -> bool:
    if isinstance(content, Grown):
        return isinstance(data, bytes) and content.allows(data)
    return data == content


def _brief(content: Content | None) -> str:
    if content is None:
        return "nothing"
    if isinstance(content, Grown):
        return f"{len(content.least)} to {len(content.most)} bytes"
    if isinstance(content, bytes):
        return f"{len(content)} bytes ({content[:6].hex()}...)"
    return repr(content)


def _torn(data: Content | None, wanted: Content | None) -> str:
    if not isinstance(data, bytes) or not isinstance(wanted, bytes):
        return ""
    low, high = 0, min(len(data), len(wanted))
    while low < high:
        middle = (low + high + 1) // 2
        if data[low:middle] == wanted[low:middle]:
            low = middle
        else:
            high = middle - 1
    return f", same up to byte {low}"
