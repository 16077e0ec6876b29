"""One commit: making a staged file the new version in the store.

The order, for a store of files (after restic's "Read and Write Ordering"):
  1. the journal row exists before the first staged byte;
  2. bytes are durable before the name shows them, where they replace a file or fsync asked;
  3. the row says that the name may show them from now on;
  4. the name changes atomically;
  5. the journal row goes last.
A crash between any two leaves the old file or the new one, and a row that says which bytes are owed.

It decides about conflicts (W7) and does not know inodes, handles or the kernel.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog
import trio

from volfs import crash
from volfs.commit.checksums import BlockSums
from volfs.commit.staging import StagedFile, Staging
from volfs.core.conflicts import conflict_name
from volfs.core.versions import Version
from volfs.errors import NotFound, StoreError, VersionChanged
from volfs.store.base import Expected, Stat, Store, Upload

__all__ = ["Commit", "Published", "publish"]

log = structlog.get_logger(__name__)

#: Looks at a file that others change at the same moment, before the commit is put off.
_TRIES = 10

#: Conflict copies of one file that one host makes within a second.
_MOST_BESIDE = 1000

#: Also when the daemon ends: tidiness is worth a few seconds of a store that does not answer, no more.
_GIVE_UP_S = 2.0


@dataclass(frozen=True, slots=True)
class Published:
    """What a commit did. `renamed`: the staged file itself is the store's file now.

    `sums`: checksums by block of a file that was copied, if they were asked for.
    """

    stat: Stat
    conflict: bytes | None
    renamed: bool
    sums: list[int] | None = None


class Commit:
    """One commit in two steps: the long one, `bring`, holds up nobody; the short one, `show`, needs the path
    to stay what it is. An error leaves the store as it was; `give_up` then takes away what was brought.

    `showing` is called right before a name may change, and says so in the journal;
    `moved` with each sign of life of the store, also from threads.
    """

    def __init__(
        self,
        store: Store,
        staging: Staging,
        staged: StagedFile,
        *,
        checksums: bool = False,
        showing: Callable[[], None] = lambda: None,
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._staging = staging
        self._staged = staged
        self._blocks = BlockSums() if checksums else None
        self._showing = showing
        self._moved = moved
        self._upload: Upload | None = None
        self._durable = False

    async def bring(self, *, durable: bool) -> None:
        """Bring the bytes into the store, under no name. `durable`: they survive a power cut, too."""
        in_store = self._staging.in_store
        name = self._staged.name if in_store else None
        self._upload = await self._store.upload(
            self._staged.fd, name, durable=durable, observe=None if in_store else self._observe
        )
        self._durable = durable or not in_store
        self._moved()

    def _observe(self, piece: memoryview) -> None:
        self._moved()
        if self._blocks is not None:
            self._blocks.update(piece)

    async def show(self, path: bytes, base: Version | None, identity: bytes | None = None) -> Published:
        """Give them their name. `base` None: they replace whatever is there.

        If the file at `path` is no longer `base`, ours goes beside it (W7). If it is
        gone, ours takes its place: a delete does not outweigh bytes. `identity` is of
        the object whose new content this is, if there is one: should it have further
        names, it keeps them (W11).
        """
        assert self._upload is not None
        for _ in range(_TRIES):
            try:
                current: Stat | None = await self._store.stat(path)
            except NotFound:
                current = None
            if current is not None and self._staging.in_store and self._upload.is_shown(current):
                return self._shown(current, None)  # an earlier attempt did it, and its answer was lost
            if current is not None and current.is_dir:
                return await self._show_beside(path)  # no file takes the place of a directory
            expected: Version | Expected
            if base is None:
                expected = Expected.ANYTHING
            elif current is None:
                expected = Expected.NOTHING
            elif current.version == base or self._is_earlier_attempt(current):
                expected = current.version
            else:
                return await self._show_beside(path)
            if current is not None and current.nlink > 1 and current.identity == identity:
                return await self._overwrite(path, current)
            # An empty file (the name taken by an O_EXCL open, say) has no bytes that a power cut could cost.
            if current is not None and current.size > 0 and not self._durable:
                await self.bring(durable=True)
            try:
                st = await self._try(path, expected)
            except VersionChanged:
                continue  # within the moment since we looked: look again
            return self._shown(st, None)
        raise VersionChanged("others change the file faster than it can be committed")

    async def _try(self, path: bytes, expected: Version | Expected, *, beside: bool = False) -> Stat:
        """`Upload.show`. That only the answer is missing is seen here where the staged file is renamed."""
        assert self._upload is not None
        self._showing()
        try:
            return await self._upload.show(path, expected)
        except VersionChanged:
            raise
        except StoreError as error:
            if self._staging.in_store and not self._staging.has(self._staged.name):
                log.warning("committed, though the store said otherwise", path=path, error=str(error))
                return self._staged.stat()
            self._staged.attempts.append(self._upload.is_shown)
            if beside:
                self._staged.beside.append(path)
            raise

    def _is_earlier_attempt(self, current: Stat) -> bool:
        """Whether what changed the file was an attempt of ours that failed, or seemed to."""
        return any(is_shown(current) for is_shown in self._staged.attempts)

    async def _overwrite(self, path: bytes, current: Stat) -> Published:
        """In place: a file with several names stays one (W11)."""
        if not self._is_earlier_attempt(current):  # should it fail half-way, the object is ours to finish
            self._staged.attempts.append(lambda st: st.identity == current.identity)
        self._blocks = BlockSums() if self._blocks is not None else None
        self._showing()
        st = await self._store.overwrite(self._staged.fd, path, self._observe)
        crash.point("commit.overwritten")
        return Published(st, None, renamed=False, sums=self._sums())

    async def _show_beside(self, path: bytes) -> Published:
        assert self._upload is not None
        names: list[tuple[bytes, Version | Expected]] = [*await self._copies_beside(), *_names_beside(path)]
        for name, expected in names:
            try:
                st = await self._try(name, expected, beside=True)
            except VersionChanged:
                continue
            log.warning("conflict: the file changed in the store since it was opened here", kept_as=name)
            return self._shown(st, name)
        raise VersionChanged("others take each name beside the file")

    async def _copies_beside(self) -> list[tuple[bytes, Version]]:
        """Conflict copies that earlier attempts made though their answers were lost: ours to replace."""
        found = []
        for name in self._staged.beside:
            with suppress(NotFound):
                st = await self._store.stat(name)
                if self._is_earlier_attempt(st):
                    found.append((name, st.version))
        return found

    def _shown(self, st: Stat, conflict: bytes | None) -> Published:
        crash.point("commit.shown")
        self._upload = None
        self._moved()
        return Published(st, conflict, renamed=self._staging.in_store, sums=self._sums())

    def _sums(self) -> list[int] | None:
        return self._blocks.finish() if self._blocks is not None else None

    async def give_up(self) -> None:
        """Leave nothing of ours in the store but what was shown, nor what an earlier commit had to leave."""
        upload, self._upload = self._upload, None
        owed = self._staging.owed
        if upload is not None:
            owed.append(upload)
        with trio.move_on_after(_GIVE_UP_S, shield=True) as scope:
            try:
                while owed:
                    await _discard(owed)
            except StoreError as error:
                log.warning("a copy is left in the store until the next commit", error=str(error))
        if scope.cancelled_caught:
            log.warning("a copy is left in the store until the next commit: no answer")


def _names_beside(path: bytes) -> list[tuple[bytes, Expected]]:
    host, now = socket.gethostname(), time.time()
    return [(conflict_name(path, host, now, n), Expected.NOTHING) for n in range(_MOST_BESIDE)]


async def _discard(owed: deque[Upload]) -> None:
    """The first of them, by one task only; it stays owed if it cannot be taken away."""
    upload = owed.popleft()
    try:
        await upload.discard()
    except BaseException:
        owed.append(upload)
        raise


async def publish(
    store: Store,
    staging: Staging,
    staged: StagedFile,
    path: bytes,
    base: Version | None,
    *,
    durable: bool,
    identity: bytes | None = None,
    showing: Callable[[], None] = lambda: None,
) -> Published:
    """Both steps of a commit, for who has no lock to take in between."""
    commit = Commit(store, staging, staged, showing=showing)
    try:
        await commit.bring(durable=durable)
        return await commit.show(path, base, identity)
    finally:
        await commit.give_up()
