"""Writes a checkpoint of torch.distributed.checkpoint so that it is whole, or is not there.

What torch's own writer does stays: plans, formats, one or more files a rank. This one fixes the
order in which things become true, and lets no error go by:

    1. every rank      writes its data files, each synced: on a volfs mount they are in the store then
    2. every rank      fails if one of its threads failed; torch then fails the save on all ranks
    3. the coordinator  compares the metadata with the results and with the files in the store
    4. the coordinator  writes `.metadata` beside its place, flushed and synced, and puts it there at once
    5. the coordinator  removes the files of the checkpoint that was replaced, if any

A checkpoint is there from step 4 on. Until then a checkpoint that was there before stays loadable, as
no file of it is written to: files of a replacing checkpoint have other names.

*Invariants:* nothing on the writer is a lock, an open file or a thread, as it is pickled for saves in
another process. One save at a time, by the ranks of one job, goes into one directory.
"""

from __future__ import annotations

import copy
import dataclasses
import errno
import os
import pickle
import queue
import threading
import time
from pathlib import Path
from typing import Any, Final

from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint.filesystem import FileSystemWriter, _StoragePrefix
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from volfs_client.checkpoint.contents import differences, file_ends, unstored
from volfs_client.checkpoint.files import make_directory, publish_file, remove_files
from volfs_client.errors import CheckpointDamaged, CheckpointError, CheckpointExists

__all__ = ["VolumeWriter", "WriteTimings"]

_METADATA: Final = ".metadata"
_DATA_SUFFIX: Final = ".distcp"


@dataclasses.dataclass
class WriteTimings:
    """How long the parts of the last save took on this rank, in seconds, and how many bytes it wrote.

    `plan_s` includes waiting for the other ranks' plans; `publish_s` is the coordinator's.
    """

    plan_s: float = 0.0
    write_s: float = 0.0
    publish_s: float = 0.0
    written_bytes: int = 0

    @property
    def mib_per_s(self) -> float:
        """Bytes written and synced a second, in MiB."""
        return self.written_bytes / 2**20 / self.write_s if self.write_s else 0.0


