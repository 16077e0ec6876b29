"""Asynchronous writes by Linux's own AIO (io_submit(2)): several at once, made by one thread.

It knows neither files nor stores. Why it is here: a FUSE client holds the inode's
lock over each write that it waits for (fs/fuse/file.c, fuse_cache_write_iter), so
that no number of threads or descriptors writes one file side by side, and each
write of 1 MiB waits for its own round trip. An asynchronous direct write that
does not extend the file is sent, and the lock let go.

Blocking; a queue belongs to one thread.

*Invariants:* `close` returns once the kernel is done with every buffer.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import Final

__all__ = ["Queue"]


class _Request(ctypes.Structure):
    """struct iocb of linux/aio_abi.h, on a little-endian machine."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("key", ctypes.c_uint32),
        ("flags_of_call", ctypes.c_uint32),
        ("opcode", ctypes.c_uint16),
        ("priority", ctypes.c_int16),
        ("fd", ctypes.c_uint32),
        ("buffer", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("offset", ctypes.c_int64),
        ("reserved", ctypes.c_uint64),
        ("flags", ctypes.c_uint32),
        ("event_fd", ctypes.c_uint32),
    )


class _Event(ctypes.Structure):
    """struct io_event."""

    _fields_ = (
        ("data", ctypes.c_uint64),
        ("request", ctypes.c_uint64),
        ("result", ctypes.c_int64),
        ("result2", ctypes.c_int64),
    )


_PWRITE: Final = 1

#: io_setup, io_destroy, io_submit, io_getevents.
_CALLS: Final = {"x86_64": (206, 207, 209, 208), "aarch64": (0, 1, 2, 4)}.get(os.uname().machine)

_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long


def _call(number: int, *args: object) -> int:
    result = int(_syscall(ctypes.c_long(number), *args))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


class Queue:
    """At most `depth` writes under way. OSError where the machine or its rules know no AIO."""

    def __init__(self, depth: int) -> None:
        if _CALLS is None:
            raise OSError(errno.ENOSYS, "no known AIO on this machine")
        self._setup, self._destroy, self._submit, self._events = _CALLS
        self._context = ctypes.c_ulong(0)
        _call(self._setup, ctypes.c_ulong(depth), ctypes.byref(self._context))
        self._requests: dict[int, _Request] = {}

    def write(self, tag: int, fd: int, address: int, size: int, offset: int) -> None:
        """Begin to write `size` bytes from memory, which stays until `wait` has answered the `tag`."""
        request = _Request(data=tag, opcode=_PWRITE, fd=fd, buffer=address, size=size, offset=offset)
        one = (ctypes.c_void_p * 1)(ctypes.addressof(request))
        _call(self._submit, self._context, ctypes.c_long(1), one)
        self._requests[tag] = request

    def wait(self) -> tuple[int, int]:
        """The tag of a write that ended, and how much was written or the negative errno."""
        event = _Event()
        while True:
            try:
                _call(
                    self._events, self._context, ctypes.c_long(1), ctypes.c_long(1), ctypes.byref(event), None
                )
            except InterruptedError:
                continue
            del self._requests[event.data]
            return int(event.data), int(event.result)

    def close(self) -> None:
        """Wait for what is under way."""
        _call(self._destroy, self._context)
