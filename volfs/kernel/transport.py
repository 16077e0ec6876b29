"""What the daemon asks of a way to the kernel; there are two (DESIGN section 4), and this says which is used.

*Concurrency:* all from the trio thread, except the sender, which the notifier's
thread uses between `mount` and `close`.
"""

from __future__ import annotations

from typing import Protocol

from volfs.config import MountConfig
from volfs.fs.vfs import Vfs
from volfs.kernel.notify import Sender
from volfs.kernel.preflight import may_mount

__all__ = ["REQUESTS_AT_ONCE", "Transport", "choose"]

#: Requests that are worked on at once. More than the kernel ever sends at its usual limits.
REQUESTS_AT_ONCE = 256


class Transport(Protocol):
    """One mount, from its beginning to its end."""

    name: str

    @property
    def sender(self) -> Sender:
        """Tells the kernel what to forget."""

    def mount(self, vfs: Vfs) -> None:
        """Mount what `vfs` shows; requests wait until `serve`. Raises SetupError."""

    async def serve(self) -> None:
        """Answer requests until the mount is taken away or `end` is called."""

    def end(self) -> None:
        """Answer nothing more: `serve` returns, whatever is under way."""

    def close(self, *, unmount: bool) -> None:
        """Let go of the device; `unmount`: take the mount away as well, if it is still there."""


def choose(config: MountConfig) -> tuple[Transport, str]:
    """The transport, and why it is this one."""
    # Imported here: both know this module.
    from volfs.kernel.direct.transport import Direct
    from volfs.kernel.pyfuse import Pyfuse

    if config.transport == "direct":
        return Direct(config), "--transport"
    if config.transport == "pyfuse3":
        return Pyfuse(config), "--transport"
    if may_mount():
        return Direct(config), "this process may mount"
    return Pyfuse(config), "without CAP_SYS_ADMIN fusermount3 has to mount"
