"""The control plane's part for `volfs recover` and `volfs fsck`, on a mount that serves.

    user.volfs.recover           get: the kept files; JSON, "more" says how many did not fit
    user.volfs.recover.publish   set: {"id": ..., "to": ...}; "to" may be left out
    user.volfs.recover.discard   set: {"id": ...}
    user.volfs.recover.last      get: what became of them, the latest last
    user.volfs.fsck              set: {"repair": true}; get: the report of the last check

The kernel locks the mount's root while an attribute of it is set, and asks twice
for one that is read. So what is set is only noted, and done by a task of its own;
who reads waits for it and changes nothing.

*Concurrency:* errands are done one after another, in the order in which they came.
Nothing here waits for the kernel.
"""

from __future__ import annotations

import errno
import json
import os
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog
import trio

from volfs.cache.check import CacheReport
from volfs.commit.check import JournalCheck, JournalReport, document, verdict
from volfs.commit.kept import Kept, volume_path
from volfs.errors import NotPermitted, StoreError, VolfsError
from volfs.fs.tree import ROOT, Node
from volfs.fs.volume import Volume

__all__ = ["Repairs"]

log = structlog.get_logger(__name__)

#: Room for the rest of the reply below the kernel's 64 KiB.
_MOST_BYTES: Final = 60 << 10

#: Results that are remembered, and errands that may wait.
_REMEMBERED: Final = 16

_RECOVER: Final = b"recover"
_PUBLISH: Final = b"recover.publish"
_DISCARD: Final = b"recover.discard"
_LAST: Final = b"recover.last"
_FSCK: Final = b"fsck"

