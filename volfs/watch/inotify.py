"""inotify: who changed what in the directories that the kernel knows, as it happens.

It owns the inotify descriptor and its watches, keyed by inode number. It does
not judge events; it hands them on in batches.

*Concurrency:* one task (`run`). `add` and `remove` are called from anywhere in
the trio thread; they are single system calls.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Awaitable, Callable

import structlog
import trio
from inotify_simple import INotify, flags

from volfs.store import beneath

__all__ = ["InotifyWatcher"]

log = structlog.get_logger(__name__)

_CONTENT = flags.MODIFY
_MASK = (
    flags.CREATE
    | flags.DELETE
    | flags.MOVED_FROM
    | flags.MOVED_TO
    | flags.MODIFY
    | flags.ATTRIB
    | flags.CLOSE_WRITE
    | flags.ONLYDIR
    | flags.EXCL_UNLINK
)

#: Events of a burst (a build, an unpacked archive) are looked at together: one look a name instead of five.
_GATHER_S = 0.002

Event = tuple[int, bytes, bool]


class InotifyWatcher:
    """See the module. `root` is the backing's root descriptor."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._inotify = INotify(nonblocking=True)
        self._numbers: dict[int, int] = {}  # watch descriptor -> inode number
        self._watches: dict[int, int] = {}
        self._full = False

    def add(self, number: int, path: bytes) -> bool:
        """Watch a directory; False if that cannot be: then nothing about it may be believed for long."""
        if number in self._watches:
            return True
        try:
            fd = beneath.open_directory(self._root, path)
        except OSError:
            return False
        try:
            watch = self._inotify.add_watch(f"/proc/self/fd/{fd}", _MASK)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.ENOMEM) and not self._full:
                self._full = True
                log.warning(
                    "no more inotify watches: changes in further directories are seen by asking each time; "
                    "raise fs.inotify.max_user_watches"
                )
            return False
        finally:
            os.close(fd)
        # A directory that was replaced and came back may have the watch of a number that is gone.
        stale = self._numbers.get(watch)
        if stale is not None:
            self._watches.pop(stale, None)
        self._numbers[watch] = number
        self._watches[number] = watch
        return True

    def remove(self, number: int) -> None:
        watch = self._watches.pop(number, None)
        if watch is not None:
            self._numbers.pop(watch, None)
            try:
                self._inotify.rm_watch(watch)
            except OSError:  # the directory is gone, and the watch with it
                pass

    async def run(
        self, happened: Callable[[list[Event]], Awaitable[None]], overflowed: Callable[[], Awaitable[None]]
    ) -> None:
        """Hand on events until cancelled; `overflowed` when the kernel dropped some."""
        while True:
            await trio.lowlevel.wait_readable(self._inotify.fileno())
            await trio.sleep(_GATHER_S)
            events: list[Event] = []
            lost = False
            for event in self._inotify.read(timeout=0):
                if event.mask & flags.Q_OVERFLOW:
                    lost = True
                    continue
                number = self._numbers.get(event.wd)
                if number is None:
                    continue
                if event.mask & flags.IGNORED:
                    del self._numbers[event.wd]
                    self._watches.pop(number, None)
                elif event.name:
                    events.append((number, os.fsencode(event.name), bool(event.mask & _CONTENT)))
            if lost:
                log.warning("inotify overflowed: looking at everything that is known")
                await overflowed()
            elif events:
                await happened(events)

    def close(self) -> None:
        self._inotify.close()
