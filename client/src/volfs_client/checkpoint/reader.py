"""Reads a checkpoint of torch.distributed.checkpoint: checked first, in the order of the files, in parallel.

Before the first byte is read, names and sizes of all files that this rank needs are compared with the
metadata, as the store has them now. On a volfs mount the order is passed on as a hint, so that
files are fetched before they are opened.

*Concurrency:* a bounded pool of threads, each with a stream of its own; calls to the planner exclude
each other, copies into tensors do not.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from volfs_client.checkpoint.contents import differences, file_ends
from volfs_client.checkpoint.files import current_size
from volfs_client.errors import CheckpointDamaged, CheckpointMissing
from volfs_client.mount import prefetch

__all__ = ["ReadTimings", "VolumeReader"]

_METADATA: Final = ".metadata"

#: A thread reads at least so much in one go, so that threads do not tear the order of the file apart.
_RUN_BYTES: Final = 16 << 20

#: What torch.load raises for bytes that are no tensor.
_UNREADABLE: Final = (RuntimeError, EOFError, pickle.UnpicklingError)


@dataclasses.dataclass
class ReadTimings:
    """How long the last load took on this rank, in seconds, and how many bytes of the files it needed."""

    check_s: float = 0.0
    read_s: float = 0.0
    read_bytes: int = 0


class VolumeReader(FileSystemReader):
    """A storage reader for `torch.distributed.checkpoint.load`. See the module.

    `path`: the directory of the checkpoint; `checkpoint_id` of a load replaces it. `thread_count`: how much
    is read at a time by this rank. Further options are those of torch's FileSystemReader.

    Raises CheckpointDamaged, which names the files that are missing, too short or unreadable, or the OSError
    of a file; torch hands them on to every rank within a CheckpointException, which is no Exception
    (`volfs_client.checkpoint.load` raises what is one). The metadata is a pickle: load only what you trust.
    """

    def __init__(self, path: str | os.PathLike[str], *, thread_count: int = 4, **options: Any) -> None:
        if thread_count < 1:
            raise ValueError("thread_count must be at least 1")
        super().__init__(path, **options)
        self.thread_count = thread_count
        self.timings = ReadTimings()
        #: Why there is no metadata; torch tells only that there is none.
        self.metadata_error: Exception | None = None

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        # torch asks for the common metadata first, then for the rank's own.
        rank = kwargs.get("rank")
        path = Path(self.path) / (_METADATA if rank is None else f"__{rank}{_METADATA}")
        try:
            current_size(path)  # makes a mount ask the store, so that the open that follows sees the newest
            metadata: Metadata = super().read_metadata(*args, **kwargs)
        except FileNotFoundError as error:
            if self.metadata_error is None or rank is None:
                self.metadata_error = CheckpointMissing(
                    error.errno, "there is no complete checkpoint", os.fspath(self.path)
                )
            raise
        except OSError as error:
            self.metadata_error = error
            raise
        except Exception as error:
            self.metadata_error = CheckpointDamaged(f"{path} cannot be read: {error!r}")
            raise self.metadata_error from error
        self.metadata_error = None
        return metadata

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return dataclasses.replace(plan, items=sorted(plan.items, key=self._place))

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        began_s = time.monotonic()
        directory = Path(self.path)
        infos = {item.storage_index: self.storage_data[item.storage_index] for item in plan.items}
        ends = file_ends(infos)
        if wrong := differences(directory, ends):
            raise CheckpointDamaged(f"the checkpoint {directory} is not whole: {wrong}")
        checked_s = time.monotonic()
        items = sorted(plan.items, key=self._place)
        prefetch(directory, dict.fromkeys(infos[item.storage_index].relative_path for item in items))
        self._read(items, plan, _OneAtATime(planner))
        self.timings = ReadTimings(
            checked_s - began_s,
            time.monotonic() - checked_s,
            sum(info.length for info in infos.values()),
        )
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _read(self, items: list[ReadItem], plan: LoadPlan, planner: Any) -> None:
        failed = threading.Event()

        def read(run: list[ReadItem]) -> None:
            if failed.is_set():
                return
            # A copy, as torch's function belongs to one thread.
            future = FileSystemReader.read_data(
                copy.copy(self), dataclasses.replace(plan, items=run), planner
            )
            future.wait()

        def read_or_fail(run: list[ReadItem]) -> None:
            path = os.path.join(self.path, self._place(run[0])[0])
            try:
                read(run)
            except BaseException as error:
                failed.set()
                if isinstance(error, OSError):
                    raise OSError(error.errno, error.strerror, path) from error
                if isinstance(error, _UNREADABLE):
                    raise CheckpointDamaged(f"{path} cannot be read: {error}") from error
                raise

        with ThreadPoolExecutor(self.thread_count, "volfs-read") as pool:
            futures = [pool.submit(read_or_fail, run) for run in self._runs(items)]
        errors = [error for future in futures if (error := future.exception()) is not None]
        if errors:
            raise errors[0]

    def _runs(self, items: list[ReadItem]) -> list[list[ReadItem]]:
        """Stretches of one file each, in order, several a thread where there is much to read."""
        lengths = [self.storage_data[item.storage_index].length for item in items]
        most = max(_RUN_BYTES, sum(lengths) // (4 * self.thread_count))
        runs: list[list[ReadItem]] = []
        name, size = "", 0
        for item, length in zip(items, lengths, strict=True):
            if not runs or self._place(item)[0] != name or size >= most:
                runs.append([])
                name, size = self._place(item)[0], 0
            runs[-1].append(item)
            size += length
        return runs

    def _place(self, item: ReadItem) -> tuple[str, int]:
        info = self.storage_data[item.storage_index]
        return info.relative_path, info.offset


class _OneAtATime:
    """A planner whose calls exclude each other: it changes one dict of the caller's."""

    def __init__(self, planner: LoadPlanner) -> None:
        self._planner = planner
        self._lock = threading.Lock()

    def load_bytes(self, *arguments: Any) -> None:
        with self._lock:
            self._planner.load_bytes(*arguments)

    def resolve_tensor(self, *arguments: Any) -> Any:
        with self._lock:
            return self._planner.resolve_tensor(*arguments)

    def commit_tensor(self, *arguments: Any) -> None:
        with self._lock:
            self._planner.commit_tensor(*arguments)
