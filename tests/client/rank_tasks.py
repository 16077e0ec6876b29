"""What ranks do in tests of checkpoints: train a little, save, restore, fail where they are told to.

`world`: the first so many ranks take part. A digest is a hash of every full tensor of model and optimizer,
so that states on different numbers of ranks can be compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from volfs_client import CheckpointManager, VolumeWriter
from volfs_client.checkpoint import writer

from tests.client.failing import FailingFiles

__all__ = [
    "KillingFiles",
    "Trained",
    "digest",
    "fail",
    "full",
    "meet",
    "restore",
    "save",
    "save_in_background",
    "steps",
]

#: By the number of ranks: a mesh for training, and a group for saving, which for all ranks is the library's.
_meshes: dict[int, DeviceMesh] = {}
_groups: dict[int, Any] = {}


def meet() -> None:
    """Make all groups, on all ranks together."""
    for world in range(1, dist.get_world_size() + 1):
        members = list(range(world))
        training, saving = dist.new_group(members), dist.new_group(members)
        if dist.get_rank() < world:
            _meshes[world] = DeviceMesh.from_group(training, "cpu")
            _groups[world] = saving if world < dist.get_world_size() else None


class Trained:
    """A small model, sharded over `world` ranks, and its optimizer, as a Stateful."""

    def __init__(self, world: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(16, 33), torch.nn.ReLU(), torch.nn.Linear(33, 4))
        fully_shard(self.model, mesh=_meshes[world])
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        for _ in range(2):
            self.model(torch.randn(8, 16)).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )

    def digest(self) -> str:
        return digest(self.state_dict())


def digest(state: dict[str, Any]) -> str:
    """A hash of every full tensor and its name; on all ranks that share the tensors, together."""
    found = hashlib.sha256()
    for name, tensor in sorted(_tensors("", state)):
        found.update(name.encode())
        found.update(full(tensor).contiguous().numpy().tobytes())
    return found.hexdigest()


def _tensors(prefix: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, dict):
        for key in value:
            yield from _tensors(f"{prefix}.{key}", value[key])
    elif isinstance(value, torch.Tensor):
        yield prefix, value


def full(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of a tensor of which each rank has a part."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _manager(root: Path, world: int, **options: Any) -> CheckpointManager:
    return CheckpointManager(root, process_group=_groups[world], **options)


def save(root: Path, world: int, step: int, **options: Any) -> str:
    """Train, save, wait for each other; the digest of what was saved."""
    trained = Trained(world, seed=step)
    with _manager(root, world, **options) as manager:
        manager.save(step, {"trained": trained, "step": step})
    return trained.digest()


def save_in_background(root: Path, world: int, steps: list[int], **options: Any) -> tuple[str, list[bool]]:
    """Save steps one after the other while training goes on with collectives of its own; the last digest,
    and whether a save was still in flight when the caller had it back.
    """
    inflight = []
    with _manager(root, world, **options) as manager:
        for step in steps:
            trained = Trained(world, seed=step)
            digest = trained.digest()
            future = manager.async_save(step, {"trained": trained, "step": step})
            inflight.append(not future.done())
            Trained(world, seed=0)
            dist.barrier(_meshes[world].get_group())
    return digest, inflight


def restore(root: Path, world: int, step: int | None = None) -> tuple[int, str]:
    """Restore into a model of other weights, on `world` ranks; the step in the checkpoint, and the digest."""
    trained = Trained(world, seed=99)
    state: dict[str, Any] = {"trained": trained, "step": 0}
    with _manager(root, world) as manager:
        assert manager.restore(state, step) == state["step"]
    return state["step"], trained.digest()


def steps(root: Path) -> list[int]:
    """The complete steps as this rank's mount shows them."""
    return CheckpointManager(root).steps()


def fail(
    root: Path,
    world: int,
    step: int,
    threads: int,
    failing: FailingFiles | None = None,
    moment: str = "",
    background: Any = None,
) -> str:
    """Save with a file system that fails, or be killed at a moment of the publishing: "" where neither.

    `background`: the mode of an asynchronous save.
    """
    state = {"trained": Trained(world, seed=step), "step": step, **{f"t{i}": torch.ones(9) for i in range(4)}}
    with _files_by(failing), _dying_at(moment):
        manager = _manager(root, world, thread_count=threads, mode=background or "thread")
        if background is None:
            manager.save(step, state)
        else:
            manager.async_save(step, state).result()
    return "saved"


@contextlib.contextmanager
def _files_by(failing: FailingFiles | None) -> Iterator[None]:
    """Data files and metadata are written by this file system, if there is one."""
    if failing is None:
        yield
        return
    made, published = VolumeWriter.__init__, writer.publish_file

    def init(self: VolumeWriter, *arguments: Any, **named: Any) -> None:
        made(self, *arguments, **named)
        self.fs = failing

    def publish(path: Path, write: Callable[[Any], object], token: str) -> None:
        published(path, lambda stream: write(failing.spoiled(stream, path)), token)

    with (
        mock.patch.object(VolumeWriter, "__init__", init),
        mock.patch.object(writer, "publish_file", publish),
    ):
        yield


@contextlib.contextmanager
def _dying_at(moment: str) -> Iterator[None]:
    """SIGKILL before or after the call of `os` that publishes: `before replace`, `after rename`, ..."""
    when, _, name = moment.partition(" ")
    if not name:
        yield
        return
    real = getattr(os, name)

    def dying(*arguments: Any) -> None:
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        real(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(os, name, dying)
    try:
        yield
    finally:
        setattr(os, name, real)


class KillingFiles(FailingFiles):
    """Instead of an error, SIGKILL to a process, by default this one, before the first write; then go on."""

    def __init__(self, name: str, pid: int = 0) -> None:
        super().__init__(name, 0)
        self.pid = pid

    def spoiled(self, stream: Any, path: str | os.PathLike[str]) -> Any:
        if Path(path).name.endswith(self.name):
            os.kill(self.pid or os.getpid(), signal.SIGKILL)
        return stream
