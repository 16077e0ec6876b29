"""Every failure that volfs names, in one tree.

    VolfsError                      errno EIO
    ├── StoreError                  a store call failed; errno is the store's own
    │   ├── NotFound                ENOENT
    │   ├── AlreadyExists           EEXIST
    │   └── StoreTimeout            ETIMEDOUT, retryable
    ├── VersionChanged              ESTALE: the bytes asked for belong to a version that is gone
    ├── NotPermitted                EPERM: volfs reserves the name or the mount is read-only by rule
    ├── StagedLost                  EIO: bytes that were acknowledged can no longer be read
    └── SetupError                  the mount cannot start; the message says what to do

Each class fixes `errno`, `retryable` and `log_level`. Raise with `from cause`.
An `OSError` of a system call is turned into a StoreError where it is caught, by
`from_os_error`; nothing above the store looks at error texts.
"""

from __future__ import annotations

import errno as _errno
import logging
import os
from typing import ClassVar

__all__ = [
    "AlreadyExists",
    "NotFound",
    "NotPermitted",
    "SetupError",
    "StagedLost",
    "StoreError",
    "StoreTimeout",
    "VersionChanged",
    "VolfsError",
    "from_os_error",
]


class VolfsError(Exception):
    """Base of the tree. `errno` is what the application gets."""

    errno: int = _errno.EIO
    retryable: ClassVar[bool] = False
    log_level: ClassVar[int] = logging.WARNING

    def __init__(self, message: str = "", *, errno: int | None = None) -> None:
        super().__init__(message)
        if errno is not None:
            self.errno = errno

    def __str__(self) -> str:
        return super().__str__() or os.strerror(self.errno)


#: Errors of a network, a server or a stale handle; EIO is what network file systems say of all of these.
_PASSING = frozenset(
    {
        _errno.EIO,
        _errno.EAGAIN,
        _errno.EINTR,
        _errno.ENOTCONN,
        _errno.ESTALE,
        _errno.ETIMEDOUT,
        _errno.ECONNRESET,
        _errno.ECONNABORTED,
        _errno.EHOSTDOWN,
        _errno.EHOSTUNREACH,
        _errno.ENETDOWN,
        _errno.ENETUNREACH,
        _errno.EREMOTEIO,
    }
)


class StoreError(VolfsError):
    """A store call failed. `errno` is the store's own."""

    log_level = logging.DEBUG

    @property
    def passes(self) -> bool:
        """Whether it says nothing of the file, and the same call may not meet it again."""
        return self.errno in _PASSING


class NotFound(StoreError):
    """Nothing has this name."""

    errno = _errno.ENOENT


class AlreadyExists(StoreError):
    """The name is taken."""

    errno = _errno.EEXIST


class StoreTimeout(StoreError):
    """The store did not answer within its deadline."""

    errno = _errno.ETIMEDOUT
    retryable = True
    log_level = logging.WARNING


class VersionChanged(VolfsError):
    """The version that was asked for is not there any more."""

    errno = _errno.ESTALE
    log_level = logging.DEBUG


class NotPermitted(VolfsError):
    """volfs itself refuses: a reserved name, or a change on a read-only volume."""

    errno = _errno.EPERM
    log_level = logging.DEBUG


class StagedLost(VolfsError):
    """A staged file is gone or damaged; its bytes are never replaced by zeros."""

    log_level = logging.ERROR


class SetupError(VolfsError):
    """The mount cannot start. The message is one line that says what to do."""

    log_level = logging.ERROR


_BY_ERRNO: dict[int, type[StoreError]] = {
    _errno.ENOENT: NotFound,
    _errno.EEXIST: AlreadyExists,
    _errno.ETIMEDOUT: StoreTimeout,
}


def from_os_error(error: OSError) -> StoreError:
    """The StoreError for a failed system call. Raise it with `from error`."""
    number = error.errno or _errno.EIO
    if number == _errno.EMFILE:
        number = _errno.ENFILE  # the daemon's table is full; EMFILE would blame the caller's
    return _BY_ERRNO.get(number, StoreError)(str(error), errno=number)
