"""Which names a file may take without a question to the store first, because nothing is there.

To create a file, the kernel looks its name up, hears that nothing is there, and sends
the creation: two questions to the store for one system call. One is enough: what the
lookup was told holds for the creation that follows it in the same thread.

With `--commit background` on a store over a network none is asked, or files could
not be made faster than one a round trip (W5). A directory in which files are being
made is listed as a whole, again and again while that goes on; a name that is not in a
listing of the last `freshness` is free. A lookup is answered so only if it is known
to belong to an open that creates: whoever asks for a file that is there, is told so
(R1). What others make of the name within the freshness is met by the commit (W7).

*Concurrency:* the trio thread; one listing of a directory at a time, in a task of its own.

*Invariants:* a name that this mount made is never taken for free: it is in the
listing from then on, or the directory's epoch has moved and the listing is void.
"""

from __future__ import annotations

import enum
import math
import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import structlog
import trio

from volfs import crash
from volfs.errors import VolfsError
from volfs.fs.tree import Node
from volfs.fs.volume import Volume
from volfs.store.base import Owner, Stat

__all__ = ["Creations", "Free", "take_name"]

log = structlog.get_logger(__name__)

#: One or two new files are no reason to list their directory.
_FIRST_FILES: Final = 3

#: Directories whose listings are kept, and names in one: some 20 MB for the largest.
_DIRECTORIES: Final = 8
_MOST_NAMES: Final = 100_000
_NAMES_AT_ONCE: Final = 4096

#: A directory that cannot be listed, or is too large for it, is not tried again for so long.
_NOT_AGAIN_S: Final = 60.0

#: Lookups that no creation followed are forgotten at this many threads.
_THREADS: Final = 1000


class Free(enum.Enum):
    """How it is known that a name is free."""

    ASKED = enum.auto()
    LISTED = enum.auto()


class _Listed:
    """A directory in which files are being made."""

    __slots__ = ("as_of", "busy", "epoch", "made", "names", "not_before", "since")

    def __init__(self) -> None:
        self.names: set[bytes] = set()
        self.as_of = -math.inf  # when the listing began
        self.epoch = -1
        self.made = 0
        self.busy = False
        self.since: set[bytes] = set()  # made here, and perhaps too late for the listing that is under way
        self.not_before = -math.inf


async def take_name(
    volume: Volume, parent: Node, path: bytes, mode: int, flags: int, owner: Owner
) -> Stat | None:
    """W10: O_EXCL has one winner among all nodes, so the name is taken in the store, as an empty file."""
    if not (flags & os.O_EXCL and volume.policy.commit_at_close):
        return None
    placeholder = await volume.store.mknod(path, 0o100000 | mode, 0, owner)
    volume.changed(parent)
    crash.point("create.taken")
    return placeholder


class Creations:
    """See the module. `creates(thread, name)`: whether the thread is known to be about to create the name."""

    def __init__(self, volume: Volume, creates: Callable[[int, bytes], bool]) -> None:
        self._volume = volume
        self._creates = creates
        self._missed: dict[int, tuple[int, bytes, float, int]] = {}
        self._listed: OrderedDict[int, _Listed] = OrderedDict()

    @property
    def _at_once(self) -> bool:
        policy, recovery = self._volume.policy, self._volume.recovery
        if policy.commit_at_close or policy.freshness_s <= 0 or self._volume.store.local:
            return False
        # What an earlier mount left gets its names from us, without a node here.
        return recovery is None or (recovery.tried.is_set() and not recovery.waiting)

    # -- lookups -----------------------------------------------------------------

    def is_about_to_be(self, parent: Node, name: bytes, thread: int) -> bool:
        """Whether a lookup may be told, without a question, that nothing is there."""
        return self._is_listed_free(parent, name) and self._creates(thread, name)

    def missed(self, parent: Node, name: bytes, thread: int, asked_s: float) -> None:
        """A lookup was told that nothing is there; the store was asked at `asked_s`."""
        if len(self._missed) >= _THREADS:
            self._missed.clear()
        self._missed[thread] = (parent.number, name, asked_s, parent.epoch)

    # -- creations ---------------------------------------------------------------

    def free(self, parent: Node, name: bytes, thread: int) -> Free | None:
        """Whether the name is known to be free for a creation by the thread; None: ask."""
        missed = self._missed.pop(thread, None)
        if name in parent.children:
            return None
        if missed is not None:
            number, which, asked_s, epoch = missed
            fresh = trio.current_time() - asked_s < self._volume.policy.freshness_s
            if fresh and (number, which, epoch) == (parent.number, name, parent.epoch):
                return Free.ASKED
        return Free.LISTED if self._is_listed_free(parent, name) else None

    def _is_listed_free(self, parent: Node, name: bytes) -> bool:
        listed = self._listed.get(parent.number)
        if listed is None or name in parent.children or name in listed.names:
            return False
        age_s = trio.current_time() - listed.as_of
        return age_s < self._volume.policy.freshness_s and listed.epoch == parent.epoch

    def made(self, parent: Node, name: bytes) -> None:
        """A file was created here under this name."""
        if not self._at_once:
            return
        listed = self._listed.get(parent.number)
        if listed is None:
            while len(self._listed) >= _DIRECTORIES:
                self._listed.popitem(last=False)
            listed = self._listed[parent.number] = _Listed()
        self._listed.move_to_end(parent.number)
        listed.names.add(name)
        listed.since.add(name)
        listed.made += 1
        if self._is_due(parent, listed):
            listed.busy = True
            assert self._volume.tasks is not None
            self._volume.tasks.start_soon(self._list, parent, listed)

    def _is_due(self, parent: Node, listed: _Listed) -> bool:
        if listed.busy or listed.made < _FIRST_FILES or self._volume.tasks is None:
            return False
        now = trio.current_time()
        if now < listed.not_before:
            return False
        return listed.epoch != parent.epoch or now - listed.as_of > self._volume.policy.freshness_s / 2

    async def _list(self, parent: Node, listed: _Listed) -> None:
        began_s, epoch = trio.current_time(), parent.epoch
        # What is committed before the listing is believed is perhaps not in it, and its node forgotten.
        listed.since = {name for name, child in parent.children.items() if child.pending}
        try:
            names = await self._names(parent)
        except VolfsError as error:
            log.debug("cannot list a directory in which files are made", error=str(error))
            names = None
        except Exception:
            self._volume.errors += 1
            log.exception("listing a directory in which files are made failed unexpectedly")
            names = None
        finally:
            listed.busy = False
        ended_s = trio.current_time()
        if names is None or ended_s - began_s > self._volume.policy.freshness_s / 2:
            listed.not_before = ended_s + _NOT_AGAIN_S
            return
        listed.names = names | listed.since
        listed.as_of, listed.epoch = began_s, epoch

    async def _names(self, parent: Node) -> set[bytes] | None:
        """All names in the directory; None if they are too many."""
        reader = await self._volume.store.scan(self._volume.tree.directory_path(parent))
        try:
            names: set[bytes] = set()
            while some := await reader.names(_NAMES_AT_ONCE):
                names.update(some)
                if len(names) > _MOST_NAMES:
                    return None
            return names
        finally:
            reader.close()
