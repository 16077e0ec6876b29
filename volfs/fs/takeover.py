"""The first step of a change: a staged file gets the content and the attributes of the version in the store.

It decides neither when that is needed nor what becomes of it (`fs.file`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from volfs.commit.staging import StagedFile
from volfs.errors import VersionChanged
from volfs.store.base import Changes, Stat

if TYPE_CHECKING:
    from volfs.fs.file import File

__all__ = ["take_over"]

#: One piece of a copy through memory.
_PIECE = 1 << 20


async def take_over(file: File, staged: StagedFile, st: Stat, path: bytes | None, existing: int) -> None:
    """Bring the first `existing` bytes of the version `st` and its attributes; `path`: where its xattrs are.

    VersionChanged if the bytes are not to be had.
    """
    volume = file.volume
    if existing and volume.cache is None:
        if file.reader is None:
            raise VersionChanged("the file is not open in the store")
        await file.reader.copy_to(staged.fd, existing)
    elif existing:
        for offset in range(0, existing, _PIECE):
            data = bytes(await file.read(offset, min(_PIECE, existing - offset), None))
            if len(data) < min(_PIECE, existing - offset):
                raise VersionChanged("the file became shorter")
            await staged.write(offset, data)
            if volume.cache is not None:
                await volume.cache.shrink()
    own = volume.policy.own_files
    staged.change(Changes(uid=st.uid if own else None, gid=st.gid if own else None, mode=st.mode))
    if path is not None:
        for name in await volume.store.listxattr(path):
            if name.startswith(b"user."):
                staged.setxattr(name, await volume.store.getxattr(path, name))
    staged.change(Changes(atime_ns=st.atime_ns, mtime_ns=st.mtime_ns))
