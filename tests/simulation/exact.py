"""What one host alone must show and, once settled, leave in the backing: the reference model keeps step.

It knows answers and contents for sure as long as one host does one thing at a time, and nothing fails. Who
drives says when that is no longer so (`world`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from tests.model import Directory, File, Handle, Model
from tests.simulation.kernel import Path
from tests.simulation.oracle import Seen
from tests.simulation.records import parse, record

__all__ = ["FLAGS", "KNOWN", "Answer", "Exact"]

#: What a program gets back: an errno (0: none), and what it read, if it did.
Answer = tuple[int, tuple[int, ...] | list[str] | None]

FLAGS = {
    "append": os.O_RDWR | os.O_CREAT | os.O_APPEND,
    "replace": os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC,
    "create": os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_EXCL,
    "edit": os.O_RDWR | os.O_APPEND,
}


class Exact:
    """The model, and the descriptors of programs in it."""

    def __init__(self, seen: Seen) -> None:
        self._model = Model()
        self._open: dict[tuple[int, int], tuple[Handle, str]] = {}
        self._unsure: set[tuple[int, int]] = set()  # changed something that is not acknowledged
        for path, numbers in sorted(seen.items()):
            data = bytearray(b"".join(record(number) for number in numbers or ()))
            self._model.put(tuple(path.split("/")), Directory() if numbers is None else File(data))

    def seen(self) -> Seen:
        """What the backing has once nothing waits."""
        return {
            "/".join(path): parse(bytes(node.data), path) if isinstance(node, File) else None
            for path, node in self._model.walk()
        }

    def answer(self, name: str, number: int, *arguments: object) -> Answer:
        """Do the operation; `number` is that of the record that it writes, if it does."""
        try:
            return 0, KNOWN[name](self, number, *arguments)
        except OSError as error:
            return error.errno or 0, None

    # -- the operations of `World`, with the number of the next record --------------

    def save(self, number: int, host: int, path: Path, how: str) -> None:
        handle = self._opened(path, how)
        self._put(handle, how, number, first=True)
        self._not_last(host, handle.file)

    def _not_last(self, host: int, file: File) -> None:
        """Nothing that closes commits while others on the host have the file open for writing (W3a)."""
        others = (key for key, (other, _) in self._open.items() if key[0] == host and other.file is file)
        self._unsure.update(others)

    def open(self, number: int, host: int, slot: int, path: Path, how: str) -> None:
        if (host, slot) not in self._open:
            if how == "replace" or self._model.find(path) is None:
                self._unsure.add((host, slot))
            self._open[host, slot] = self._opened(path, how), how

    def put(self, number: int, host: int, slot: int, path: Path, how: str) -> None:
        self.open(number, host, slot, path, how)
        handle, how = self._open[host, slot]
        self._unsure.add((host, slot))
        self._put(handle, how, number, first=how == "edit")
        self._open[host, slot] = handle, "emptied" if how == "edit" else how

    def fsync(self, number: int, host: int, slot: int) -> None:
        self._unsure.discard((host, slot))

    def close(self, number: int, host: int, slot: int) -> None:
        self._open.pop((host, slot), None)
        self._unsure.discard((host, slot))

    def survives(self, host: int) -> bool:
        """A crash closes what a host had open; whether what comes of that is known."""
        for key in [key for key in self._open if key[0] == host]:
            del self._open[key]
        return not any(key[0] == host for key in self._unsure)

    def read(self, number: int, host: int, path: Path) -> tuple[int, ...]:
        return parse(bytes(self._model.file(path).data), path)

    def list(self, number: int, host: int, path: Path) -> list[str]:
        node = self._model.node(path) if path else self._model.root
        if not isinstance(node, Directory):
            raise OSError(errno.ENOTDIR, "no directory")
        return sorted(node.children)

    def truncate(self, number: int, host: int, path: Path) -> None:
        self._model.truncate(path, 0)
        self._not_last(host, self._model.file(path))

    def unlink(self, number: int, host: int, path: Path) -> None:
        self._model.unlink(path)

    def mkdir(self, number: int, host: int, path: Path) -> None:
        self._model.put(path, Directory())

    def rmdir(self, number: int, host: int, path: Path) -> None:
        self._model.rmdir(path)

    def rename(self, number: int, host: int, old: Path, new: Path) -> None:
        self._model.rename(old, new)

    def _opened(self, path: Path, how: str) -> Handle:
        if how == "create" and self._model.find(path) is not None:
            raise OSError(errno.EEXIST, "exists")
        return self._model.open(path, FLAGS[how])

    def _put(self, handle: Handle, how: str, number: int, *, first: bool) -> None:
        if how == "edit" and first:
            self._model.ftruncate(handle, 0)
        self._model.write(handle, 0, record(number))


KNOWN: dict[str, Callable[..., tuple[int, ...] | list[str] | None]] = {
    name: getattr(Exact, name)
    for name in (
        *("save", "open", "put", "fsync", "close", "read", "list"),
        *("truncate", "unlink", "mkdir", "rmdir", "rename"),
    )
}
