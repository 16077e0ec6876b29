"""The table of requests: each is translated, calls `fs.vfs`, and is translated back. No behavior.

What is not in the table is answered ENOSYS, which the kernel remembers: it asks no
more, and does without (LSEEK, FALLOCATE, COPY_FILE_RANGE, STATX, locks).

*Concurrency:* a task each. A buffer that `read` answers is written to the device
before anything else runs, because nothing here awaits after the call.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from volfs.errors import VolfsError
from volfs.fs.handles import Opened
from volfs.fs.vfs import Caller, Entry, Vfs
from volfs.kernel.direct.session import Refused
from volfs.kernel.direct.wire import encode, entries
from volfs.kernel.direct.wire.encode import Attr, Buffer
from volfs.kernel.direct.wire.flags import Fattr, Fopen
from volfs.kernel.direct.wire.opcodes import Opcode
from volfs.kernel.direct.wire.requests import Request
from volfs.kernel.guard import failed
from volfs.store.base import Changes

__all__ = ["Operations"]

_Handler = Callable[[Request[Any]], Awaitable[Sequence[Buffer]]]

_NOTHING: Final[tuple[Buffer, ...]] = ()
_NS: Final = 1_000_000_000


class Operations:
    """`session.Answer` over a Vfs."""

    def __init__(self, vfs: Vfs) -> None:
        self._vfs = vfs
        handlers: dict[int, _Handler] = {
            Opcode.LOOKUP: self.lookup,
            Opcode.FORGET: self.forget,
            Opcode.GETATTR: self.getattr,
            Opcode.SETATTR: self.setattr,
            Opcode.READLINK: self.readlink,
            Opcode.SYMLINK: self.symlink,
            Opcode.MKNOD: self.mknod,
            Opcode.MKDIR: self.mkdir,
            Opcode.UNLINK: self.unlink,
            Opcode.RMDIR: self.rmdir,
            Opcode.RENAME: self.rename,
            Opcode.LINK: self.link,
            Opcode.OPEN: self.open,
            Opcode.READ: self.read,
            Opcode.WRITE: self.write,
            Opcode.STATFS: self.statfs,
            Opcode.RELEASE: self.release,
            Opcode.FSYNC: self.fsync,
            Opcode.SETXATTR: self.setxattr,
            Opcode.GETXATTR: self.getxattr,
            Opcode.LISTXATTR: self.listxattr,
            Opcode.REMOVEXATTR: self.removexattr,
            Opcode.FLUSH: self.flush,
            Opcode.OPENDIR: self.opendir,
            Opcode.RELEASEDIR: self.releasedir,
            Opcode.FSYNCDIR: self.fsyncdir,
            Opcode.CREATE: self.create,
            Opcode.DESTROY: self.destroy,
            Opcode.BATCH_FORGET: self.forget,
            Opcode.READDIRPLUS: self.readdir,
            Opcode.RENAME2: self.rename,
        }
        # Under the names that the other transport counts them by.
        self._handlers = {opcode: (handler.__name__, handler) for opcode, handler in handlers.items()}

    async def answer(self, request: Request[Any]) -> Sequence[Buffer]:
        """The part of the reply; raises Refused."""
        known = self._handlers.get(request.opcode)
        if known is None:
            raise Refused(errno.ENOSYS)
        name, handler = known
        self._vfs.volume.operations[name] += 1
        try:
            return await handler(request)
        except Refused:
            raise
        except Exception as error:
            body = request.body
            details = body if isinstance(body, tuple) else (body,)
            raise Refused(failed(self._vfs.volume, error, name, request.nodeid, *details)) from None

    # -- names -----------------------------------------------------------------

    async def lookup(self, request: Request[Any]) -> Sequence[Buffer]:
        return _entry(await self._vfs.lookup(request.nodeid, request.body, _caller(request)))

    async def forget(self, request: Request[Any]) -> Sequence[Buffer]:
        self._vfs.forget(request.body)
        return _NOTHING

    async def mkdir(self, request: Request[Any]) -> Sequence[Buffer]:
        mode = stat.S_IFDIR | request.body.mode & 0o7777
        return _entry(await self._vfs.mkdir(request.nodeid, request.body.name, mode, _caller(request)))

    async def mknod(self, request: Request[Any]) -> Sequence[Buffer]:
        body, caller = request.body, _caller(request)
        return _entry(await self._vfs.mknod(request.nodeid, body.name, body.mode, body.rdev, caller))

    async def symlink(self, request: Request[Any]) -> Sequence[Buffer]:
        body = request.body
        return _entry(await self._vfs.symlink(request.nodeid, body.name, body.target, _caller(request)))

    async def link(self, request: Request[Any]) -> Sequence[Buffer]:
        return _entry(await self._vfs.link(request.body.oldnodeid, request.nodeid, request.body.name))

    async def unlink(self, request: Request[Any]) -> Sequence[Buffer]:
        await self._vfs.unlink(request.nodeid, request.body)
        return _NOTHING

    async def rmdir(self, request: Request[Any]) -> Sequence[Buffer]:
        await self._vfs.rmdir(request.nodeid, request.body)
        return _NOTHING

    async def rename(self, request: Request[Any]) -> Sequence[Buffer]:
        body = request.body
        await self._vfs.rename(request.nodeid, body.name, body.newdir, body.newname, body.flags)
        return _NOTHING

    async def readlink(self, request: Request[Any]) -> Sequence[Buffer]:
        return (await self._vfs.readlink(request.nodeid),)

    # -- attributes ------------------------------------------------------------

    async def getattr(self, request: Request[Any]) -> Sequence[Buffer]:
        return _attributes(await self._vfs.getattr(request.nodeid))

    async def setattr(self, request: Request[Any]) -> Sequence[Buffer]:
        body = request.body
        valid = body.valid
        changes = Changes(
            mode=body.mode if valid & Fattr.MODE else None,
            uid=body.uid if valid & Fattr.UID else None,
            gid=body.gid if valid & Fattr.GID else None,
            # Of "now" (ATIME_NOW, MTIME_NOW) the kernel says which time that is.
            atime_ns=body.atime * _NS + body.atimensec if valid & Fattr.ATIME else None,
            mtime_ns=body.mtime * _NS + body.mtimensec if valid & Fattr.MTIME else None,
        )
        size = body.size if valid & Fattr.SIZE else None
        return _attributes(await self._vfs.setattr(request.nodeid, changes, size))

    async def getxattr(self, request: Request[Any]) -> Sequence[Buffer]:
        value = await self._vfs.getxattr(request.nodeid, request.body.name, _caller(request))
        return _sized(value, request.body.size)

    async def setxattr(self, request: Request[Any]) -> Sequence[Buffer]:
        body = request.body
        if body.flags:
            await self._check_xattr(request)
        await self._vfs.setxattr(request.nodeid, body.name, body.value, _caller(request))
        return _NOTHING

    async def _check_xattr(self, request: Request[Any]) -> None:
        """What setxattr(2) may be told: that the attribute must not be there yet, or must."""
        body = request.body
        try:
            await self._vfs.getxattr(request.nodeid, body.name, _caller(request))
        except VolfsError as error:
            if error.errno != errno.ENODATA or body.flags & os.XATTR_REPLACE:
                raise
        else:
            if body.flags & os.XATTR_CREATE:
                raise Refused(errno.EEXIST)

    async def removexattr(self, request: Request[Any]) -> Sequence[Buffer]:
        await self._vfs.removexattr(request.nodeid, request.body)
        return _NOTHING

    async def listxattr(self, request: Request[Any]) -> Sequence[Buffer]:
        names = await self._vfs.listxattr(request.nodeid)
        return _sized(b"".join(name + b"\0" for name in names), request.body.size)

    async def statfs(self, request: Request[Any]) -> Sequence[Buffer]:
        room = await self._vfs.statfs()
        said = encode.Statfs(
            blocks=room.blocks,
            bfree=room.blocks_free,
            bavail=room.blocks_available,
            files=room.files,
            ffree=room.files_free,
            bsize=room.block,
            namelen=room.name_max,
            frsize=room.fragment,
        )
        return (encode.statfs(said),)

    # -- files -----------------------------------------------------------------

    async def open(self, request: Request[Any]) -> Sequence[Buffer]:
        flags = request.body.flags
        opened = await self._vfs.open(request.nodeid, flags, _caller(request))
        return (encode.opened(opened.handle, _open_flags(opened, flags)),)

    async def create(self, request: Request[Any]) -> Sequence[Buffer]:
        body = request.body
        entry, opened = await self._vfs.create(
            request.nodeid, body.name, body.mode, body.flags, _caller(request)
        )
        hold_s, flags = entry.timeout_s, _open_flags(opened, body.flags)
        return (encode.created(entry.number, _attr(entry), hold_s, hold_s, opened.handle, flags),)

    async def read(self, request: Request[Any]) -> Sequence[Buffer]:
        body = request.body
        return (await self._vfs.read(body.fh, body.offset, body.size),)

    async def write(self, request: Request[Any]) -> Sequence[Buffer]:
        body = request.body
        return (encode.written(await self._vfs.write(body.fh, body.offset, body.data)),)

    async def flush(self, request: Request[Any]) -> Sequence[Buffer]:
        await self._vfs.flush(request.body.fh)
        return _NOTHING

    async def fsync(self, request: Request[Any]) -> Sequence[Buffer]:
        await self._vfs.fsync(request.body.fh)
        return _NOTHING

    async def release(self, request: Request[Any]) -> Sequence[Buffer]:
        await self._vfs.release(request.body.fh)
        return _NOTHING

    # -- directories -----------------------------------------------------------

    async def opendir(self, request: Request[Any]) -> Sequence[Buffer]:
        return (encode.opened(await self._vfs.opendir(request.nodeid)),)

    async def readdir(self, request: Request[Any]) -> Sequence[Buffer]:
        found, room = bytearray(), request.body.size

        def emit(name: bytes, entry: Entry, after: int) -> bool:
            hold_s = entry.timeout_s
            return entries.add_plus(found, room, name, entry.number, _attr(entry), after, hold_s, hold_s)

        await self._vfs.readdir(request.body.fh, request.body.offset, emit)
        return (found,)

    async def releasedir(self, request: Request[Any]) -> Sequence[Buffer]:
        await self._vfs.releasedir(request.body.fh)
        return _NOTHING

    async def fsyncdir(self, request: Request[Any]) -> Sequence[Buffer]:
        await self._vfs.fsyncdir(request.body.fh)
        return _NOTHING

    # -- the session -------------------------------------------------------------

    async def destroy(self, request: Request[Any]) -> Sequence[Buffer]:
        return _NOTHING


def _caller(request: Request[Any]) -> Caller:
    return Caller(request.uid, request.gid, request.pid)


def _attr(entry: Entry) -> Attr:
    st = entry.stat
    atime, atime_ns = divmod(st.atime_ns, _NS)
    mtime, mtime_ns = divmod(st.mtime_ns, _NS)
    ctime, ctime_ns = divmod(st.ctime_ns, _NS)
    return Attr(
        ino=entry.number,
        size=st.size,
        blocks=st.blocks,
        atime=atime,
        mtime=mtime,
        ctime=ctime,
        atimensec=atime_ns,
        mtimensec=mtime_ns,
        ctimensec=ctime_ns,
        mode=st.mode,
        nlink=st.nlink,
        uid=st.uid,
        gid=st.gid,
        rdev=st.rdev,
    )


def _entry(entry: Entry) -> Sequence[Buffer]:
    return (encode.entry(entry.number, _attr(entry), entry.timeout_s, entry.timeout_s),)


def _attributes(entry: Entry) -> Sequence[Buffer]:
    return (encode.attributes(_attr(entry), entry.timeout_s),)


def _open_flags(opened: Opened, flags: int) -> int:
    said = Fopen.KEEP_CACHE if opened.keep_cache else 0
    if flags & os.O_ACCMODE == os.O_RDONLY:
        said |= Fopen.NOFLUSH  # a close that has nothing to say
    return said


def _sized(value: bytes, room: int) -> Sequence[Buffer]:
    """An extended attribute, or its size if that is asked for."""
    if not room:
        return (encode.xattr_size(len(value)),)
    if len(value) > room:
        raise Refused(errno.ERANGE)
    return (value,)