class VolumeWriter(FileSystemWriter):
    """A storage writer for `torch.distributed.checkpoint.save` and `async_save`. See the module.

    `path`: the directory of the checkpoint; `checkpoint_id` of a save replaces it. `thread_count`: files
    that this rank writes at a time. `overwrite`: whether a checkpoint that is there may be replaced. Further
    options are those of torch's FileSystemWriter. After a save `timings` says how long it took.

    Raises CheckpointExists, CheckpointError, CheckpointDamaged or the OSError of a file; torch hands them
    on to every rank within a CheckpointException, which is no Exception (`volfs_client.checkpoint.save`
    raises what is one). Large tensors are serialized with Python's global lock held: prefer a save in
    another process for large models. All tensors of a file that had to be copied from a device stay in
    memory until the file ends.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        thread_count: int = 1,
        overwrite: bool = False,
        **options: Any,
    ) -> None:
        if thread_count < 1:
            raise ValueError("thread_count must be at least 1")
        form = options.get("serialization_format")
        if form is not None and form.value != "torch_save":
            raise ValueError(
                "torch.distributed.checkpoint loads no other format than TORCH_SAVE from files; "
                "use its HuggingFaceStorageWriter for safetensors"
            )
        super().__init__(path, thread_count=thread_count, overwrite=overwrite, **options)
        # Older ones of torch do not set them.
        self.rank: int | None = None
        self.use_collectives = True
        self.timings = WriteTimings()
        self._began_s = 0.0
        self._names: list[str] = []

    # -- what torch calls, in this order ------------------------------------------

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        super().reset(checkpoint_id)
        self._names = []

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        # torch looks for a parameter called `kwargs`, and says nothing of ranks where there is none.
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
        self.rank = kwargs.get("rank")
        self.use_collectives = kwargs.get("use_collectives", True)
        self.timings = WriteTimings()
        self._names = []
        self._began_s = time.monotonic()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        make_directory(self._directory)
        there = self._existing()
        if there is not None and (not self.overwrite or (there == _METADATA and not self.use_collectives)):
            # Without collectives no rank knows when all others are done, so none may remove the common one.
            how = "pass overwrite=True to replace it" if self.use_collectives else "remove it first"
            raise CheckpointExists(
                errno.EEXIST,
                f"there is a checkpoint already; save to another directory, or {how}",
                str(self._directory / there),
            )
        if self.use_collectives or self.rank is None:
            return plan
        return dataclasses.replace(plan, storage_data=_StoragePrefix(f"__{self._tag()}{self.rank}_"))

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        tag = self._tag()
        return [
            dataclasses.replace(plan, storage_data=_StoragePrefix(f"__{tag}{i}_"))
            if plan.storage_data is None
            else plan
            for i, plan in enumerate(plans)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        began_s = time.monotonic()
        self.timings.plan_s = began_s - self._began_s
        future = super().write_data(plan, planner)
        self.timings.write_s = time.monotonic() - began_s
        return future

    def _write_data(self, planner: SavePlanner, file_queue: queue.Queue[Any]) -> Future[list[WriteResult]]:
        # torch's own loses the error of every thread but the calling one (pytorch#191391).
        files = _Files(file_queue)
        self._names = [name for _, name, _ in files.left]
        alone = copy.copy(self)
        alone.thread_count = 1
        if self.thread_count > 1:
            alone.per_thread_copy_ahead = (
                0  # as torch: threads that overlap copies wait for each other's streams
            )

        def write_files() -> None:
            while (one := files.take()) is not None:
                try:
                    files.done(FileSystemWriter._write_data(alone, planner, one).wait())
                except BaseException as error:
                    files.fail(error)

        threads = [
            threading.Thread(target=write_files, name=f"volfs-write-{i}")
            for i in range(1, min(self.thread_count, len(files.left)))
        ]
        for thread in threads:
            thread.start()
        write_files()
        for thread in threads:
            thread.join()
        try:
            if files.failures:
                raise files.failures[0]
            ends = file_ends({i: result.storage_data for i, result in enumerate(files.results)})
            self._compare(ends)
        except BaseException:
            remove_files(self._directory / name for name in self._names)
            self._names = []
            raise
        self.timings.written_bytes = sum(ends.values())
        future: Future[list[WriteResult]] = Future()
        future.set_result(files.results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        began_s = time.monotonic()
        metadata.storage_data = {one.index: one.storage_data for part in results for one in part}
        version = getattr(filesystem, "CURRENT_DCP_VERSION", None)
        if version is not None:
            metadata.version = version
        metadata.storage_meta = self.storage_meta()
        if lost := unstored(metadata):
            raise CheckpointError(
                f"the planner lists items that no rank wrote, nothing is published: {lost[:5]}"
            )
        ends = file_ends(metadata.storage_data)
        self._compare(ends)
        replaced = self._existing() is not None
        path = self._metadata_path()
        try:
            publish_file(path, lambda stream: pickle.dump(metadata, stream), self.save_id[:8])
        except BaseException:
            if not replaced:
                remove_files([path])
            raise
        if replaced and self.use_collectives:
            self._remove_replaced(ends)
        self.timings.publish_s = time.monotonic() - began_s

    # -- after a failure -------------------------------------------------------------

    def discard(self) -> None:
        """Remove what this rank wrote in a save that failed, unless a checkpoint refers to it. Never fails.

        Call it only when all ranks know that the save failed: when torch raised CheckpointException.
        """
        try:
            with self._metadata_path().open("rb") as stream:
                named = file_ends(pickle.load(stream).storage_data)
        except FileNotFoundError:
            named = {}
        except Exception:
            return  # who knows what it refers to
        remove_files(self._directory / name for name in self._names if name not in named)
        self._names = []

    # -- the directory -----------------------------------------------------------------

    @property
    def _directory(self) -> Path:
        return Path(self.path)

    def _metadata_path(self) -> Path:
        common = self.use_collectives or self.rank is None
        return self._directory / (_METADATA if common else f"__{self.rank}{_METADATA}")

    def _existing(self) -> str | None:
        """The metadata file of a checkpoint that a save would replace; that of all ranks before one's own."""
        names = [_METADATA, f"__{self.rank or 0}{_METADATA}"]
        return next((name for name in names if (self._directory / name).exists()), None)

    def _tag(self) -> str:
        """What tells this save's files from those that are there. Nothing in a new directory."""
        taken = self._existing() or any(name.endswith(_DATA_SUFFIX) for name in os.listdir(self._directory))
        return f"{self.save_id[:8]}_" if taken else ""

    def _compare(self, ends: dict[str, int]) -> None:
        if wrong := differences(self._directory, ends, exactly=True):
            raise CheckpointDamaged(
                f"{self._directory}: the store does not have what was written, nothing is published: {wrong}"
            )

    def _remove_replaced(self, ends: dict[str, int]) -> None:
        """The files of earlier saves into this directory: replaced checkpoints, and saves that died."""
        for name in os.listdir(self._directory):
            data = name.startswith("__") and name.endswith(_DATA_SUFFIX) and name not in ends
            if data or (name.startswith("__") and name.endswith(_METADATA)):
                remove_files([self._directory / name])


class _Files:
    """The files that threads take in turns, what came of them, and the first that went wrong.

    After a failure no further file is begun.
    """

    def __init__(self, files: queue.Queue[Any]) -> None:
        self.left: list[Any] = []
        while not files.empty():
            file = files.get_nowait()
            if file[2]:  # without items it would be an empty file that nothing refers to
                self.left.append(file)
        self.results: list[WriteResult] = []
        self.failures: list[BaseException] = []
        self._lock = threading.Lock()

    def take(self) -> queue.Queue[Any] | None:
        """A queue with the next file, as torch's function takes it."""
        with self._lock:
            if self.failures or not self.left:
                return None
            one: queue.Queue[Any] = queue.Queue()
            one.put(self.left.pop(0))
            return one

    def done(self, results: list[WriteResult]) -> None:
        with self._lock:
            self.results += results

    def fail(self, error: BaseException) -> None:
        with self._lock:
            self.failures.append(error)
