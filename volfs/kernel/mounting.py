"""Which way to the kernel a mount takes: directly where this process may mount and the kernel agrees, else by
libfuse. It owns the choice, and nothing of either transport.
"""

from __future__ import annotations

import structlog

from volfs.config import MountConfig
from volfs.errors import SetupError
from volfs.fs.vfs import Vfs
from volfs.kernel.direct.transport import Direct
from volfs.kernel.preflight import may_mount
from volfs.kernel.pyfuse import Pyfuse
from volfs.kernel.transport import Transport

__all__ = ["mount"]

log = structlog.get_logger(__name__)


def mount(config: MountConfig, vfs: Vfs) -> tuple[Transport, str]:
    """Mount what `vfs` shows: the transport that does it, and why it is this one. Raises SetupError."""
    if config.transport != "auto":
        return _mounted(
            Direct(config) if config.transport == "direct" else Pyfuse(config), vfs
        ), "--transport"
    if not may_mount():
        return _mounted(Pyfuse(config), vfs), "without CAP_SYS_ADMIN fusermount3 has to mount"
    try:
        return _mounted(Direct(config), vfs), "this process may mount"
    except SetupError as error:
        log.warning("not mounted directly; trying libfuse", error=str(error))
        try:
            return _mounted(Pyfuse(config), vfs), str(error)
        except SetupError:
            raise error from None  # it says more


def _mounted(transport: Transport, vfs: Vfs) -> Transport:
    transport.mount(vfs)
    return transport
