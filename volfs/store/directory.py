"""A store that is a directory: a local disk, NFS, Lustre, SMB or another FUSE file system.

It owns the root descriptor; `.volfs` in it is `store.reserved`'s.
It does not cache and it does not know who asks.

*Concurrency:* on a file system that is known to be local, metadata calls run in
the trio thread, where a call is a few microseconds and a thread switch costs
ten times that; everywhere else, and for data that the page cache does not hold,
a worker thread makes the call. Threads get paths and descriptors, no shared object.
"""

from __future__ import annotations

import os
import stat as _stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import trio

from volfs.core.versions import Version
from volfs.errors import SetupError, from_os_error
from volfs.store import beneath
from volfs.store.attributes import apply_changes, new_owner, same_but_for_ctime, to_stat
from volfs.store.base import (
    RESERVED,
    Capacity,
    Changes,
    DirectoryReader,
    Observer,
    Owner,
    Reader,
    Stat,
    Transfer,
    Upload,
)
from volfs.store.copies import copy_over
from volfs.store.exchanges import keep_left
from volfs.store.filesystems import is_local
from volfs.store.reading import FileDirectoryReader, FileReader, fetch, open_file
from volfs.store.reserved import HEARTBEAT_S, Reserved
from volfs.store.streams import StreamLimit
from volfs.store.threads import StoreThreads
from volfs.store.transfers import Transfers

__all__ = ["DirectoryStore"]

T = TypeVar("T")

#: Local kernels stamp times once a tick (at most 10 ms at HZ=100); a remote server may stamp whole seconds.
_LOCAL_GRANULARITY_NS = 10_000_000
_REMOTE_GRANULARITY_NS = 2_000_000_000


