"""Telling the kernel to drop what it caches, from a thread of its own.

A notification may block until requests under way have been answered, so it
must never be made by the trio thread or under a lock (DESIGN section 4).
It does not decide what to drop.

*Concurrency:* any method may be called from the trio thread; it appends to a
queue and returns. One thread sends. Once `close` was called nothing is sent:
an unmount that waits for a request which waits for a notification hangs for good.

*Invariants:* what is already waiting is not queued again, so the queue is
bounded by what the kernel knows.
"""

from __future__ import annotations

import errno
import threading
from collections import OrderedDict
from typing import Protocol

import structlog
import trio

__all__ = ["KernelNotifier", "Sender"]

log = structlog.get_logger(__name__)

#: After so many in a row the thread lets others have the interpreter: a sweep must not starve lookups.
_BATCH = 64
_PAUSE_S = 0.001

#: How long a request waits for the kernel to have been told: far more than a notification takes, far less
#: than what a user takes for a hang.
_TOLD_S = 1.0


class Sender(Protocol):
    """A transport's blocking calls; OSError(ENOENT) where the kernel knows nothing of it."""

    def content(self, number: int) -> None: ...

    def attributes(self, number: int) -> None: ...

    def entry(self, parent: int, name: bytes, deleted: int) -> None: ...


_Key = tuple[str, int, bytes, int]


class KernelNotifier:
    """`fs.volume.Notifier` over a Sender."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[_Key, None] = OrderedDict()
        self._changed = threading.Condition()
        self._closed = False
        self._busy = False
        self._thread: threading.Thread | None = None

    def start(self, sender: Sender) -> None:
        """Send from now on, also what was asked for before."""
        self._thread = threading.Thread(target=self._run, args=(sender,), name="volfs-notify", daemon=True)
        self._thread.start()

    def attributes(self, number: int) -> None:
        self._put(("attributes", number, b"", 0))

    def content(self, number: int) -> None:
        self._put(("content", number, b"", 0))

    def entry(self, parent: int, name: bytes, deleted: int) -> None:
        self._put(("entry", parent, name, deleted))

    def _put(self, key: _Key) -> None:
        with self._changed:
            if not self._closed:
                self._waiting[key] = None
                self._changed.notify_all()

    async def told(self) -> None:
        await trio.to_thread.run_sync(self.wait_idle, _TOLD_S, abandon_on_cancel=True)

    def wait_idle(self, timeout_s: float) -> bool:
        """Blocking: until all that was asked so far has been sent. False at the deadline."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._closed or not (self._waiting or self._busy), timeout_s
            )

    def close(self, timeout_s: float) -> bool:
        """Send nothing any more; whether the thread has ended within the time."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
        thread = self._thread
        if thread is None:
            return True
        thread.join(timeout_s)
        return not thread.is_alive()

    def _run(self, sender: Sender) -> None:
        sent = 0
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                if sent >= _BATCH:
                    self._changed.wait(_PAUSE_S)
                    sent = 0
                self._changed.wait_for(lambda: self._closed or self._waiting)
                if self._closed:
                    return
                (kind, number, name, deleted), _ = self._waiting.popitem(last=False)
                self._busy = True
            sent += 1
            try:
                if kind == "entry":
                    sender.entry(number, name, deleted)
                elif kind == "content":
                    sender.content(number)
                else:
                    sender.attributes(number)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENOTEMPTY):
                    log.debug("notification failed", kind=kind, inode=number, error=str(error))
