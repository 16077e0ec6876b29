"""Ranks: processes with one gloo process group, which do what a test tells them, one task after the other.

A task is a function of `tests.client.rank_tasks`. Starting torch takes seconds, so a gang is shared by the
tests of a module; after a task that did not end in time it is of no use any more. It ends its processes by
their pids; nothing outlives it.

Protocol: the test writes pickled (task, arguments) to stdin, the rank answers (succeeded, result) on a pipe.
"""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import os
import pickle
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["Died", "Gang"]

_REPOSITORY = Path(__file__).resolve().parents[2]


class Died(Exception):
    """The answer of a rank whose process ended in a task."""


class Gang:
    """See the module. `here`: a directory for the file that the ranks meet in."""

    def __init__(self, world: int, here: Path) -> None:
        self.world = world
        self._patience_s = 20.0
        self._answers: list[Any] = []
        self._ranks: list[subprocess.Popen[bytes]] = []
        store = here / f"store-{time.monotonic_ns()}"
        for rank in range(world):
            reading, writing = os.pipe()
            environment = {
                **os.environ,
                "PYTHONPATH": os.pathsep.join([str(_REPOSITORY / "client/src"), str(_REPOSITORY)]),
                "RANK": str(rank),
                "WORLD_SIZE": str(world),
                "LOCAL_RANK": str(rank),
                "MASTER_ADDR": "127.0.0.1",
                "OMP_NUM_THREADS": "1",
            }
            self._ranks.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.client.gang", str(store), str(writing)],
                    stdin=subprocess.PIPE,
                    cwd=_REPOSITORY,
                    env=environment,
                    pass_fds=[writing],
                )
            )
            os.close(writing)
            self._answers.append(os.fdopen(reading, "rb"))

    def __enter__(self) -> Gang:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for rank, answers in zip(self._ranks, self._answers, strict=True):
            assert rank.stdin is not None
            try:
                rank.stdin.close()
            except BrokenPipeError:  # it died in a task
                pass
            answers.close()
        for rank in self._ranks:
            try:
                rank.wait(self._patience_s)
            except subprocess.TimeoutExpired:
                rank.kill()
                rank.wait()

    def do(self, task: str, *, within: float = 60, each: list[dict[str, Any]], **common: Any) -> list[Any]:
        """Run a task on the first len(each) ranks at once; what each returned, or the exception of it."""
        for rank, arguments in zip(self._ranks, each, strict=False):
            assert rank.stdin is not None
            pickle.dump((task, {**common, **arguments}), rank.stdin)
            rank.stdin.flush()
        end_s = time.monotonic() + within
        return [self._answer(i, max(0.0, end_s - time.monotonic())) for i in range(len(each))]

    def _answer(self, rank: int, within: float) -> Any:
        answers = self._answers[rank]
        if not select.select([answers], [], [], within)[0]:
            for one in self._ranks:
                one.send_signal(signal.SIGUSR1)  # says where it is
            self._patience_s = 1.0
            raise TimeoutError(f"rank {rank} did not answer in time")
        try:
            return pickle.load(answers)[1]
        except EOFError:
            return Died(f"rank {rank}")


def _serve(store: str, descriptor: int) -> None:
    import torch.distributed as dist

    faulthandler.register(signal.SIGUSR1, all_threads=True)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
    )
    tasks = importlib.import_module("tests.client.rank_tasks")
    tasks.meet()
    with os.fdopen(descriptor, "wb") as answers:
        while True:
            try:
                task, arguments = pickle.load(sys.stdin.buffer)
            except EOFError:
                break
            try:
                answer = True, getattr(tasks, task)(**arguments)
            except BaseException as error:
                answer = False, error
            pickle.dump(answer, answers)
            answers.flush()
    for child in multiprocessing.active_children():  # torch's, for saves in another process
        child.terminate()
    os._exit(0)  # peers may be dead: no collective goodbye


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
