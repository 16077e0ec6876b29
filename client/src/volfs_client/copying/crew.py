"""The threads of one copy.

A directory is listed, its entries are compared with the target in batches, what differs is
copied, and of a large file several ranges are in flight. What comes first is `backlog`'s to say.
A directory is finished by whoever finishes the last thing in it, so that its mode and time are
set after its content, and those above it later.

*Concurrency:* all shared state is behind one condition; no call to a file system is made with it
held. A thread that would have to wait for room does what is waiting instead.

*Invariants:* each entry that was found is counted once, as copied, unchanged or failed. After
`stop` nothing more is published, and what was under way is removed.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from dataclasses import replace
from typing import Final, Literal

from volfs_client import mount, temporary
from volfs_client.copying import directory as directories
from volfs_client.copying.backlog import RANGE_BYTES, Backlog, Entry, Large, Range
from volfs_client.copying.directory import Directory
from volfs_client.copying.progress import CopyCounts
from volfs_client.copying.transfer import (
    CHUNK_BYTES,
    KEPT_MODE,
    Changed,
    Transfer,
    copy_link,
    is_same,
    refusal,
)

__all__ = ["Crew", "Overwrite"]

#: What happens to a file that is at the target already.
Overwrite = Literal["changed", "never", "always"]

#: Entries that are compared, and hinted at, together.
_BATCH: Final = 256

#: A source that changes while it is read is copied again; so often in all.
_TRIES: Final = 3

#: Errors that the next file would meet as well.
_LASTING: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.ENOTCONN})


class _Stopped(Exception):
    """The work is to end."""


class Crew:
    """See the module. `add` what is to be copied, `start`, `wait` until it is over, `stop` in any case."""

    def __init__(self, jobs: int, overwrite: Overwrite, *, fsync: bool) -> None:
        self._jobs = jobs
        self._overwrite = overwrite
        self._fsync = fsync
        self._changed = threading.Condition()
        self._backlog = Backlog()
        self._unfinished = 0  # directories and entries
        self._listings = 0
        self._stopped = False
        self._counts = CopyCounts()
        self._began_s = time.monotonic()
        self._threads: list[threading.Thread] = []
        self.failed: list[tuple[str, OSError]] = []
        self.lasting: OSError | None = None  #: the error that made all others pointless
        self.bug: BaseException | None = None  #: what is no OSError

    # -- from the calling thread ---------------------------------------------------

    def add(self, first: Directory | Entry) -> None:
        """Something to copy; before `start`."""
        if isinstance(first, Directory):
            self._put_directory(first)
        else:
            self._put_batch([first])

    def start(self) -> None:
        for number in range(self._jobs):
            # As a daemon: a thread in a request that never ends must not keep the program.
            thread = threading.Thread(target=self._work, name=f"copy-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)

    def wait(self, timeout_s: float) -> bool:
        """Whether all is done, or no more will be."""
        with self._changed:
            return self._changed.wait_for(self._is_over, timeout_s)

    def stop(self, timeout_s: float) -> None:
        """End what is under way, and wait for the threads so long."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        end_s = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, end_s - time.monotonic()))
        with self._changed:
            left = self._backlog.abandoned()
        for large in left:
            large.transfer.abandon()

    @property
    def counts(self) -> CopyCounts:
        with self._changed:
            elapsed_s = time.monotonic() - self._began_s
            return replace(self._counts, elapsed_s=elapsed_s, listed=not self._listings)

    def _is_over(self) -> bool:
        return self._stopped or not self._unfinished

    # -- stages --------------------------------------------------------------------

    def _work(self) -> None:
        buffer = memoryview(bytearray(CHUNK_BYTES))
        try:
            while True:
                with self._changed:
                    task = None
                    while not self._is_over() and (task := self._backlog.take()) is None:
                        self._changed.wait()
                    if task is None:
                        return
                self._do(task, buffer)
        except _Stopped:
            return
        except BaseException as error:
            with self._changed:
                self.bug = self.bug or error
                self._stopped = True
                self._changed.notify_all()

    def _do(self, task: Range | list[Entry] | Entry | Directory, buffer: memoryview) -> None:
        if isinstance(task, Directory):
            self._list(task, buffer)
        elif isinstance(task, list):
            self._compare(task)
        elif isinstance(task, Entry):
            self._copy(task, buffer)
        else:
            self._copy_range(task, buffer)

    def _list(self, directory: Directory, buffer: memoryview) -> None:
        batch: list[Entry] = []
        try:
            fresh = directories.make(directory)
            commits = fresh and mount.is_volfs(directory.target)
            with os.scandir(directory.source) as entries:
                for found in entries:
                    self._go_on()
                    entry = self._sort(directory, found, fresh, commits)
                    if entry is not None:
                        batch.append(entry)
                    if len(batch) == _BATCH:
                        self._put_batch(batch)
                        batch = []
                        self._make_room(buffer)
        except OSError as error:
            self._fail(directory.source, error)
        finally:
            self._put_batch(batch)
            with self._changed:
                self._listings -= 1
            self._finish(directory)

    def _sort(
        self, directory: Directory, found: os.DirEntry[str], fresh: bool, commits: bool
    ) -> Entry | None:
        try:
            st = found.stat(follow_symlinks=False)
        except FileNotFoundError:
            return None  # removed since it was listed
        except OSError as error:
            self._fail(found.path, error)
            return None
        if stat.S_ISDIR(st.st_mode):
            self._put_directory(directory.child(found.name, st))
            return None
        # Of another copy, which is under way or has died.
        if temporary.is_ours(found.name):
            return None
        target = os.path.join(directory.target, found.name)
        return Entry(found.path, target, st, directory, directory.hint_root, fresh, commits)

    def _compare(self, batch: list[Entry]) -> None:
        wanted = []
        for entry in batch:
            self._go_on()
            if entry.fresh or not self._is_there(entry):
                wanted.append(entry)
        root = batch[0].hint_root
        if root is not None:
            # What is skipped must not be fetched, so it is not hinted at.
            files = [entry.source for entry in wanted if stat.S_ISREG(entry.found.st_mode)]
            mount.prefetch(root, [os.path.relpath(path, root) for path in files])
        with self._changed:
            self._backlog.compared(batch, wanted)
            self._changed.notify(len(wanted))

    def _is_there(self, entry: Entry) -> bool:
        """Whether there is nothing to do, which is then noted."""
        if self._overwrite == "always" or not (
            stat.S_ISREG(entry.found.st_mode) or self._overwrite == "never"
        ):
            return False
        try:
            there = os.lstat(entry.target)
            if self._overwrite == "changed":
                if not is_same(entry.found, there):
                    return False
                mode = entry.found.st_mode & KEPT_MODE
                if stat.S_IMODE(there.st_mode) != mode:
                    os.chmod(entry.target, mode)
        except OSError:
            return False  # whoever copies it meets the error, if it is one
        self._settle(entry, unchanged=1, unchanged_bytes=_size(entry))
        return True

    def _copy(self, entry: Entry, buffer: memoryview) -> None:
        try:
            if stat.S_ISLNK(entry.found.st_mode):
                made = copy_link(entry.source, entry.target, entry.found)
                self._settle(entry, files=int(made), unchanged=int(not made))
                return
            if not stat.S_ISREG(entry.found.st_mode):
                raise refusal(entry.found, entry.source)
            transfer = Transfer(entry.source, entry.target)
        except OSError as error:
            self._fail(entry.source, error, entry)
            return
        large = Large(entry, transfer)
        if self._jobs > 1 and transfer.size >= 2 * RANGE_BYTES:
            with self._changed:
                self._backlog.put_large(large)
                self._changed.notify_all()
            return
        large.next, large.under_way = transfer.size, 1
        self._copy_range(Range(large, 0, transfer.size), buffer)

    def _copy_range(self, task: Range, buffer: memoryview) -> None:
        large = task.large
        error: Exception | None = None
        moved = 0

        def note(count: int) -> None:
            nonlocal moved
            moved += count
            self._go_on(count)
            if large.error is not None:
                raise large.error

        try:
            large.transfer.move(task.begin, task.end, buffer, note)
        except (OSError, Changed, _Stopped) as caught:
            error = caught
        with self._changed:
            large.transfer.moved += moved
            large.under_way -= 1
            large.error = large.error or error
            if large.error is not None:
                self._backlog.drop(large)
            is_last = large.is_over
        if is_last:
            self._end(large)

    def _end(self, large: Large) -> None:
        """All ranges are copied, or one could not be."""
        entry, transfer = large.entry, large.transfer
        try:
            if large.error is not None:
                raise large.error
            self._go_on()
            transfer.publish(fsync=self._fsync, early=entry.commits)
        except BaseException as error:
            transfer.abandon()
            with self._changed:
                self._count(bytes=-transfer.moved)
            if isinstance(error, OSError):
                self._fail(entry.source, error, entry)
            elif isinstance(error, Changed):
                self._again(entry)
            else:
                raise
        else:
            # A hole is copied without being read.
            self._settle(entry, files=1, bytes=transfer.size - transfer.moved)

    def _again(self, entry: Entry) -> None:
        if entry.tries == _TRIES:
            text = f"it changed while it was copied, {_TRIES} times: copy it when it rests"
            self._fail(entry.source, OSError(errno.EBUSY, text, entry.source), entry)
            return
        with self._changed:
            self._backlog.compared([], [replace(entry, tries=entry.tries + 1)])
            self._changed.notify()

    # -- accounts ------------------------------------------------------------------

    def _count(self, **what: int) -> None:
        """With the condition held."""
        more = {name: getattr(self._counts, name) + count for name, count in what.items()}
        self._counts = replace(self._counts, **more)

    def _go_on(self, count: int = 0) -> None:
        """So many bytes more; _Stopped if that was enough."""
        with self._changed:
            if self._stopped:
                raise _Stopped
            if count:
                self._count(bytes=count)

    def _make_room(self, buffer: memoryview) -> None:
        """Do what waits, until there is room for more."""
        while True:
            with self._changed:
                if not self._backlog.is_full or (task := self._backlog.take(listing=False)) is None:
                    return
            self._do(task, buffer)

    def _put_directory(self, directory: Directory) -> None:
        with self._changed:
            if directory.parent is not None:
                directory.parent.open += 1
            self._unfinished += 1
            self._listings += 1
            self._backlog.put_directory(directory)
            self._changed.notify()

    def _put_batch(self, batch: list[Entry]) -> None:
        if not batch:
            return
        with self._changed:
            parent = batch[0].parent
            if parent is not None:
                parent.open += len(batch)
            self._unfinished += len(batch)
            self._backlog.put_batch(batch)
            self._count(found=len(batch), found_bytes=sum(map(_size, batch)))
            self._changed.notify()

    def _fail(self, path: str, error: OSError, entry: Entry | None = None) -> None:
        with self._changed:
            self.failed.append((path, error))
            if error.errno in _LASTING:
                self.lasting = self.lasting or error
                self._stopped = True
        if entry is not None:
            self._settle(entry, failed=1)

    def _settle(self, entry: Entry, **what: int) -> None:
        """Nothing is left to do for the entry, and it counts as this."""
        with self._changed:
            self._count(**what)
            self._unfinished -= 1
        self._finish(entry.parent)

    def _finish(self, directory: Directory | None) -> None:
        """One thing less is open in the directory; after the last one it gets its mode and time."""
        while directory is not None:
            with self._changed:
                directory.open -= 1
                if directory.open or self._stopped:
                    break
            try:
                directories.close(directory)
            except OSError as error:
                self._fail(directory.source, error)
            with self._changed:
                self._unfinished -= 1
                self._count(directories=1)
            directory = directory.parent
        with self._changed:
            if self._is_over():
                self._changed.notify_all()


def _size(entry: Entry) -> int:
    return entry.found.st_size if stat.S_ISREG(entry.found.st_mode) else 0
