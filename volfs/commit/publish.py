"""One commit: making a staged file the new version in the store.

The order, for a store of files (after restic's "Read and Write Ordering"):
  1. the journal row exists before the first staged byte;
  2. bytes are durable before the name shows them, where they replace a file or fsync asked;
  3. the row says that the name may show them from now on, and has the trace of the copy that is exchanged;
  4. the name changes atomically;
  5. the journal row goes last.
A crash between any two leaves the old file or the new one, and a row that says which bytes are owed.

It decides about conflicts (W7) and does not know inodes, handles or the kernel.
"""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import structlog

from volfs import crash
from volfs.commit.checksums import BlockSums
from volfs.commit.early import EarlyCopy
from volfs.commit.owed import clear
from volfs.commit.staging import StagedFile, Staging
from volfs.core.conflicts import conflict_name
from volfs.core.versions import ABSENT, Version, is_version
from volfs.errors import NotFound, StoreError, VersionChanged
from volfs.store.base import Expected, Stat, Store, Transfer, Upload

__all__ = ["Commit", "Published", "publish"]

log = structlog.get_logger(__name__)

#: Looks at a file that others change at the same moment, before the commit is put off.
_TRIES = 10

#: What a rename says of a name that others made a directory.
_IN_THE_WAY = {errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST}

#: Conflict copies of one file that one host makes within a second.
_MOST_BESIDE = 1000


@dataclass(frozen=True, slots=True)
class Published:
    """What a commit did. `renamed`: the staged file itself is the store's file now.

    `sums`: checksums by block of a file that was copied, if they were asked for.
    `descriptor`: of the copy, open and the caller's (see `Store.reader`), if there is one.
    """

    stat: Stat
    conflict: bytes | None
    renamed: bool
    sums: list[int] | None = None
    descriptor: int | None = None


