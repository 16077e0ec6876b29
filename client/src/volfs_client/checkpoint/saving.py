"""`save`, `async_save` and `load` as torch.distributed.checkpoint has them, with what is missing there.

- The storage is a VolumeWriter or VolumeReader unless one is given.
- A failure is an Exception: the error itself where there is one of this library, else CheckpointFailed.
- What a failed save left of this rank is removed.
- `async_save` answers a Future, whatever stages the state.

It does not know of steps, nor of earlier checkpoints (`keeping`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from traceback import format_exception_only
from typing import Any, Literal

import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException

from volfs_client.checkpoint.reader import VolumeReader
from volfs_client.checkpoint.writer import VolumeWriter
from volfs_client.errors import CheckpointError, CheckpointFailed

__all__ = ["Mode", "async_save", "load", "save"]

#: Where an asynchronous save runs: a thread of this process, or a process of its own, which needs a process
#: group, takes seconds to start, and does not hold up this one's Python while it serializes.
Mode = Literal["thread", "process"]


def save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_writer: VolumeWriter | None = None,
    planner: Any = None,
    process_group: Any = None,
    **options: Any,
) -> Any:
    """Save a checkpoint together with all ranks, and answer its Metadata. Durable when it returns.

    Arguments as of `torch.distributed.checkpoint.save`. What has the same key on several ranks and is not
    sharded is stored once: give what differs between ranks a key of its own.
    """
    writer = _writer(checkpoint_id, storage_writer)
    try:
        return state_dict_saver.save(
            state_dict,
            checkpoint_id=checkpoint_id,
            storage_writer=writer,
            planner=planner,
            process_group=process_group,
            **options,
        )
    except CheckpointException as error:
        writer.discard()
        raise _as_exception(error, f"{writer.checkpoint_id} is not saved") from error


def async_save(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_writer: VolumeWriter | None = None,
    planner: Any = None,
    process_group: Any = None,
    mode: Mode = "thread",
    stager: Any = None,
    then: Callable[[BaseException | None], None] | None = None,
    **options: Any,
) -> Future[Any]:
    """As `save`, but return when the state is copied; the Future answers the Metadata, or raises.

    Its collectives run in the background: give it a process group that nobody else uses, with a backend
    for the CPU (gloo). `stager`: torch's `async_stager`, which the caller closes. `then` is called at the
    end, with the error if there is one, before the Future is done; what it raises is the Future's.
    """
    if mode == "process" and not (dist.is_available() and dist.is_initialized()):
        raise CheckpointError(
            "a save in another process needs torch.distributed: call init_process_group, or save in a thread"
        )
    writer = _writer(checkpoint_id, storage_writer)
    try:
        answer: Any = state_dict_saver.async_save(
            state_dict,
            checkpoint_id=checkpoint_id,
            storage_writer=writer,
            planner=planner,
            process_group=process_group,
            async_checkpointer_type=state_dict_saver.AsyncCheckpointerType(mode),
            async_stager=stager,
            **options,
        )
    except CheckpointException as error:
        raise _as_exception(error, f"{writer.checkpoint_id} is not saved") from error
    # With a stager of one's own torch answers two futures.
    running: Future[Any] = getattr(answer, "upload_completion", answer)
    promise: Future[Any] = Future()
    promise.set_running_or_notify_cancel()

    def end(done: Future[Any]) -> None:
        error = done.exception()
        try:
            if isinstance(error, CheckpointException):
                writer.discard()
                error = _as_exception(error, f"{writer.checkpoint_id} is not saved")
            if then is not None:
                then(error)
        except BaseException as later:
            error = error or later
        if error is not None:
            promise.set_exception(error)
        else:
            promise.set_result(done.result())

    running.add_done_callback(end)
    return promise


def load(
    state_dict: dict[str, Any],
    *,
    checkpoint_id: str | os.PathLike[str] | None = None,
    storage_reader: VolumeReader | None = None,
    planner: Any = None,
    process_group: Any = None,
    **options: Any,
) -> None:
    """Load a checkpoint into `state_dict`, in place and together with all ranks, on any number of them.

    Arguments as of `torch.distributed.checkpoint.load`. Raises CheckpointMissing, or CheckpointDamaged,
    which names the file.
    """
    if storage_reader is None:
        if checkpoint_id is None:
            raise ValueError("either checkpoint_id or storage_reader must be given")
        storage_reader = VolumeReader(checkpoint_id)
    try:
        state_dict_loader.load(
            state_dict,
            checkpoint_id=checkpoint_id,
            storage_reader=storage_reader,
            planner=planner,
            process_group=process_group,
            **options,
        )
    except CheckpointException as error:
        if storage_reader.metadata_error is not None:
            raise storage_reader.metadata_error from error
        raise _as_exception(error, f"{storage_reader.checkpoint_id} is not loaded") from error


def _writer(checkpoint_id: str | os.PathLike[str] | None, writer: VolumeWriter | None) -> VolumeWriter:
    if writer is not None:
        return writer
    if checkpoint_id is None:
        raise ValueError("either checkpoint_id or storage_writer must be given")
    return VolumeWriter(Path(checkpoint_id))


def _as_exception(error: CheckpointException, what: str) -> CheckpointError:
    """The error of this library that a rank raised, else one that holds those of all ranks."""
    failures = {rank: failure[0] for rank, failure in error.failures.items()}
    for failure in failures.values():
        if isinstance(failure, CheckpointError):
            return failure
    said = [
        f"rank {rank}: {''.join(format_exception_only(failure)).strip()}"
        for rank, failure in sorted(failures.items())
    ]
    return CheckpointFailed(f"{what}: {'; '.join(said)}", failures)
