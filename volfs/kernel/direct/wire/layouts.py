"""How the structures of the protocol lie in memory: each has its C name, its fields and its size.

Fields are written as `name:letter` with the letters of the module `struct`;
what has no name is padding. A structure within a structure is written out, its
fields with dots. Which minor version brought a field is in `handshake`, where
it matters.

Seconds are signed here, though the header calls them unsigned: the kernel takes
them for signed, and files from before 1970 exist.

*Invariants:* native byte order and no implied padding. Since 7.31 every
structure has one size, except INIT's and SETXATTR's.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct, calcsize
from typing import Final

__all__ = [
    "ACCESS_IN",
    "ATTR",
    "ATTR_OUT",
    "BACKING_MAP",
    "BATCH_FORGET_IN",
    "COPY_FILE_RANGE_IN",
    "COPY_FILE_RANGE_OUT",
    "CREATE_IN",
    "DIRENT",
    "DIRENTPLUS",
    "ENTRY_OUT",
    "FALLOCATE_IN",
    "FLUSH_IN",
    "FORGET_IN",
    "FORGET_ONE",
    "FSYNC_IN",
    "GETATTR_IN",
    "GETXATTR_IN",
    "GETXATTR_OUT",
    "INIT_IN",
    "INIT_OUT",
    "INTERRUPT_IN",
    "IN_HEADER",
    "LINK_IN",
    "LK_IN",
    "LK_OUT",
    "LSEEK_IN",
    "LSEEK_OUT",
    "MKDIR_IN",
    "MKNOD_IN",
    "NOTIFY_DELETE_OUT",
    "NOTIFY_INVAL_ENTRY_OUT",
    "NOTIFY_INVAL_INODE_OUT",
    "NOTIFY_PRUNE_OUT",
    "NOTIFY_RETRIEVE_IN",
    "NOTIFY_RETRIEVE_OUT",
    "NOTIFY_STORE_OUT",
    "OPEN_IN",
    "OPEN_OUT",
    "OUT_HEADER",
    "READ_IN",
    "RELEASE_IN",
    "RENAME2_IN",
    "RENAME_IN",
    "SETATTR_IN",
    "SETXATTR_IN",
    "SETXATTR_IN_SHORT",
    "STATFS_OUT",
    "STATX_IN",
    "STATX_OUT",
    "SYNCFS_IN",
    "WRITE_IN",
    "WRITE_OUT",
    "Layout",
]


@dataclass(frozen=True, slots=True)
class Layout:
    """One structure."""

    c_name: str
    struct: Struct
    offsets: dict[str, int]  #: where each field begins, in bytes, in the order of `struct`

    @property
    def size(self) -> int:
        """In bytes, without what follows (names, data)."""
        return self.struct.size

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(self.offsets)


def _layout(c_name: str, *parts: str) -> Layout:
    form, offsets = "=", {}
    for word in " ".join(parts).split():
        field, named, letter = word.rpartition(":")
        if named:
            offsets[field] = calcsize(form)
        form += letter
    return Layout(c_name, Struct(form), offsets)


def _within(field: str, words: str) -> str:
    return " ".join(f"{field}.{word}" for word in words.split())


_ATTR: Final = (
    "ino:Q size:Q blocks:Q atime:q mtime:q ctime:q atimensec:I mtimensec:I ctimensec:I mode:I nlink:I uid:I "
    "gid:I rdev:I blksize:I flags:I"
)
_LOCK: Final = "start:Q end:Q type:I pid:I"
_DIRENT: Final = "ino:Q off:Q namelen:I type:I"
_ENTRY: Final = "nodeid:Q generation:Q entry_valid:Q attr_valid:Q entry_valid_nsec:I attr_valid_nsec:I"
_STATFS: Final = "blocks:Q bfree:Q bavail:Q files:Q ffree:Q bsize:I namelen:I frsize:I"

IN_HEADER = _layout("fuse_in_header", "len:I opcode:I unique:Q nodeid:Q uid:I gid:I pid:I total_extlen:H 2x")
OUT_HEADER = _layout("fuse_out_header", "len:I error:i unique:Q")

# -- names and nodes -------------------------------------------------------------

ATTR = _layout("fuse_attr", _ATTR)
ENTRY_OUT = _layout("fuse_entry_out", _ENTRY, _within("attr", _ATTR))
FORGET_IN = _layout("fuse_forget_in", "nlookup:Q")
FORGET_ONE = _layout("fuse_forget_one", "nodeid:Q nlookup:Q")
BATCH_FORGET_IN = _layout("fuse_batch_forget_in", "count:I 4x")
MKNOD_IN = _layout("fuse_mknod_in", "mode:I rdev:I umask:I 4x")
MKDIR_IN = _layout("fuse_mkdir_in", "mode:I umask:I")
RENAME_IN = _layout("fuse_rename_in", "newdir:Q")
RENAME2_IN = _layout("fuse_rename2_in", "newdir:Q flags:I 4x")
LINK_IN = _layout("fuse_link_in", "oldnodeid:Q")
DIRENT = _layout("fuse_dirent", _DIRENT)
DIRENTPLUS = _layout(
    "fuse_direntplus",
    _within("entry_out", _ENTRY),
    _within("entry_out.attr", _ATTR),
    _within("dirent", _DIRENT),
)

# -- attributes ------------------------------------------------------------------

GETATTR_IN = _layout("fuse_getattr_in", "getattr_flags:I 4x fh:Q")
ATTR_OUT = _layout("fuse_attr_out", "attr_valid:Q attr_valid_nsec:I 4x", _within("attr", _ATTR))
SETATTR_IN = _layout(
    "fuse_setattr_in",
    "valid:I 4x fh:Q size:Q lock_owner:Q atime:q mtime:q ctime:q atimensec:I mtimensec:I ctimensec:I",
    "mode:I 4x uid:I gid:I 4x",
)
STATX_IN = _layout("fuse_statx_in", "getattr_flags:I 4x fh:Q sx_flags:I sx_mask:I")
STATX_OUT = _layout(
    "fuse_statx_out",
    "attr_valid:Q attr_valid_nsec:I flags:I 16x",
    "stat.mask:I stat.blksize:I stat.attributes:Q stat.nlink:I stat.uid:I stat.gid:I stat.mode:H 2x",
    "stat.ino:Q stat.size:Q stat.blocks:Q stat.attributes_mask:Q",
    "stat.atime.tv_sec:q stat.atime.tv_nsec:I 4x stat.btime.tv_sec:q stat.btime.tv_nsec:I 4x",
    "stat.ctime.tv_sec:q stat.ctime.tv_nsec:I 4x stat.mtime.tv_sec:q stat.mtime.tv_nsec:I 4x",
    "stat.rdev_major:I stat.rdev_minor:I stat.dev_major:I stat.dev_minor:I 112x",
)
SETXATTR_IN = _layout("fuse_setxattr_in", "size:I flags:I setxattr_flags:I 4x")
#: Unless InitFlag.SETXATTR_EXT was granted: the first half of it.
SETXATTR_IN_SHORT = _layout("fuse_setxattr_in", "size:I flags:I")
GETXATTR_IN = _layout("fuse_getxattr_in", "size:I 4x")
GETXATTR_OUT = _layout("fuse_getxattr_out", "size:I 4x")
ACCESS_IN = _layout("fuse_access_in", "mask:I 4x")
STATFS_OUT = _layout("fuse_statfs_out", _within("st", _STATFS), "28x")

# -- files -----------------------------------------------------------------------

OPEN_IN = _layout("fuse_open_in", "flags:I open_flags:I")
CREATE_IN = _layout("fuse_create_in", "flags:I mode:I umask:I open_flags:I")
OPEN_OUT = _layout("fuse_open_out", "fh:Q open_flags:I backing_id:i")
RELEASE_IN = _layout("fuse_release_in", "fh:Q flags:I release_flags:I lock_owner:Q")
FLUSH_IN = _layout("fuse_flush_in", "fh:Q 8x lock_owner:Q")
FSYNC_IN = _layout("fuse_fsync_in", "fh:Q fsync_flags:I 4x")
READ_IN = _layout("fuse_read_in", "fh:Q offset:Q size:I read_flags:I lock_owner:Q flags:I 4x")
WRITE_IN = _layout("fuse_write_in", "fh:Q offset:Q size:I write_flags:I lock_owner:Q flags:I 4x")
WRITE_OUT = _layout("fuse_write_out", "size:I 4x")
LK_IN = _layout("fuse_lk_in", "fh:Q owner:Q", _within("lk", _LOCK), "lk_flags:I 4x")
LK_OUT = _layout("fuse_lk_out", _within("lk", _LOCK))
FALLOCATE_IN = _layout("fuse_fallocate_in", "fh:Q offset:Q length:Q mode:I 4x")
LSEEK_IN = _layout("fuse_lseek_in", "fh:Q offset:Q whence:I 4x")
LSEEK_OUT = _layout("fuse_lseek_out", "offset:Q")
COPY_FILE_RANGE_IN = _layout(
    "fuse_copy_file_range_in", "fh_in:Q off_in:Q nodeid_out:Q fh_out:Q off_out:Q len:Q flags:Q"
)
COPY_FILE_RANGE_OUT = _layout("fuse_copy_file_range_out", "bytes_copied:Q")
SYNCFS_IN = _layout("fuse_syncfs_in", "8x")

# -- the session -----------------------------------------------------------------

INIT_IN = _layout("fuse_init_in", "major:I minor:I max_readahead:I flags:I flags2:I 44x")
INIT_OUT = _layout(
    "fuse_init_out",
    "major:I minor:I max_readahead:I flags:I max_background:H congestion_threshold:H max_write:I time_gran:I",
    "max_pages:H map_alignment:H flags2:I max_stack_depth:I request_timeout:H 22x",
)
INTERRUPT_IN = _layout("fuse_interrupt_in", "unique:Q")
BACKING_MAP = _layout("fuse_backing_map", "fd:i flags:I 8x")

# -- notifications ---------------------------------------------------------------

NOTIFY_INVAL_INODE_OUT = _layout("fuse_notify_inval_inode_out", "ino:Q off:q len:q")
NOTIFY_INVAL_ENTRY_OUT = _layout("fuse_notify_inval_entry_out", "parent:Q namelen:I flags:I")
NOTIFY_DELETE_OUT = _layout("fuse_notify_delete_out", "parent:Q child:Q namelen:I 4x")
NOTIFY_STORE_OUT = _layout("fuse_notify_store_out", "nodeid:Q offset:Q size:I 4x")
NOTIFY_RETRIEVE_OUT = _layout("fuse_notify_retrieve_out", "notify_unique:Q nodeid:Q offset:Q size:I 4x")
NOTIFY_RETRIEVE_IN = _layout("fuse_notify_retrieve_in", "8x offset:Q size:I 20x")
NOTIFY_PRUNE_OUT = _layout("fuse_notify_prune_out", "count:I 12x")
