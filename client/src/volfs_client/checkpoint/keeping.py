"""The checkpoints of a run: saved step by step, found again, and no more of them kept than asked for.

A checkpoint is written into a hidden directory and gets its name when it is complete and durable, by
the same collective step that publishes its metadata, so that all ranks succeed or none. The layout is that of
torchtitan (`step-N`), and each is an ordinary checkpoint of torch.distributed.checkpoint. It owns no format
(`writer`, `reader`) and no names (`steps`).

*Concurrency:* calls come from one thread a rank, in the same order on all ranks. One save is in flight at
a time; its end runs in the thread of the save.

*Invariants:* the newest complete checkpoint, the one that was just saved and one that is in flight are never
deleted. Nothing is deleted before a newer one is complete. Only the coordinator deletes.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.storage import WriteResult

from volfs_client.checkpoint.ranks import Ranks
from volfs_client.checkpoint.reader import VolumeReader
from volfs_client.checkpoint.saving import Mode, async_save, load, save
from volfs_client.checkpoint.steps import Steps
from volfs_client.checkpoint.writer import VolumeWriter, WriteTimings
from volfs_client.errors import CheckpointExists, CheckpointMissing

__all__ = ["CheckpointManager", "Saved"]

_log = logging.getLogger("volfs_client")


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is complete. `blocked_s`: how long the caller of the save waited, of `total_s`.

    `timings` are those of this rank's writer; of a save in another process they are not known here.
    """

    step: int
    path: Path
    blocked_s: float
    total_s: float
    timings: WriteTimings


