"""Commits of open files: from a dirty file to a clean one, and what that changes in all that is known.

How a staged file becomes the file in the store is `commit.publish`; this module
holds the locks around its steps and moves the node from before to after.

*Concurrency:* `File.lock` is held over a commit, `structure` over the step that
uses the path. Where the store may hang, the commit runs in a task of its own:
who asked for it gets ETIMEDOUT when nothing moves any more, the task goes on,
and others who want the same join it.

*Invariants:* a staged file is deleted before its row is; a file that was
committed is clean in the step after the store said so, with no await between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
import trio

from volfs import crash
from volfs.commit.publish import Commit, Published
from volfs.commit.staging import StagedFile
from volfs.core.versions import is_settled, is_version
from volfs.errors import NotFound, VolfsError
from volfs.store.base import Stat

if TYPE_CHECKING:
    from volfs.fs.file import File

__all__ = ["Attempt", "commit_file"]

log = structlog.get_logger(__name__)


class Attempt:
    """A commit that is under way in a task of its own. `if_owed`: all who wait for it said so."""

    __slots__ = ("done", "durable", "error", "if_owed")

    def __init__(self, *, durable: bool, if_owed: bool) -> None:
        self.durable = durable
        self.if_owed = if_owed
        self.done = trio.Event()
        self.error: VolfsError | None = None


async def commit_file(file: File, *, durable: bool, if_owed: bool = False) -> None:
    """Make the staged bytes the file in the store; on return they are. Raises the store's error.

    StoreTimeout if the store does not answer: the commit may yet be done. `if_owed`: only if the queue
    still owes it when this has the lock. What was owed may be committed by then, and what is staged be
    the half of something else.
    """
    volume = file.volume
    attempt = Attempt(durable=durable, if_owed=if_owed)
    if volume.policy.store_timeout_s is None:
        await _commit(file, attempt)
        return
    # Whoever holds the lock has all that was acknowledged by now: nobody could write meanwhile.
    if file.attempt is None or (durable and not file.attempt.durable):
        file.attempt = attempt
        assert volume.tasks is not None
        volume.tasks.start_soon(_run, file, attempt)
    else:
        attempt = file.attempt
        attempt.if_owed = attempt.if_owed and if_owed
    await file.progress.wait(attempt.done.wait)
    if attempt.error is not None:
        raise attempt.error


async def _run(file: File, attempt: Attempt) -> None:
    try:
        await _commit(file, attempt)
    except VolfsError as error:
        attempt.error = error
    except Exception as error:
        log.exception("a commit failed unexpectedly", inode=file.node.number)
        attempt.error = VolfsError("unexpected error, see the log")
        attempt.error.__cause__ = error
        file.volume.errors += 1
    finally:
        if file.attempt is attempt:
            file.attempt = None
        attempt.done.set()


async def _commit(file: File, attempt: Attempt) -> None:
    try:
        async with file.lock:
            if attempt.if_owed and not file.volume.queue.owes(file.node.number):
                return
            if file.staged is not None:
                await _commit_staged(file, file.staged, durable=attempt.durable)
            elif attempt.durable:
                await _sync(file)
    finally:
        file.volume.abandon(file.node)


async def _sync(file: File) -> None:
    """Nothing is staged: make what is in the store survive a power cut."""
    volume = file.volume
    if file.reader is None:
        return
    await file.reader.sync()
    path = volume.tree.path(file.node)
    if path is not None:
        await volume.store.sync_directory(path.rpartition(b"/")[0])


async def _commit_staged(file: File, staged: StagedFile, *, durable: bool) -> None:
    volume, node = file.volume, file.node
    if volume.tree.home(node) is None:
        await _commit_nameless(file, staged)
        return
    assert volume.staging is not None
    commit = Commit(
        volume.store,
        volume.staging,
        staged,
        checksums=volume.cache is not None,
        showing=file.showing,
        moved=file.progress.moved,
        early=file.ahead.take(),
    )
    try:
        replaces = file.base is not None and node.stat.size > 0
        await commit.bring(durable=durable or replaces, replaces=is_version(file.base))
        async with volume.structure.shared():
            path = volume.tree.home(node)
            if path is None:
                return
            try:
                done = await commit.show(path, file.base, node.identity, look=False)
            except NotFound:
                await volume.remake_directories(node)
                done = await commit.show(path, file.base, node.identity, look=False)
            # no await from here: the store has it, now all that we know must say so
            _committed(file, staged, done, path)
    finally:
        await commit.give_up()
    if not done.renamed:
        await _clear(file, staged, done)
        await _reopen(file, done.conflict or path)
    if durable:
        await volume.store.sync_directory((done.conflict or path).rpartition(b"/")[0])


async def _commit_nameless(file: File, staged: StagedFile) -> None:
    """This mount took the last name that it knows. If the file has others in the store, it gets its bytes;
    else they go with the last handle.
    """
    if file.reader is None or not (await file.reader.stat()).nlink:
        return

    def observe(offset: int, piece: memoryview) -> None:
        file.progress.moved()

    st = await file.reader.overwrite(staged.fd, observe)
    file.clean()
    file.volume.counters["committed"] += 1
    file.volume.queue.remove(file.node.number)
    file.node.stat = st
    file.node.epoch += 1
    staged.discard()
    _forget_row(file, staged)


def _committed(file: File, staged: StagedFile, done: Published, path: bytes) -> None:
    volume, node = file.volume, file.node
    file.clean()
    volume.counters["committed"] += 1
    volume.queue.remove(node.number)
    for parent, _ in node.names:
        parent.touched_ns = 0
        volume.outdate(parent)
    if file.reader is not None:  # of what the file was, kept while no name of it was known here
        file.reader.close()
        file.reader = None
    if done.renamed:
        file.reader = volume.store.reader(staged.published())
        _forget_row(file, staged)
    elif done.descriptor is not None:
        reader = volume.store.reader(done.descriptor)
        if node.handles:
            file.reader = reader
        else:
            reader.close()
    if done.conflict is not None:
        volume.conflicts += 1
        if node.names:
            volume.lost(node)  # its name is the others' file from here on
        if node.number not in volume.tree.by_number:
            return
    # Handles that are open go on with our bytes, wherever they are.
    volume.tree.identify(node, done.stat)
    node.epoch += 1
    node.checked_s = trio.current_time()
    volume.settled(node, done.conflict or path)


async def _clear(file: File, staged: StagedFile, done: Published) -> None:
    """The bytes were copied: the staged file goes, or becomes the cache file of what was committed."""
    volume = file.volume
    st = done.stat
    may_change_unseen = volume.racy(st) and not is_settled(st.mtime_ns, st.ctime_ns)
    if done.sums is None or done.conflict is not None or may_change_unseen:
        staged.discard()
    else:
        await _adopt(file, staged, done.stat, done.sums)
    crash.point("commit.cleared")
    _forget_row(file, staged)


async def _adopt(file: File, staged: StagedFile, st: Stat, sums: list[int]) -> None:
    volume = file.volume
    assert volume.cache is not None and volume.staging_path is not None
    await volume.cache.adopt(st.version, st.size, volume.staging_path / staged.name, sums)
    staged.discard()  # no file of this name is left: it is a cache file now, or removed


def _forget_row(file: File, staged: StagedFile) -> None:
    """A row that stays because the journal's disk is full costs the next mount a look, no bytes."""
    try:
        file.volume.journal.remove(staged.name)
    except VolfsError as error:
        log.warning("committed, but the journal cannot say so", error=str(error))
    crash.point("commit.recorded")


async def _reopen(file: File, path: bytes) -> None:
    """Our bytes are at `path` now, in another file than the staged one."""
    if file.reader is None and file.staged is None and file.node.handles:
        try:
            file.reader = await file.volume.store.open(path)
        except VolfsError as error:
            log.debug("cannot reopen after a commit", path=path, error=str(error))
