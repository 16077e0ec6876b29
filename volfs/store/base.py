"""The contract of a store: where a volume's files live for good.

Paths are relative bytes without a leading slash (`b""` is the root, `b"a/b"`).
A store never follows a symlink inside the volume. Every call raises a
`StoreError` that carries the true errno. Calls may run concurrently; order
between them is the caller's matter. `tests/contracts/store.py` is this page as
a test suite, run by every store and every wrapper.
"""

from __future__ import annotations

import enum
import stat as _stat
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from volfs.core.spans import Extent
from volfs.core.versions import Version

__all__ = [
    "RESERVED",
    "Capacity",
    "Changes",
    "DirectoryReader",
    "Expected",
    "Filled",
    "Observer",
    "Owner",
    "Reader",
    "Stat",
    "Store",
    "Transfer",
    "Upload",
]

#: The one name at a volume's root that belongs to volfs; hidden in the mount.
RESERVED = b".volfs"


@dataclass(frozen=True, slots=True)
class Stat:
    """Attributes of one name, as the store has them. Times in nanoseconds.

    `identity` names the object behind the name (two hard links share it, a
    replaced file has a new one); `version` names its content. `number` is an
    inode number worth showing to users, not necessarily unique.
    """

    mode: int
    nlink: int
    uid: int
    gid: int
    size: int
    blocks: int
    atime_ns: int
    mtime_ns: int
    ctime_ns: int
    rdev: int
    number: int
    identity: bytes
    version: Version

    @property
    def is_dir(self) -> bool:
        return _stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return _stat.S_ISREG(self.mode)


#: Sees copied bytes, a piece a call, with the piece's offset in the file. Pieces start at multiples of 1 MiB
#: and come one at a time, from a worker thread; a piece is valid during the call only.
Observer = Callable[[int, memoryview], None]


class Owner(NamedTuple):
    """Who owns a new file; None leaves it to the store."""

    uid: int | None
    gid: int | None


class Capacity(NamedTuple):
    """What statvfs says: sizes in units of `fragment` bytes."""

    block: int
    fragment: int
    blocks: int
    blocks_free: int
    blocks_available: int
    files: int
    files_free: int
    name_max: int


@dataclass(frozen=True, slots=True)
class Changes:
    """A change of attributes; None leaves a field as it is. Times in nanoseconds."""

    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    atime_ns: int | None = None
    mtime_ns: int | None = None


class Filled(NamedTuple):
    """What `Reader.read_into` did: how many bytes, and the version of the open object after it.

    `certain`: that is so. Else the store's client may remember the version from before the read, and
    only `Reader.stat` tells, for the price of a round trip.
    """

    size: int
    version: Version
    certain: bool


class Reader(Protocol):
    """One version of one file, open for reading; it outlives a replacement of the name.

    `stat` is of the open object, which may have changed in place since.
    """

    async def read(self, offset: int, size: int) -> bytes | bytearray | memoryview:
        """At most `size` bytes at `offset`; fewer only at the end of the file.

        The result may be a view of a buffer that the next read reuses: use or
        copy it before the next await.
        """
        ...

    async def read_into(self, buffer: memoryview, offset: int) -> Filled:
        """Fill `buffer` from `offset` on; fewer bytes than its length only at the end of the file.

        May go by another way than `read`, past every cache of the store's client. The buffer may still be
        written to after a call that raised: do not use it again.
        """
        ...

    async def stat(self) -> Stat:
        """Attributes of the open object, now."""
        ...

    async def change(self, changes: Changes) -> Stat:
        """Change attributes of the open object, which may have no name any more."""
        ...

    async def copy_to(self, target: int, size: int) -> None:
        """Copy the first `size` bytes into the empty open file `target`, as cheaply as can be."""
        ...

    async def overwrite(self, staged: int, observe: Observer | None) -> Stat:
        """As `Store.overwrite`, for an object that has names, of which the caller knows none."""
        ...

    async def sync(self) -> None:
        """Make the bytes survive a power cut."""
        ...

    def close(self) -> None:
        """Let go. A read that is under way ends well."""
        ...


class DirectoryReader(Protocol):
    """One pass over a directory."""

    async def names(self, most: int) -> list[bytes]:
        """Up to `most` further names, without `.`, `..` and the reserved one; [] at the end."""
        ...

    async def stats(self, names: list[bytes]) -> list[tuple[bytes, Stat]]:
        """Attributes of those of the names that still exist, in their order."""
        ...

    def close(self) -> None: ...


class Expected(enum.Enum):
    """What a name may stand for when a new version takes it, if not one certain version."""

    ANYTHING = enum.auto()
    NOTHING = enum.auto()


class Upload(Protocol):
    """A new version that has no name yet. It ends by `show` or by `discard`."""

    async def show(self, path: bytes, expected: Version | Expected) -> Stat:
        """Make it the file at `path`, atomically; `Store.sync_directory` makes the name survive a power cut.

        VersionChanged if something else than `expected` is there, NotFound if the
        directory is not: the store is then as it was, and `show` may be tried again.
        """
        ...

    def is_shown(self, st: Stat) -> bool:
        """Whether a name shows this upload: a `show` may have been done although it raised an error."""
        ...

    def trace(self, expected: Version | Expected) -> str:
        """To be kept until the outcome of a `show` that expects this is known: for `Store.keep_left`, should
        it never be. "" if no other version can get into our hands.
        """
        ...

    def descriptor(self) -> int | None:
        """After `show`: what was shown, open and the caller's (see `Store.reader`); None: nobody has it."""
        ...

    async def discard(self) -> None:
        """Take a copy away again; a staged file that was to be renamed stays where it is."""
        ...


