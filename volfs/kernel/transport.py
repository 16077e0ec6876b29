"""What the daemon asks of a way to the kernel; there are two (DESIGN section 4), and `mounting` takes one.

*Concurrency:* all from the trio thread, except the sender, which the notifier's
thread uses between `mount` and `close`.
"""

from __future__ import annotations

from typing import Protocol

from volfs.fs.vfs import Vfs
from volfs.kernel.notify import Sender

__all__ = ["REQUESTS_AT_ONCE", "Transport"]

#: Requests that are worked on at once. More than the kernel ever sends at its usual limits.
REQUESTS_AT_ONCE = 256


class Transport(Protocol):
    """One mount, from its beginning to its end."""

    name: str

    @property
    def sender(self) -> Sender:
        """Tells the kernel what to forget, once it is mounted; after `close` it does nothing, or OSError."""

    def mount(self, vfs: Vfs) -> None:
        """Mount what `vfs` shows; requests wait until `serve`. Raises SetupError."""

    async def serve(self) -> None:
        """Answer requests until the mount is taken away or `end` is called."""

    def end(self) -> None:
        """Answer nothing more: `serve` returns, whatever is under way."""

    def close(self, *, unmount: bool) -> None:
        """Let go of the device; `unmount`: take the mount away as well, if it is still there."""
