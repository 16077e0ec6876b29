"""Kept files: what an earlier daemon was given and nobody was told to be safe; the user decides (W6).

It lists, opens, publishes and discards the staged files whose rows are in state
KEPT. The daemon does so for a mount, the command line for a cache directory
without one. It does not know nodes nor the kernel.

A file that is to be published is owed from then on: its row says where it goes,
on top of what, and that it is closed. So a crash in the middle is finished by the
next mount as that of any other commit (`recover`).

*Concurrency:* a file by one task at a time; the second gets EBUSY. `hold` is
entered over the step in which the path must stay what it is.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import structlog
import trio

from volfs.commit.journal import Entry, Journal, State
from volfs.commit.publish import Commit, Published
from volfs.commit.recover import make_directories
from volfs.commit.staging import StagedFile, Staging
from volfs.core.versions import ABSENT, Version, is_version
from volfs.errors import NotFound, StoreError, VolfsError
from volfs.store.base import RESERVED, Store

__all__ = ["Kept", "KeptFile", "Placed", "volume_path"]

log = structlog.get_logger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A kept file. `path` is b"" if it is not known, `size` None if the file is gone.

    `created` in seconds since the epoch.
    """

    id: str
    path: bytes
    size: int | None
    created: float
    reason: str

    def document(self) -> dict[str, Any]:
        """For JSON; bytes of a path that are no UTF-8 as lone surrogates (PEP 383)."""
        return {
            "id": self.id,
            "path": os.fsdecode(self.path),
            "bytes": self.size,
            "created": self.created,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a kept file was published; `conflict`: beside a file that was not its base."""

    path: bytes
    conflict: bool


def volume_path(text: str) -> bytes:
    """A path relative to the volume as a user wrote it; StoreError (EINVAL) if it is none of a file."""
    path = os.fsencode(text)
    parts = path.split(b"/")
    if not path or b"\0" in path or any(part in (b"", b".", b"..") for part in parts):
        raise StoreError(f"{text!r} is not the path of a file relative to the volume", errno=errno.EINVAL)
    if parts[0] == RESERVED:
        raise StoreError(f"{text!r} is inside what volfs keeps for itself", errno=errno.EPERM)
    return path


class Kept:
    """See the module."""

    def __init__(
        self,
        store: Store,
        staging: Staging,
        journal: Journal,
        hold: Callable[[], AbstractAsyncContextManager[object]] = nullcontext,
    ) -> None:
        self._store = store
        self._staging = staging
        self._journal = journal
        self._hold = hold
        self._busy: set[str] = set()

    def __len__(self) -> int:
        return len(self._entries())

    def _entries(self) -> list[Entry]:
        return [entry for entry in self._journal.entries() if entry.state is State.KEPT]

    async def files(self) -> list[KeptFile]:
        """All of them, oldest first."""
        entries = self._entries()
        sizes = await self._call(self._sizes, [entry.name for entry in entries])
        return [
            KeptFile(entry.name, entry.path, size, entry.created, _reason(entry, lost=size is None))
            for entry, size in zip(entries, sizes, strict=True)
        ]

    def _sizes(self, names: list[str]) -> list[int | None]:
        return [self._size(name) for name in names]

    def _size(self, name: str) -> int | None:
        try:
            return os.stat(name, dir_fd=self._staging.directory, follow_symlinks=False).st_size
        except OSError:
            return None

    def find(self, prefix: str) -> str:
        """The whole id that begins so; StoreError if none does (ENOENT), or more than one (EINVAL)."""
        found = [entry.name for entry in self._entries() if entry.name.startswith(prefix)]
        if not found:
            raise NotFound(f"there is no kept file {prefix!r}")
        if len(found) > 1 and prefix not in found:
            raise StoreError(f"{len(found)} kept files begin with {prefix!r}", errno=errno.EINVAL)
        return prefix if prefix in found else found[0]

    def _entry(self, id_: str) -> Entry:
        entry = self._journal.entry(id_)
        if entry is None or entry.state is not State.KEPT:
            raise NotFound(f"there is no kept file {id_!r}")
        if id_ in self._busy:
            raise StoreError("it is being published or discarded already", errno=errno.EBUSY)
        return entry

    async def open(self, id_: str) -> StagedFile:
        """Its bytes; the caller closes it. StagedLost if they are gone."""
        self._entry(id_)
        return await self._call(self._staging.open, id_)

    async def publish(self, id_: str, to: bytes | None = None) -> Placed:
        """Commit it where it belongs, or at `to`. Whatever is there and is not its base stays (W7)."""
        entry = self._entry(id_)
        path = entry.path if to is None else to
        if not path:
            raise StoreError("nobody knows where it belongs: say so with --to", errno=errno.EINVAL)
        # A row without a base means "replaces what is there", which was for its writer to say.
        base = ABSENT if entry.base is None else entry.base
        self._busy.add(id_)
        try:
            staged = await self._call(self._staging.open, id_)
            try:
                self._owe(id_, path, base)
                try:
                    placed = await self._commit(staged, base)
                except BaseException:
                    self._keep(entry)
                    raise
            finally:
                staged.close()
            await self._call(self._staging.remove, id_)
            self._journal.remove(id_)
        finally:
            self._busy.discard(id_)
        log.info("published a kept file", name=id_, path=placed.path, conflict=placed.conflict)
        return placed

    def _owe(self, id_: str, path: bytes, base: Version) -> None:
        """In this order a crash between two leaves a kept file with another place, never a wrong debt."""
        self._journal.rebase(id_, base)
        self._journal.move(id_, path)
        self._journal.close_file(id_)

    def _keep(self, entry: Entry) -> None:
        """It could not be published: as before."""
        try:
            self._journal.keep(entry.name)
            self._journal.move(entry.name, entry.path)
            self._journal.rebase(entry.name, entry.base)
        except VolfsError as error:
            log.warning("the next mount will commit it where it was to go", name=entry.name, error=str(error))

    async def _commit(self, staged: StagedFile, base: Version) -> Placed:
        commit = Commit(
            self._store, self._staging, staged, showing=partial(self._journal.showing, staged.name)
        )
        try:
            await commit.bring(durable=True, replaces=is_version(base))
            async with self._hold():
                row = self._journal.entry(staged.name)  # a rename may have moved it
                assert row is not None
                try:
                    done: Published = await commit.show(row.path, base, row.identity)
                except NotFound:
                    await make_directories(self._store, row.path)
                    done = await commit.show(row.path, base, row.identity)
            path = row.path if done.conflict is None else done.conflict
        finally:
            with trio.CancelScope(shield=True):
                await commit.give_up()
        try:
            await self._store.sync_directory(path.rpartition(b"/")[0])
        except VolfsError as error:
            log.warning("published, but its name may not survive a power cut", path=path, error=str(error))
        return Placed(path, done.conflict is not None)

    async def _call(self, function: Callable[..., T], *args: object) -> T:
        """Staged files in the store may hang with it: such a call is left behind when the daemon ends."""
        if not self._staging.in_store:
            return function(*args)
        return await trio.to_thread.run_sync(function, *args, abandon_on_cancel=True)

    async def discard(self, id_: str) -> None:
        """Delete it: the user does not want it."""
        entry = self._entry(id_)
        self._busy.add(id_)
        try:
            self._journal.drop_name(id_)  # after a crash the next mount goes on from here
            await self._call(self._staging.remove, id_)
            self._journal.remove(id_)
        finally:
            self._busy.discard(id_)
        log.info("discarded a kept file", name=id_, path=entry.path)


def _reason(entry: Entry, *, lost: bool) -> str:
    if lost:
        return "its bytes are gone"
    if not entry.path:
        return "its record was lost"
    if entry.base is None:
        return "being written when the daemon ended"
    if entry.is_append:
        return "being appended to when the daemon ended; the file has changed since"
    return "being changed when the daemon ended"
