"""The guard around every request: what a handler raises becomes an errno, never the end of the mount.

pyfuse3 lets only FUSEError pass; anything else that leaves a handler cancels the
nursery of all requests (DESIGN section 4, B5).
"""

from __future__ import annotations

import errno
from typing import Any

import structlog

from volfs.errors import VolfsError
from volfs.fs.volume import Volume

__all__ = ["errno_of", "failed"]

log = structlog.get_logger(__name__)


def errno_of(error: BaseException, request: str, *details: Any) -> int:
    """The errno for what a handler raised. Unexpected exceptions are logged with their traceback."""
    if isinstance(error, VolfsError):
        log.log(error.log_level, "request failed", request=request, args=details, error=str(error))
        return error.errno
    log.error("unexpected exception in a request", request=request, args=details, exc_info=error)
    return errno.EIO


def failed(volume: Volume, error: Exception, request: str, *args: Any) -> int:
    """As errno_of, of a request with these arguments; what was unexpected is counted."""
    # Long values are content, of which the log has the size.
    known = [arg if not isinstance(arg, bytes) or len(arg) < 256 else len(arg) for arg in args]
    number = errno_of(error, request, *(arg for arg in known if isinstance(arg, bytes | int)))
    if not isinstance(error, VolfsError):
        volume.errors += 1
    return number