#: Directory's number, name, content was written: as `fs.changes` hears of changes.
Happened = Callable[[Iterable[tuple[int, bytes, bool]]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class _Publish:
    id: str
    to: bytes | None


@dataclass(frozen=True, slots=True)
class _Discard:
    id: str


@dataclass(frozen=True, slots=True)
class _Check:
    repair: bool


class Repairs:
    """See the module. `happened` is told of names that changed; `about` knows where the journal's file is."""

    def __init__(self, volume: Volume, happened: Happened, about: Callable[[], dict[str, Any]]) -> None:
        self._volume = volume
        self._happened = happened
        self._about = about
        self._errands: deque[_Publish | _Discard | _Check] = deque()
        self._wanted = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self._last: deque[dict[str, Any]] = deque(maxlen=_REMEMBERED)
        self._report: dict[str, Any] | None = None
        self._kept: Kept | None = None
        if volume.staging is not None:
            self._kept = Kept(volume.store, volume.staging, volume.journal, volume.structure.shared)

    # -- the control plane -----------------------------------------------------

    async def get(self, node: Node, name: bytes, uid: int) -> bytes | None:
        """The value of the attribute `name`, without the prefix; None if it is none of ours."""
        if name not in (_RECOVER, _LAST, _FSCK):
            return None
        _check_caller(node, uid)
        if name == _RECOVER:
            return await self._list()
        if name == _LAST:
            await self._idle.wait()
            return json.dumps(list(self._last)).encode()
        if self._report is None and self._idle.is_set():
            self._add(_Check(repair=True))
        await self._idle.wait()
        return json.dumps(self._report).encode()

    async def set(self, node: Node, name: bytes, value: bytes, uid: int) -> bool:
        """Note what is to be done; False if the attribute is none of ours. Raises for what cannot be done."""
        if name not in (_PUBLISH, _DISCARD, _FSCK):
            return False
        _check_caller(node, uid)
        wish = _parse(value)
        if name == _FSCK:
            self._add(_Check(repair=bool(wish.get("repair", True))))
            return True
        id_ = self._writable().find(str(wish.get("id") or "-"))
        if name == _DISCARD:
            self._add(_Discard(id_))
        else:
            to = wish.get("to")
            self._add(_Publish(id_, None if to is None else volume_path(str(to))))
        return True

    def _writable(self) -> Kept:
        if self._kept is None:
            raise StoreError("the volume is mounted read-only", errno=errno.EROFS)
        return self._kept

    def _add(self, errand: _Publish | _Discard | _Check) -> None:
        if len(self._errands) >= _REMEMBERED:
            raise StoreError("too many repairs are waiting", errno=errno.EBUSY)
        self._errands.append(errand)
        if self._idle.is_set():
            self._idle = trio.Event()
        self._wanted.set()

    async def _list(self) -> bytes:
        files = [file.document() for file in await self._writable().files()]
        shown: list[dict[str, Any]] = []
        size = 0
        for file in files:
            size += len(json.dumps(file)) + 2
            if size > _MOST_BYTES:
                break
            shown.append(file)
        return json.dumps({"kept": shown, "more": len(files) - len(shown)}).encode()

    # -- doing it --------------------------------------------------------------

    async def run(self) -> None:
        """Do what is asked, one thing after another, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            while self._errands:
                try:
                    await self._do(self._errands[0])
                finally:
                    self._errands.popleft()
                    if not self._errands:
                        self._idle.set()

    async def _do(self, errand: _Publish | _Discard | _Check) -> None:
        if isinstance(errand, _Check):
            self._report = None
            self._report = await self._check(errand.repair)
            return
        result: dict[str, Any] = {
            "id": errand.id,
            "errno": errno.EIO,
            "error": "unexpected error, see the log",
        }
        try:
            result |= await self._settle(errand)
            result |= {"errno": 0, "error": None}
        except VolfsError as error:
            result |= {"errno": error.errno, "error": str(error)}
        finally:
            self._last.append(result)
            self._recount()

    async def _settle(self, errand: _Publish | _Discard) -> dict[str, Any]:
        kept = self._writable()
        if isinstance(errand, _Discard):
            await kept.discard(errand.id)
            return {}
        placed = await kept.publish(errand.id, errand.to)
        await self._tell(placed.path)
        return {"path": os.fsdecode(placed.path), "conflict": placed.conflict}

    async def _tell(self, path: bytes) -> None:
        """The name, or a directory above it that was made again, changed behind the tree's back."""
        node = self._volume.tree.root
        for name in path.split(b"/"):
            await self._happened([(node.number, name, True)])
            child = node.children.get(name)
            if child is None:
                return
            node = child

    async def _check(self, repair: bool) -> dict[str, Any]:
        volume = self._volume
        damage = await trio.to_thread.run_sync(verdict, Path(self._about()["cache_dir"], "journal.db"))
        journal = JournalReport()
        if volume.staging is not None:
            check = JournalCheck(volume.staging, volume.journal, self._in_use)
            journal = await (check.mend() if repair else check.look())
        if damage is not None:
            # Open, so not to be replaced now: the next mount reads what can be read, and sets it aside.
            journal.damage = damage
            journal.unmended += 1
        cache: CacheReport | None = None
        if volume.cache is not None:
            cache = await (volume.cache.mend() if repair else volume.cache.look())
        self._recount()
        report = document(journal, cache)
        if report["found"]:
            log.warning("a check found damage", found=report["found"], remaining=report["remaining"])
        return report

    def _recount(self) -> None:
        if self._kept is not None and self._volume.recovery is not None:
            self._volume.recovery.kept = len(self._kept)

    def _in_use(self) -> Collection[str]:
        files = (node.file for node in self._volume.tree.by_number.values())
        return {file.staged.name for file in files if file is not None and file.staged is not None}


def _check_caller(node: Node, uid: int) -> None:
    """Kept files are of all users, and a check is work: this is for who runs the mount."""
    if node.number != ROOT:
        raise StoreError("only the mount's root has this control", errno=errno.ENODATA)
    if uid not in (0, os.geteuid()):
        raise NotPermitted("only root and the user of the daemon may do this")


def _parse(value: bytes) -> dict[str, Any]:
    try:
        wish = json.loads(value or b"{}")
    except ValueError as error:
        raise StoreError("the value is not JSON", errno=errno.EINVAL) from error
    if not isinstance(wish, dict):
        raise StoreError("the value is not a JSON object", errno=errno.EINVAL)
    return wish
