"""Which files a data set is made of.

It lists directories and keeps what it found in two blocks of memory: a million paths take 60 MB once,
forked workers share them, since no reference counts are written to, and others get them by one copy. It opens
no file and knows no order but that of the names.

What other programs leave beside data (`_SUCCESS`, `.part-0.crc`, `_temporary/`) has names that begin with `_`
or `.`, and is left out unless asked for.
"""

from __future__ import annotations

import os
import re
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, NamedTuple

from volfs_client.errors import NoFiles

__all__ = ["File", "Filter", "Listing", "find"]

AnyPath = str | os.PathLike[str]

#: The reserved name at the root of a volume's store, never part of the data.
_RESERVED: Final = ".volfs"


class File(NamedTuple):
    """A file: the directory that it was found below, and its path from there."""

    root: str
    name: str

    @property
    def path(self) -> str:
        return os.path.join(self.root, self.name)


class Listing(Sequence[File]):
    """Files in a fixed order. `fingerprint` tells whether two are alike: relative paths and sizes."""

    __slots__ = ("_ends", "_firsts", "_names", "fingerprint", "roots")

    def __init__(self, found: Iterable[tuple[str, Iterable[tuple[str, int]]]]) -> None:
        """`found`: for each root, the (relative path, size) of its files, in order."""
        digest = sha256()
        names = bytearray()
        self.roots: list[str] = []
        self._firsts: list[int] = []  # the first file of each root
        self._ends = array("Q")  # of each name in `_names`
        for root, files in found:
            digest.update(b"\0")
            self.roots.append(root)
            self._firsts.append(len(self._ends))
            for name, size in files:
                raw = os.fsencode(name)
                names += raw
                self._ends.append(len(names))
                digest.update(b"%b\0%d\n" % (raw, size))
        self._names = bytes(names)
        self.fingerprint: str = digest.hexdigest()

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> File:  # type: ignore[override]  # slices are of no use here
        if not 0 <= index < len(self._ends):
            raise IndexError(index)
        begin = self._ends[index - 1] if index else 0
        name = os.fsdecode(self._names[begin : self._ends[index]])
        return File(self.roots[bisect_right(self._firsts, index) - 1], name)


@dataclass(frozen=True, slots=True)
class Filter:
    """Which files below a directory are wanted. Globs: `*`, `?`, `[a-z]`, and `**` for any directories.

    A glob with a slash is about the path below the directory, any other one about the name alone.
    """

    pattern: Sequence[str] = ()
    exclude: Sequence[str] = ()
    recursive: bool = True
    include_hidden: bool = False
    _wanted: re.Pattern[str] | None = field(init=False, repr=False)
    _unwanted: re.Pattern[str] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_wanted", _compile(self.pattern))
        object.__setattr__(self, "_unwanted", _compile(self.exclude))

    def enters(self, name: str, path: str) -> bool:
        """Whether the directory is looked into."""
        return self.recursive and self._shows(name, path) and not self._excludes(path)

    def takes(self, name: str, path: str) -> bool:
        """Whether the file is wanted."""
        if not self._shows(name, path) or self._excludes(path):
            return False
        return self._wanted is None or self._wanted.fullmatch(path) is not None

    def _shows(self, name: str, path: str) -> bool:
        return path != _RESERVED and (self.include_hidden or not name.startswith(("_", ".")))

    def _excludes(self, path: str) -> bool:
        return self._unwanted is not None and self._unwanted.fullmatch(path) is not None


def find(paths: Iterable[AnyPath], wanted: Filter) -> Listing:
    """All files in the given order; those below a directory sorted by path. A file named outright is taken.

    Raises NoFiles if there are none, and OSError if a path does not exist or a directory cannot be read:
    a listing without some of the files would be taken for all of them.
    """
    given = [os.path.abspath(path) for path in paths]
    listing = Listing(_found(given, wanted))
    if not len(listing):
        names = ", ".join(map(repr, given[:3])) + (", ..." if len(given) > 3 else "")
        asked = f" that match {list(wanted.pattern)}" if wanted.pattern else ""
        hint = "" if wanted.include_hidden else "; names that begin with _ or . need include_hidden=True"
        raise NoFiles(f"no files{asked} in {names or 'no paths'}{hint}")
    return listing


def _found(given: list[str], wanted: Filter) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    alone: list[tuple[str, int]] = []  # files named one after the other share a root
    for path in given:
        if os.path.isdir(path):
            if alone:
                yield _below_one(alone)
                alone = []
            yield path, sorted(_walk(path, wanted), key=lambda found: os.fsencode(found[0]))
        else:
            alone.append((path, os.stat(path).st_size))
    if alone:
        yield _below_one(alone)


def _below_one(files: list[tuple[str, int]]) -> tuple[str, list[tuple[str, int]]]:
    root = os.path.commonpath([os.path.dirname(path) for path, _ in files])
    return root, [(os.path.relpath(path, root), size) for path, size in files]


def _walk(root: str, wanted: Filter) -> Iterator[tuple[str, int]]:
    """The relative path and size of each file; links to directories are followed, unless they lead up."""
    below = [""]
    while below:
        directory = below.pop()
        try:
            entries = list(os.scandir(os.path.join(root, directory)))
        except FileNotFoundError:
            if not directory:
                raise
            continue  # removed meanwhile, with all that was in it
        for entry in entries:
            path = os.path.join(directory, entry.name)
            if entry.is_dir():
                if wanted.enters(entry.name, path) and not _leads_up(entry):
                    below.append(path)
            elif wanted.takes(entry.name, path) and entry.is_file():
                try:
                    size = entry.stat().st_size
                except FileNotFoundError:
                    continue  # removed meanwhile
                yield path, size


def _leads_up(entry: os.DirEntry[str]) -> bool:
    """Whether the entry is a link to a directory that it is in itself."""
    if not entry.is_symlink():
        return False
    target, here = os.path.realpath(entry.path), os.path.realpath(os.path.dirname(entry.path))
    return os.path.commonpath([target, here]) == target


def _compile(globs: Sequence[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(f"(?:{_expression(glob)})" for glob in globs), re.DOTALL) if globs else None


def _expression(glob: str) -> str:
    """The regular expression of a glob, for a whole relative path."""
    parts = glob.strip("/").split("/")
    if len(parts) == 1 and parts != ["**"]:
        parts = ["**", *parts]
    said = [_part(part) for part in parts]
    if parts[-1] == "**":
        said[-1] = ".+"
    return "".join(one if one in ("(?:[^/]+/)*", ".+") else one + "/" for one in said).removesuffix("/")


def _part(part: str) -> str:
    if part == "**":
        return "(?:[^/]+/)*"
    said, at = "", 0
    while at < len(part):
        char, at = part[at], at + 1
        end = part.find("]", at + 1) if char == "[" else -1
        if char == "*":
            said += "[^/]*"
        elif char == "?":
            said += "[^/]"
        elif end > 0:
            inside = part[at:end].replace("\\", r"\\").replace("[", r"\[")
            said += f"(?!/)[{'^' + inside[1:] if inside.startswith('!') else inside}]"
            at = end + 1
        else:
            said += re.escape(char)
    return said