class Commit:
    """One commit in two steps: the long one, `bring`, holds up nobody; the short one, `show`, needs the path
    to stay what it is. An error leaves the store as it was; `give_up` then takes away what was brought.

    `showing` is called with the trace of the copy right before a name may change, and
    says so in the journal; `moved` with each sign of life of the store, also from threads. `early`: a part of
    the bytes is in the store already.
    """

    def __init__(
        self,
        store: Store,
        staging: Staging,
        staged: StagedFile,
        *,
        checksums: bool = False,
        showing: Callable[[str], None] = lambda trace: None,
        moved: Callable[[], None] = lambda: None,
        early: EarlyCopy | None = None,
    ) -> None:
        self._store = store
        self._staging = staging
        self._staged = staged
        self._blocks = BlockSums() if checksums else None
        self._showing = showing
        self._moved = moved
        self._early = early
        self._transfer: Transfer | None = None
        self._upload: Upload | None = None
        self._durable = False

    async def bring(self, *, durable: bool, replaces: bool = False) -> None:
        """Bring the bytes into the store, under no name. `durable`: they survive a power cut, too.
        `replaces`: they have a base, whose place they are to take.
        """
        if self._staged.unsettled is not None:  # the row has one trace: first the one that it has
            await self._staged.unsettled.discard()
            self._staged.unsettled = None
        early, self._early = self._early, None
        if early is not None:
            self._transfer = await early.take()
        if early is not None and self._transfer is not None:
            self._upload = await self._bring_rest(self._transfer, early)
            self._transfer = None
        else:
            in_store = self._staging.in_store
            self._upload = await self._store.upload(
                self._staged.fd,
                self._staged.name if in_store else None,
                durable=durable,
                observe=None if in_store else self._observe,
                replaces=replaces,
            )
        self._durable = durable or not self._staging.in_store
        self._moved()

    async def _bring_rest(self, transfer: Transfer, early: EarlyCopy) -> Upload:
        """All that was not brought before, or has changed since."""
        if self._blocks is not None:
            self._blocks = early.sums
        extents = early.parts.rest(self._staged.size)
        if extents:
            await transfer.bring(extents, self._observe)
        return await transfer.finish()

    def _observe(self, offset: int, piece: memoryview) -> None:
        self._moved()
        if self._blocks is not None:
            self._blocks.update(offset, piece)

    async def show(
        self, path: bytes, base: Version | None, identity: bytes | None = None, *, look: bool = True
    ) -> Published:
        """Give them their name. `base` None: they replace whatever is there.

        If the file at `path` is no longer `base`, ours goes beside it (W7). If it is
        gone, ours takes its place: a delete does not outweigh bytes. `identity` is of
        the object whose new content this is, if there is one: should it have further
        names, it keeps them (W11). `look` False: a file that was created here may take
        its name without a look at what has it, which would be a round trip.
        """
        if not look and self._is_new(base, identity):
            done = await self._show_as(path, Expected.ANYTHING if base is None else Expected.NOTHING)
            if done is not None:
                return done
        for _ in range(_TRIES):
            done = await self._look_and_show(path, base, identity)
            if done is not None:
                return done
        raise VersionChanged("others change the file faster than it can be committed")

    def _is_new(self, base: Version | None, identity: bytes | None) -> bool:
        """Whether nothing that may be at the name concerns us: neither an earlier attempt nor a base."""
        new = base is None or base == ABSENT
        return new and identity is None and not self._staging.in_store and not self._staged.attempts

    async def _look_and_show(
        self, path: bytes, base: Version | None, identity: bytes | None
    ) -> Published | None:
        """None: something changed in the moment between the look and the change of the name."""
        assert self._upload is not None
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
        return await self._show_as(path, expected)

    async def _show_as(self, path: bytes, expected: Version | Expected) -> Published | None:
        """None: something else is there than was expected, or a directory."""
        try:
            st = await self._try(path, expected)
        except VersionChanged:
            return None
        except StoreError as error:
            if error.errno in _IN_THE_WAY:
                return None
            raise
        return self._shown(st, None)

    async def _try(self, path: bytes, expected: Version | Expected, *, beside: bool = False) -> Stat:
        """`Upload.show`. That only the answer is missing is seen here where the staged file is renamed."""
        assert self._upload is not None
        self._showing(self._upload.trace(expected))
        try:
            return await self._upload.show(path, expected)
        except VersionChanged:
            raise
        except StoreError as error:
            self._staged.unsettled = self._upload
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
        self._showing("")
        st = await self._store.overwrite(self._staged.fd, path, self._observe)
        crash.point("commit.overwritten")
        return Published(st, None, renamed=False, sums=self._sums(st))

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
        upload, self._upload = self._upload, None
        self._moved()
        descriptor = upload.descriptor() if upload is not None else None
        renamed = self._staging.in_store
        return Published(st, conflict, renamed=renamed, sums=self._sums(st), descriptor=descriptor)

    def _sums(self, st: Stat) -> list[int] | None:
        return self._blocks.finish(st.size) if self._blocks is not None else None

    async def give_up(self) -> None:
        """Leave nothing of ours in the store but what was shown, nor what an earlier commit had to leave."""
        owed = self._staging.owed
        for copy in (self._upload, self._transfer):
            if copy is not None:
                owed.append(copy)
        self._upload = self._transfer = None
        if owed:
            await clear(owed)


def _names_beside(path: bytes) -> list[tuple[bytes, Expected]]:
    host, now = socket.gethostname(), time.time()
    return [(conflict_name(path, host, now, n), Expected.NOTHING) for n in range(_MOST_BESIDE)]


async def publish(
    store: Store,
    staging: Staging,
    staged: StagedFile,
    path: bytes,
    base: Version | None,
    *,
    durable: bool,
    identity: bytes | None = None,
    showing: Callable[[str], None] = lambda trace: None,
) -> Published:
    """Both steps of a commit, for who has no lock to take in between."""
    commit = Commit(store, staging, staged, showing=showing)
    try:
        await commit.bring(durable=durable, replaces=is_version(base))
        done = await commit.show(path, base, identity)
        if done.descriptor is not None:
            store.reader(done.descriptor).close()
        return done
    finally:
        await commit.give_up()