class CheckpointManager:
    """See the module. Every rank makes one, and calls `save`, `async_save`, `restore` and `close` together.

    `root`: a directory in a volume, or any other that all ranks see. `keep_last`: how many checkpoints
    stay; None: all. `process_group`: the ranks that save together, by a group with a backend for the CPU
    that nobody else uses; by default all ranks, by a group of our own. `mode`: where `async_save` runs.
    `atomic`: False writes into `step-N` itself, where `.metadata` then marks what is
    complete, for stores that cannot rename directories. `overwrite`: whether a step that has a checkpoint
    may be saved again; the old one stays loadable until the new one is complete. `thread_count`: files
    that each rank writes, or pieces that it reads, at a time. `stale_s`: when a directory of a save that
    died on another machine may be removed. `on_saved` is called on each rank after each save, in the
    thread of the save; what it raises is logged.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        keep_last: int | None = None,
        *,
        process_group: Any = None,
        mode: Mode = "thread",
        atomic: bool = True,
        overwrite: bool = False,
        thread_count: int = 4,
        stale_s: float = 24 * 3600,
        on_saved: Callable[[Saved], None] | None = None,
    ) -> None:
        if keep_last is not None and keep_last < 1:
            raise ValueError("keep_last must be at least 1, or None to keep all")
        if mode not in ("thread", "process"):
            raise ValueError(f"mode must be 'thread' or 'process', not {mode!r}")
        self._steps = Steps(root, stale_s)
        self._keep_last = keep_last
        self._ranks = Ranks(process_group)
        self._mode: Mode = mode
        self._atomic = atomic
        self._overwrite = overwrite
        self._thread_count = thread_count
        self._on_saved = on_saved
        self._running: Future[Path] | None = None

    # -- what there is: each rank for itself ------------------------------------------

    @property
    def root(self) -> Path:
        """The directory of all checkpoints."""
        return self._steps.root

    def path(self, step: int) -> Path:
        """The directory of the checkpoint of a step."""
        return self._steps.path(step)

    def steps(self) -> list[int]:
        """The steps of which there is a complete checkpoint, in order."""
        return self._steps.complete()

    def latest(self) -> int | None:
        """The highest step of which there is a complete checkpoint."""
        steps = self.steps()
        return steps[-1] if steps else None

    # -- together ------------------------------------------------------------------------

    def save(self, step: int, state_dict: dict[str, Any], *, planner: Any = None) -> Path:
        """Save the state of a step, and answer its directory. Complete and durable when it returns.

        First waits for a save in flight, and raises its error. Raises CheckpointExists, CheckpointFailed
        with the errors of the ranks, or another CheckpointError; on all ranks alike, and then nothing is
        published.
        """
        began_s = time.monotonic()
        writer = self._begin(step)
        try:
            save(state_dict, storage_writer=writer, planner=planner, process_group=self._ranks.group)
        except BaseException:
            self._abandon(writer)
            raise
        return self._end(step, writer, began_s, None)

    def async_save(
        self, step: int, state_dict: dict[str, Any], *, planner: Any = None, stager: Any = None
    ) -> Future[Path]:
        """As `save`, but return as soon as the state is copied; the Future is done when all is complete.

        An error is logged, raised by the Future, and by the next call on this object that waits for it.
        `stager`: torch's `async_stager`, which the caller closes.
        """
        began_s = time.monotonic()
        writer = self._begin(step)
        promise: Future[Path] = Future()
        promise.set_running_or_notify_cancel()
        blocked_s = 0.0

        def then(error: BaseException | None) -> None:
            try:
                if error is not None:
                    _log.error("the checkpoint of step %d is not saved: %s", step, error)
                    self._abandon(writer)
                    raise error
                path = self._end(step, writer, began_s, blocked_s or time.monotonic() - began_s)
            except BaseException as failure:
                promise.set_exception(failure)
            else:
                promise.set_result(path)

        try:
            async_save(
                state_dict,
                storage_writer=writer,
                planner=planner,
                process_group=self._ranks.group,
                mode=self._mode,
                stager=stager,
                then=then,
            )
        except BaseException:
            self._abandon(writer)
            raise
        blocked_s = time.monotonic() - began_s
        self._running = promise
        return promise

    def wait(self) -> None:
        """Wait for the save in flight, if any, and raise its error."""
        running, self._running = self._running, None
        if running is not None:
            running.result()

    def restore(self, state_dict: dict[str, Any], step: int | None = None, *, planner: Any = None) -> int:
        """Load the newest complete checkpoint, or that of `step`, in place; on any number of ranks.

        Answers its step. Raises CheckpointMissing where there is none, CheckpointDamaged, which names the
        file, or CheckpointFailed; on all ranks alike.
        """
        self.wait()

        def choose() -> int:
            found = self.latest() if step is None else step if step in self.steps() else None
            if found is None:
                path = self.root if step is None else self.path(step)
                raise CheckpointMissing(errno.ENOENT, "there is no complete checkpoint", str(path))
            return found

        chosen = self._ranks.decide(choose)
        reader = VolumeReader(self.path(chosen), thread_count=self._thread_count)
        load(state_dict, storage_reader=reader, planner=planner, process_group=self._ranks.group)
        return chosen

    def close(self) -> None:
        """Wait for the save in flight, raise its error, and give the process group back."""
        try:
            self.wait()
        finally:
            self._ranks.close()

    def __enter__(self) -> CheckpointManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()  # after an error others may not come to close together

    # -- one save ------------------------------------------------------------------------

    def _begin(self, step: int) -> VolumeWriter:
        if step < 0:
            raise ValueError("a step is not negative")
        self.wait()
        # The name only: the volume may be mounted at another place for other ranks.
        place = self.root / self._ranks.decide(lambda: self._place(step).name)
        if place == self.path(step):
            return VolumeWriter(place, thread_count=self._thread_count, overwrite=self._overwrite)
        return _StepWriter(self._steps, step, place, self._thread_count)

    def _place(self, step: int) -> Path:
        """Where to write: a hidden directory, or the one of the step where there is something already."""
        path = self.path(step)
        if not self._overwrite and step in self.steps():
            raise CheckpointExists(
                errno.EEXIST,
                "there is a checkpoint of this step already; pass overwrite=True to replace it",
                str(path),
            )
        self._steps.sweep()
        return self._steps.begin(step) if self._atomic and not path.exists() else path

    def _abandon(self, writer: VolumeWriter) -> None:
        if isinstance(writer, _StepWriter) and self._ranks.is_coordinator:
            self._steps.abandon(writer.place)

    def _end(self, step: int, writer: VolumeWriter, began_s: float, blocked_s: float | None) -> Path:
        total_s = time.monotonic() - began_s
        if self._keep_last is not None and self._ranks.is_coordinator:
            self._retain(step, self._keep_last)
        if self._on_saved is not None:
            blocked_s = total_s if blocked_s is None else blocked_s
            try:
                self._on_saved(Saved(step, self.path(step), blocked_s, total_s, writer.timings))
            except Exception:
                _log.exception("on_saved failed; the checkpoint of step %d is saved", step)
        return self.path(step)

    def _retain(self, saved: int, most: int) -> None:
        try:
            complete = self.steps()
        except OSError as error:
            _log.warning("older checkpoints are not deleted, %s cannot be listed: %s", self.root, error)
            return
        for step in complete[:-most]:
            if step != saved:
                self._steps.remove(step)


class _StepWriter(VolumeWriter):
    """A writer whose directory gets its name when the checkpoint in it is complete."""

    def __init__(self, steps: Steps, step: int, place: Path, thread_count: int) -> None:
        super().__init__(place, thread_count=thread_count)
        self.place = place
        self._steps = steps
        self._step = step

    @property
    def checkpoint_id(self) -> str | os.PathLike[str]:
        # What is written into the metadata, and into messages.
        return self._steps.path(self._step)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        super().finish(metadata, results)
        self._steps.publish(self.place, self._step)
