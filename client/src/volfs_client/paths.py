"""The items of a data set: a path to read now, which remembers the file that it stands for.

On a volfs mount the path to read is that of a cache file, whose name means nothing: labels and the like are
taken from `source`. Both kinds can be pickled, and collated by what takes their base class.
"""

from __future__ import annotations

from pathlib import Path, PosixPath
from typing import Any

__all__ = ["LocalFile", "LocalPath"]


class LocalPath(str):
    """A path to read now, as str. `source`: the path of the file in its volume or directory."""

    __slots__ = ("source",)

    source: str

    def __new__(cls, path: str, source: str | None = None) -> LocalPath:
        made = super().__new__(cls, path)
        made.source = str(path) if source is None else source
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        return LocalPath, (str(self), self.source)


class LocalFile(PosixPath):
    """A path to read now, as pathlib.Path. `source`: the path of the file in its volume or directory.

    Paths that are derived from it have themselves as source.
    """

    @classmethod
    def of(cls, path: LocalPath) -> LocalFile:
        """The same as a pathlib.Path."""
        return _local_file(str(path), path.source)

    @property
    def source(self) -> Path:
        return Path(self.__dict__.get("_source", str(self)))

    def __reduce__(self) -> tuple[Any, ...]:
        return _local_file, (str(self), str(self.source))


def _local_file(path: str, source: str) -> LocalFile:
    made = LocalFile(path)
    made.__dict__["_source"] = source
    return made
