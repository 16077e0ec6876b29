"""The transport over pyfuse3: each handler translates, calls `fs.vfs`, translates back. No behavior.

*Concurrency:* pyfuse3 runs each request as a task in the trio thread. A buffer
that `read` answers is copied into the reply before anything else runs, because
nothing here awaits after the call.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, cast
from urllib.parse import quote

import pyfuse3

from volfs.config import MountConfig
from volfs.errors import SetupError
from volfs.fs.vfs import Caller, Entry, Vfs
from volfs.kernel.guard import failed
from volfs.kernel.transport import REQUESTS_AT_ONCE
from volfs.store.base import Changes

__all__ = ["Operations", "Pyfuse", "PyfuseSender", "options"]

P = ParamSpec("P")
R = TypeVar("R")

#: What users see as the preferred size of a read or write; larger ones reach 1 MiB a request all the same.
_BLOCK_SIZE = 4096

_Handler = Callable[Concatenate["Operations", P], Coroutine[Any, Any, R]]


def _guarded(handler: _Handler[P, R]) -> _Handler[P, R]:
    """Every exception becomes an errno for this one request."""
    name = handler.__name__

    @wraps(handler)
    async def guarded(self: Operations, /, *args: P.args, **kwargs: P.kwargs) -> R:
        self.vfs.volume.operations[name] += 1
        try:
            return await handler(self, *args, **kwargs)
        except Exception as error:
            raise pyfuse3.FUSEError(failed(self.vfs.volume, error, name, *args)) from None

    return guarded


class Operations(pyfuse3.Operations):
    """pyfuse3's table of handlers."""

    supports_dot_lookup = False
    enable_writeback_cache = False
    enable_acl = False

    def __init__(self, vfs: Vfs) -> None:
        super().__init__()
        self.vfs = vfs

    # -- names -----------------------------------------------------------------

    @_guarded
    async def lookup(
        self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.EntryAttributes:
        return _attributes(await self.vfs.lookup(parent_inode, name, _caller(ctx)))

    async def forget(self, inode_list: Sequence[tuple[pyfuse3.InodeT, int]]) -> None:
        try:
            self.vfs.forget(list(inode_list))
        except Exception as error:  # there is no reply that could carry it
            failed(self.vfs.volume, error, "forget")

    @_guarded
    async def mkdir(
        self,
        parent_inode: pyfuse3.InodeT,
        name: pyfuse3.FileNameT,
        mode: pyfuse3.ModeT,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        return _attributes(await self.vfs.mkdir(parent_inode, name, mode, _caller(ctx)))

    @_guarded
    async def mknod(
        self,
        parent_inode: pyfuse3.InodeT,
        name: pyfuse3.FileNameT,
        mode: pyfuse3.ModeT,
        rdev: int,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        return _attributes(await self.vfs.mknod(parent_inode, name, mode, rdev, _caller(ctx)))

    @_guarded
    async def symlink(
        self,
        parent_inode: pyfuse3.InodeT,
        name: pyfuse3.FileNameT,
        target: pyfuse3.FileNameT,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        return _attributes(await self.vfs.symlink(parent_inode, name, target, _caller(ctx)))

    @_guarded
    async def link(
        self,
        inode: pyfuse3.InodeT,
        new_parent_inode: pyfuse3.InodeT,
        new_name: pyfuse3.FileNameT,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        return _attributes(await self.vfs.link(inode, new_parent_inode, new_name))

    @_guarded
    async def unlink(
        self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext
    ) -> None:
        await self.vfs.unlink(parent_inode, name)

    @_guarded
    async def rmdir(
        self, parent_inode: pyfuse3.InodeT, name: pyfuse3.FileNameT, ctx: pyfuse3.RequestContext
    ) -> None:
        await self.vfs.rmdir(parent_inode, name)

    @_guarded
    async def rename(
        self,
        parent_inode_old: pyfuse3.InodeT,
        name_old: pyfuse3.FileNameT,
        parent_inode_new: pyfuse3.InodeT,
        name_new: pyfuse3.FileNameT,
        flags: pyfuse3.FlagT,
        ctx: pyfuse3.RequestContext,
    ) -> None:
        await self.vfs.rename(parent_inode_old, name_old, parent_inode_new, name_new, flags)

    @_guarded
    async def readlink(self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext) -> pyfuse3.FileNameT:
        return pyfuse3.FileNameT(await self.vfs.readlink(inode))

    # -- attributes ------------------------------------------------------------

    @_guarded
    async def getattr(self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext) -> pyfuse3.EntryAttributes:
        return _attributes(await self.vfs.getattr(inode))

    @_guarded
    async def setattr(
        self,
        inode: pyfuse3.InodeT,
        attr: pyfuse3.EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: pyfuse3.FileHandleT | None,
        ctx: pyfuse3.RequestContext,
    ) -> pyfuse3.EntryAttributes:
        changes = Changes(
            mode=attr.st_mode if fields.update_mode else None,
            uid=attr.st_uid if fields.update_uid else None,
            gid=attr.st_gid if fields.update_gid else None,
            atime_ns=attr.st_atime_ns if fields.update_atime else None,
            mtime_ns=attr.st_mtime_ns if fields.update_mtime else None,
        )
        size = attr.st_size if fields.update_size else None
        return _attributes(await self.vfs.setattr(inode, changes, size))

    @_guarded
    async def getxattr(
        self, inode: pyfuse3.InodeT, name: pyfuse3.XAttrNameT, ctx: pyfuse3.RequestContext
    ) -> bytes:
        return await self.vfs.getxattr(inode, name, _caller(ctx))

    @_guarded
    async def setxattr(
        self, inode: pyfuse3.InodeT, name: pyfuse3.XAttrNameT, value: bytes, ctx: pyfuse3.RequestContext
    ) -> None:
        await self.vfs.setxattr(inode, name, value, _caller(ctx))

    @_guarded
    async def removexattr(
        self, inode: pyfuse3.InodeT, name: pyfuse3.XAttrNameT, ctx: pyfuse3.RequestContext
    ) -> None:
        await self.vfs.removexattr(inode, name)

    @_guarded
    async def listxattr(
        self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext
    ) -> Sequence[pyfuse3.XAttrNameT]:
        return [pyfuse3.XAttrNameT(name) for name in await self.vfs.listxattr(inode)]

    @_guarded
    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        capacity = await self.vfs.statfs()
        data = pyfuse3.StatvfsData()
        data.f_bsize = capacity.block
        data.f_frsize = capacity.fragment
        data.f_blocks = capacity.blocks
        data.f_bfree = capacity.blocks_free
        data.f_bavail = capacity.blocks_available
        data.f_files = capacity.files
        data.f_ffree = data.f_favail = capacity.files_free
        data.f_namemax = capacity.name_max
        return data

    # -- files -----------------------------------------------------------------

    @_guarded
    async def open(
        self, inode: pyfuse3.InodeT, flags: pyfuse3.FlagT, ctx: pyfuse3.RequestContext
    ) -> pyfuse3.FileInfo:
        opened = await self.vfs.open(inode, flags, _caller(ctx))
        return pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(opened.handle), keep_cache=opened.keep_cache)

    @_guarded
    async def create(
        self,
        parent_inode: pyfuse3.InodeT,
        name: pyfuse3.FileNameT,
        mode: pyfuse3.ModeT,
        flags: pyfuse3.FlagT,
        ctx: pyfuse3.RequestContext,
    ) -> tuple[pyfuse3.FileInfo, pyfuse3.EntryAttributes]:
        entry, opened = await self.vfs.create(parent_inode, name, mode, flags, _caller(ctx))
        info = pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(opened.handle), keep_cache=opened.keep_cache)
        return info, _attributes(entry)

    @_guarded
    async def read(self, fh: pyfuse3.FileHandleT, off: int, size: int) -> bytes:
        # pyfuse3 takes any buffer, though its annotation says bytes.
        return cast(bytes, await self.vfs.read(fh, off, size))

    @_guarded
    async def write(self, fh: pyfuse3.FileHandleT, off: int, buf: bytes) -> int:
        return await self.vfs.write(fh, off, buf)

    @_guarded
    async def flush(self, fh: pyfuse3.FileHandleT) -> None:
        await self.vfs.flush(fh)

    @_guarded
    async def fsync(self, fh: pyfuse3.FileHandleT, datasync: bool) -> None:
        await self.vfs.fsync(fh)

    @_guarded
    async def release(self, fh: pyfuse3.FileHandleT) -> None:
        await self.vfs.release(fh)

    # -- directories -----------------------------------------------------------

    @_guarded
    async def opendir(self, inode: pyfuse3.InodeT, ctx: pyfuse3.RequestContext) -> pyfuse3.FileHandleT:
        return pyfuse3.FileHandleT(await self.vfs.opendir(inode))

    @_guarded
    async def readdir(self, fh: pyfuse3.FileHandleT, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        def emit(name: bytes, entry: Entry, after: int) -> bool:
            return bool(pyfuse3.readdir_reply(token, pyfuse3.FileNameT(name), _attributes(entry), after))

        await self.vfs.readdir(fh, start_id, emit)

    @_guarded
    async def releasedir(self, fh: pyfuse3.FileHandleT) -> None:
        await self.vfs.releasedir(fh)

    @_guarded
    async def fsyncdir(self, fh: pyfuse3.FileHandleT, datasync: bool) -> None:
        await self.vfs.fsyncdir(fh)


def _caller(ctx: pyfuse3.RequestContext) -> Caller:
    return Caller(ctx.uid, ctx.gid, ctx.pid)


def _attributes(entry: Entry) -> pyfuse3.EntryAttributes:
    st = entry.stat
    out = pyfuse3.EntryAttributes()
    out.st_ino = pyfuse3.InodeT(entry.number)
    out.entry_timeout = out.attr_timeout = entry.timeout_s
    out.st_mode = pyfuse3.ModeT(st.mode)
    out.st_nlink = st.nlink
    out.st_uid = st.uid
    out.st_gid = st.gid
    out.st_rdev = st.rdev
    out.st_size = st.size
    out.st_blksize = _BLOCK_SIZE
    out.st_blocks = st.blocks
    out.st_atime_ns = st.atime_ns
    out.st_mtime_ns = st.mtime_ns
    out.st_ctime_ns = st.ctime_ns
    return out


class Pyfuse:
    """`kernel.transport.Transport`."""

    name = "pyfuse3"

    def __init__(self, config: MountConfig) -> None:
        self._config = config

    @property
    def sender(self) -> PyfuseSender:
        return PyfuseSender()

    def mount(self, vfs: Vfs) -> None:
        config = self._config
        chosen = options(
            os.fsencode(config.backing), allow_other=config.allow_other, read_only=config.read_only
        )
        try:
            pyfuse3.init(Operations(vfs), str(config.mountpoint), chosen)
        except RuntimeError as error:
            raise SetupError(f"cannot mount at {config.mountpoint}: {error} (see the log)") from error

    async def serve(self) -> None:
        await pyfuse3.main(max_tasks=REQUESTS_AT_ONCE)

    def end(self) -> None:
        pyfuse3.terminate()

    def close(self, *, unmount: bool) -> None:
        pyfuse3.close(unmount=unmount)


class PyfuseSender:
    """`kernel.notify.Sender` over pyfuse3's blocking calls."""

    def content(self, number: int) -> None:
        pyfuse3.invalidate_inode(pyfuse3.InodeT(number))

    def attributes(self, number: int) -> None:
        pyfuse3.invalidate_inode(pyfuse3.InodeT(number), attr_only=True)

    def entry(self, parent: int, name: bytes, deleted: int) -> None:
        pyfuse3.invalidate_entry(pyfuse3.InodeT(parent), pyfuse3.FileNameT(name), pyfuse3.InodeT(deleted))


def options(source: bytes, *, allow_other: bool, read_only: bool) -> set[str]:
    """Mount options in libfuse's spelling. `source` is shown by mount and df."""
    # libfuse splits at commas and takes backslashes as escapes, pyfuse3 takes ASCII only.
    shown = quote(source, safe="/:+@=~ !()[]{}#&;'")
    chosen = {"default_permissions", f"fsname=volfs:{shown}", "subtype=volfs"}
    if allow_other:
        chosen.add("allow_other")
    if read_only:
        chosen.add("ro")
    return chosen
