"""A directory that fails: the file system of torch's writer, in which one file's nth write raises an errno.

It is picklable, as writers are. Used by tests of checkpoints, in this process and in others.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.filesystem import FileSystem

__all__ = ["FailingFiles"]


class _Stream:
    def __init__(self, stream: Any, error: OSError) -> None:
        self._stream, self._error = stream, error

    def write(self, data: Any) -> int:
        raise self._error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class FailingFiles(FileSystem):
    """Writes into files whose name ends with `name` fail with `number`. Reads and names work."""

    def __init__(self, name: str, number: int) -> None:
        self.name, self.number = name, number

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        with Path(path).open(mode) as stream:
            yield self.spoiled(stream, path)

    def spoiled(self, stream: Any, path: str | os.PathLike[str]) -> Any:
        """The stream, one that fails if it is of the file that is meant."""
        if not Path(path).name.endswith(self.name):
            return stream
        return _Stream(stream, OSError(self.number, os.strerror(self.number), str(path)))