class Transfer(Protocol):
    """A copy on its way into the store while its source is still being written. It ends by `finish` or by
    `discard`, and is used by one call at a time.
    """

    async def bring(self, extents: Sequence[Extent], observe: Observer | None) -> None:
        """Copy these parts of the source, which it has, in any order; a part again if it has changed since.

        Extents start at multiples of 1 MiB. After an error nothing but `discard` is of use.
        """
        ...

    async def finish(self) -> Upload:
        """All parts were brought: the size and the attributes that the source has now, durable."""
        ...

    async def discard(self) -> None:
        """Take the copy away again."""
        ...


class Store(Protocol):
    """Where a volume's files live. One instance a volume."""

    #: Whether `volfs.watch` can learn of changes at once (a local file system).
    local: bool
    #: How coarse the store's time stamps may be, in nanoseconds (see core.versions).
    granularity_ns: int

    @property
    def requests(self) -> Counter[str]:
        """Calls so far, by their name."""
        ...

    @property
    def read_bytes(self) -> int: ...

    @property
    def written_bytes(self) -> int: ...

    async def stat(self, path: bytes) -> Stat:
        """Attributes of the name itself (a symlink is not followed)."""
        ...

    async def open(self, path: bytes) -> Reader:
        """Pin the regular file behind `path` for reading."""
        ...

    async def fetch(
        self, path: bytes, most_bytes: int, known: Stat | None = None
    ) -> tuple[Stat, bytes | None]:
        """A whole small file and its attributes in one call; no bytes where it is larger than `most_bytes`.

        The bytes are all of the version that the attributes have: VersionChanged if it
        did not last. As `open`, for regular files only. `known`: what was said of it before
        this call: if it is still that, the store is asked once less.
        """
        ...

    def reader(self, fd: int) -> Reader:
        """Read on through the descriptor of a staged file that `publish` renamed; the reader owns it now."""
        ...

    async def scan(self, path: bytes) -> DirectoryReader: ...

    async def readlink(self, path: bytes) -> bytes: ...

    async def mkdir(self, path: bytes, mode: int, owner: Owner) -> Stat: ...

    async def mknod(self, path: bytes, mode: int, rdev: int, owner: Owner) -> Stat:
        """A new empty file, FIFO, socket or device; AlreadyExists if the name is taken anywhere."""
        ...

    async def symlink(self, path: bytes, target: bytes, owner: Owner) -> Stat: ...

    async def link(self, path: bytes, new: bytes) -> Stat: ...

    async def unlink(self, path: bytes) -> None: ...

    async def rmdir(self, path: bytes) -> None: ...

    async def rename(self, old: bytes, new: bytes, flags: int) -> None:
        """Atomic; `flags` as in renameat2(2)."""
        ...

    async def change(self, path: bytes, changes: Changes) -> Stat: ...

    async def getxattr(self, path: bytes, name: bytes) -> bytes: ...

    async def setxattr(self, path: bytes, name: bytes, value: bytes) -> None: ...

    async def removexattr(self, path: bytes, name: bytes) -> None: ...

    async def listxattr(self, path: bytes) -> list[bytes]: ...

    async def capacity(self) -> Capacity: ...

    async def sync_directory(self, path: bytes) -> None:
        """Make the names in the directory survive a power cut."""
        ...

    def is_moved(self, st: Stat, version: Version) -> bool:
        """Whether `st` is of this version, for all that a rename of it changes."""
        ...

    async def upload(
        self,
        staged: int,
        name: str | None,
        *,
        durable: bool,
        observe: Observer | None,
        replaces: bool = False,
    ) -> Upload:
        """Bring the bytes and attributes of the open file `staged` into the store, under no name yet.

        `name` is the staged file's name if it lies in the store's own staging
        directory (it is then shown by a rename, and gone from there); None if it lies
        elsewhere (it is then copied, and stays). `durable`: a copy always survives a
        power cut before a name shows it, a staged file in the store only if asked.
        `observe` sees the copied bytes. Takes as long as the bytes need. `replaces`: it
        will probably take the place of a certain version; if that is not said, such a
        `show` may be a request more.
        """
        ...

    async def begin(self, staged: int) -> Transfer:
        """As `upload` by copy, in parts, from a file that is not complete yet."""
        ...

    async def keep_left(self, trace: str, path: bytes) -> bytes | None:
        """If the `show` of this trace, of which no outcome is known, left a version of others in our hands,
        and not the one that it was to replace: give that a name beside `path`, or in the nearest directory
        above that is still there. Its path; None: nothing was left. Done again, it does nothing.
        """
        ...

    async def clear_left(self) -> None:
        """Delete the copies that an earlier daemon of this mount left. Not while a trace of it is of use."""
        ...

    async def overwrite(self, staged: int, path: bytes, observe: Observer | None) -> Stat:
        """Give the object at `path` the bytes and attributes of `staged`, durable, in place: for files with
        several names. Not atomic.
        """
        ...

    def close(self) -> None: ...