class DirectoryStore:
    """The contract of `store.base.Store` over a directory descriptor."""

    def __init__(self, root: Path, *, local: bool | None = None) -> None:
        try:
            self._root = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise SetupError(f"cannot open the backing directory {root}: {error.strerror}") from error
        self.local = is_local(self._root) if local is None else local
        self.granularity_ns = _LOCAL_GRANULARITY_NS if self.local else _REMOTE_GRANULARITY_NS
        self.requests: Counter[str] = Counter()
        self.read_bytes = 0
        self.written_bytes = 0
        self._threads = StoreThreads()
        self.streams = StreamLimit()
        self._reserved: Reserved | None = None
        self._transfers = Transfers(self)

    @property
    def root(self) -> int:
        """The O_PATH descriptor of the root, for inotify."""
        return self._root

    @property
    def staging(self) -> int:
        """The descriptor of this mount's staging directory, once `open_staging` has made it."""
        assert self._reserved is not None
        return self._reserved.staging

    def open_staging(self, mount_id: str) -> int:
        """Make this mount's staging directory and answer its descriptor, which the store keeps."""
        self._reserved = Reserved(self._root, mount_id)
        return self._reserved.staging

    def lane(self, number: int) -> int:
        """Where copies are made. Over a network a change of a directory takes a round trip or two, under the
        client kernel's lock of it: side by side is only what is done in different ones.
        """
        assert self._reserved is not None
        return self._reserved.staging if self.local else self._reserved.lane(number)

    def remove_staging(self) -> None:
        """Take the staging directory away again if nothing is in it. Blocking."""
        if self._reserved is not None:
            self._reserved.remove()

    async def live(self) -> None:
        """Sweep what mounts that are gone left, and show others, for ever, that this one lives."""
        assert self._reserved is not None
        await self.call(self._reserved.sweep, thread=True)
        while True:
            await trio.sleep(HEARTBEAT_S)
            await self.call(self._reserved.touch, thread=True)

    def close(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None
        os.close(self._root)

    async def call(
        self,
        function: Callable[..., T],
        *args: object,
        thread: bool = False,
        drop: Callable[[T], None] = lambda result: None,
        ended: Callable[[], None] = lambda: None,
    ) -> T:
        """Call where it belongs. `drop` and `ended` as `StoreThreads.run` has them."""
        self.requests[function.__name__.lstrip("_")] += 1
        try:
            if self.local and not thread:
                try:
                    return function(*args)
                finally:
                    ended()
            return await self._threads.run(function, *args, drop=drop, ended=ended)
        except OSError as error:
            raise from_os_error(error) from error

    def let_go(self, fd: int) -> None:
        """Close a descriptor of a file in the store, which on a remote one may take as long as any call."""
        if self.local:
            os.close(fd)
        else:
            trio.lowlevel.start_thread_soon(lambda: os.close(fd), lambda outcome: None)

    # -- names -----------------------------------------------------------------

    async def stat(self, path: bytes) -> Stat:
        return await self.call(self._stat, path)

    def _stat(self, path: bytes) -> Stat:
        directory, name = beneath.split(path)
        if not directory:
            return to_stat(os.stat(name or b".", dir_fd=self._root, follow_symlinks=False))
        fd = beneath.open_beneath(self._root, path, os.O_PATH | os.O_NOFOLLOW)
        try:
            return to_stat(os.fstat(fd))
        finally:
            os.close(fd)

    async def open(self, path: bytes) -> Reader:
        fd = await self.call(self._open, path, drop=self.let_go)
        return FileReader(self, fd)

    async def fetch(
        self, path: bytes, most_bytes: int, known: Stat | None = None
    ) -> tuple[Stat, bytes | None]:
        st, data = await self.call(fetch, self._root, path, most_bytes, known, not self.local)
        self.read_bytes += len(data or b"")
        return st, data

    def reader(self, fd: int) -> Reader:
        return FileReader(self, fd)

    def _open(self, path: bytes) -> int:
        fd, _ = open_file(self._root, path)
        return fd

    async def scan(self, path: bytes) -> DirectoryReader:
        fd = await self.call(self._open_scan, path, drop=self.let_go)
        return FileDirectoryReader(self, fd, hide=RESERVED if not path else None)

    def _open_scan(self, path: bytes) -> int:
        return beneath.open_beneath(self._root, path, os.O_RDONLY | os.O_DIRECTORY)

    async def readlink(self, path: bytes) -> bytes:
        return await self.call(self._readlink, path)

    def _readlink(self, path: bytes) -> bytes:
        with self._parent(path) as (fd, name):
            return os.readlink(name, dir_fd=fd)

    async def mkdir(self, path: bytes, mode: int, owner: Owner) -> Stat:
        return await self.call(self._mkdir, path, mode, owner)

    def _mkdir(self, path: bytes, mode: int, owner: Owner) -> Stat:
        with self._parent(path) as (fd, name):
            os.mkdir(name, mode & 0o7777, dir_fd=fd)
            try:
                return self._settle(fd, name, mode, owner)
            except BaseException:
                os.rmdir(name, dir_fd=fd)
                raise

    async def mknod(self, path: bytes, mode: int, rdev: int, owner: Owner) -> Stat:
        return await self.call(self._mknod, path, mode, rdev, owner)

    def _mknod(self, path: bytes, mode: int, rdev: int, owner: Owner) -> Stat:
        with self._parent(path) as (fd, name):
            os.mknod(name, mode, rdev, dir_fd=fd)
            try:
                return self._settle(fd, name, mode, owner)
            except BaseException:
                os.unlink(name, dir_fd=fd)
                raise

    async def symlink(self, path: bytes, target: bytes, owner: Owner) -> Stat:
        return await self.call(self._symlink, path, target, owner)

    def _symlink(self, path: bytes, target: bytes, owner: Owner) -> Stat:
        with self._parent(path) as (fd, name):
            os.symlink(target, name, dir_fd=fd)
            try:
                return self._settle(fd, name, None, owner)
            except BaseException:
                os.unlink(name, dir_fd=fd)
                raise

    def _settle(self, parent: int, name: bytes, mode: int | None, owner: Owner) -> Stat:
        """Owner and mode of a new name: the caller's, the group from a set-gid directory."""
        st = os.stat(name, dir_fd=parent, follow_symlinks=False)
        uid, gid = new_owner(os.fstat(parent), owner)
        if (st.st_uid, st.st_gid) != (uid, gid):
            os.chown(name, uid, gid, dir_fd=parent, follow_symlinks=False)
        if mode is not None:
            wanted = mode & 0o7777
            if _stat.S_ISDIR(st.st_mode):
                wanted |= st.st_mode & _stat.S_ISGID  # inherited from the directory above
            if _stat.S_IMODE(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode) != wanted:
                os.chmod(name, wanted, dir_fd=parent)
        return to_stat(os.stat(name, dir_fd=parent, follow_symlinks=False))

    async def link(self, path: bytes, new: bytes) -> Stat:
        return await self.call(self._link, path, new)

    def _link(self, path: bytes, new: bytes) -> Stat:
        with self._parent(path) as (fd, name), self._parent(new) as (new_fd, new_name):
            os.link(name, new_name, src_dir_fd=fd, dst_dir_fd=new_fd, follow_symlinks=False)
            return to_stat(os.stat(new_name, dir_fd=new_fd, follow_symlinks=False))

    async def unlink(self, path: bytes) -> None:
        await self.call(self._unlink, path)

    def _unlink(self, path: bytes) -> None:
        with self._parent(path) as (fd, name):
            os.unlink(name, dir_fd=fd)

    async def rmdir(self, path: bytes) -> None:
        await self.call(self._rmdir, path)

    def _rmdir(self, path: bytes) -> None:
        with self._parent(path) as (fd, name):
            os.rmdir(name, dir_fd=fd)

    async def rename(self, old: bytes, new: bytes, flags: int) -> None:
        await self.call(self._rename, old, new, flags)

    def _rename(self, old: bytes, new: bytes, flags: int) -> None:
        with self._parent(old) as (fd, name), self._parent(new) as (new_fd, new_name):
            beneath.renameat2(fd, name, new_fd, new_name, flags)

    # -- attributes ------------------------------------------------------------

    async def change(self, path: bytes, changes: Changes) -> Stat:
        return await self.call(self._change, path, changes)

    def _change(self, path: bytes, changes: Changes) -> Stat:
        with self._object(path) as fd:
            apply_changes(fd, changes)
            return to_stat(os.fstat(fd))

    async def getxattr(self, path: bytes, name: bytes) -> bytes:
        return await self.call(self._getxattr, path, name)

    def _getxattr(self, path: bytes, name: bytes) -> bytes:
        with self._object(path) as fd:
            return os.getxattr(f"/proc/self/fd/{fd}", name)

    async def setxattr(self, path: bytes, name: bytes, value: bytes) -> None:
        await self.call(self._setxattr, path, name, value)

    def _setxattr(self, path: bytes, name: bytes, value: bytes) -> None:
        with self._object(path) as fd:
            os.setxattr(f"/proc/self/fd/{fd}", name, value)

    async def removexattr(self, path: bytes, name: bytes) -> None:
        await self.call(self._removexattr, path, name)

    def _removexattr(self, path: bytes, name: bytes) -> None:
        with self._object(path) as fd:
            os.removexattr(f"/proc/self/fd/{fd}", name)

    async def listxattr(self, path: bytes) -> list[bytes]:
        return await self.call(self._listxattr, path)

    def _listxattr(self, path: bytes) -> list[bytes]:
        with self._object(path) as fd:
            return [os.fsencode(name) for name in os.listxattr(f"/proc/self/fd/{fd}")]

    async def capacity(self) -> Capacity:
        return await self.call(self._capacity)

    def _capacity(self) -> Capacity:
        s = os.fstatvfs(self._root)
        return Capacity(
            s.f_bsize, s.f_frsize, s.f_blocks, s.f_bfree, s.f_bavail, s.f_files, s.f_ffree, s.f_namemax
        )

    async def sync_directory(self, path: bytes) -> None:
        await self.call(self._sync_directory, path, thread=True)

    def _sync_directory(self, path: bytes) -> None:
        fd = beneath.open_beneath(self._root, path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def is_moved(self, st: Stat, version: Version) -> bool:
        return same_but_for_ctime(st, version)

    # -- commits ---------------------------------------------------------------

    async def upload(
        self,
        staged: int,
        name: str | None,
        *,
        durable: bool,
        observe: Observer | None,
        replaces: bool = False,
    ) -> Upload:
        return await self._transfers.upload(staged, name, durable=durable, observe=observe, replaces=replaces)

    async def begin(self, staged: int) -> Transfer:
        return await self._transfers.begin(staged)

    async def keep_left(self, trace: str, path: bytes) -> bytes | None:
        return await self.call(self._keep_left, trace, path)

    def _keep_left(self, trace: str, path: bytes) -> bytes | None:
        assert self._reserved is not None
        return keep_left(self._root, self._reserved.staging, self._reserved.places(), trace, path)

    async def clear_left(self) -> None:
        if self._reserved is not None:
            await self.call(self._reserved.clear_left, thread=True)

    async def overwrite(self, staged: int, path: bytes, observe: Observer | None) -> Stat:
        st = await self.call(self._overwrite, staged, path, observe, thread=True)
        self.written_bytes += st.size
        return st

    def _overwrite(self, staged: int, path: bytes, observe: Observer | None) -> Stat:
        fd = beneath.open_beneath(self._root, path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
        return copy_over(staged, fd, observe)

    # -- descriptors -----------------------------------------------------------

    def _parent(self, path: bytes) -> _Descriptor[tuple[int, bytes]]:
        """The directory of a name, open, and the name."""
        directory, name = beneath.split(path)
        if not directory:
            return _Descriptor(None, (self._root, name))
        fd = beneath.open_directory(self._root, directory)
        return _Descriptor(fd, (fd, name))

    def _object(self, path: bytes) -> _Descriptor[int]:
        """The object behind a name, whatever its kind, as an O_PATH descriptor."""
        fd = beneath.open_beneath(self._root, path, os.O_PATH | os.O_NOFOLLOW)
        return _Descriptor(fd, fd)


class _Descriptor(Generic[T]):
    """A descriptor that is closed at the end of a `with`, and what the block works with."""

    __slots__ = ("_fd", "_value")

    def __init__(self, fd: int | None, value: T) -> None:
        self._fd = fd
        self._value = value

    def __enter__(self) -> T:
        return self._value

    def __exit__(self, *exc: object) -> None:
        if self._fd is not None:
            os.close(self._fd)
