"""What a waiting thread is about to do: opens that create the name that is looked up, and nothing else."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from volfs.kernel.intent import creates

CREATE = os.O_WRONLY | os.O_CREAT


@pytest.fixture
def waiting(tmp_path: Path) -> Iterator[Callable[[str, int], int]]:
    """A thread that waits in an open of this path: there is a FIFO, which nobody reads. Its number."""
    threads: list[tuple[threading.Thread, Path]] = []

    def make(path: str, flags: int) -> int:
        fifo = tmp_path / path
        fifo.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(fifo)
        thread = threading.Thread(target=lambda: os.close(os.open(fifo, flags)))
        thread.start()
        threads.append((thread, fifo))
        assert thread.native_id is not None
        deadline = time.monotonic() + 10
        while not Path(f"/proc/self/task/{thread.native_id}/syscall").read_text().startswith(("257 ", "56 ")):
            assert time.monotonic() < deadline
        return thread.native_id

    yield make
    for thread, fifo in threads:
        os.close(os.open(fifo, os.O_RDONLY | os.O_NONBLOCK))
        thread.join(10)


@pytest.mark.parametrize(
    ("path", "flags", "name", "expected"),
    [
        ("f", CREATE, b"f", True),
        ("d/f", CREATE | os.O_TRUNC, b"f", True),
        ("f", os.O_WRONLY, b"f", False),
        ("d/f", CREATE, b"d", False),
        ("d/f", CREATE, b"g", False),
        ("f/f", CREATE, b"f", False),
        ("longer", CREATE, b"long", False),
    ],
)
def test_opens(
    waiting: Callable[[str, int], int], path: str, flags: int, name: bytes, expected: bool
) -> None:
    """R1: only who creates the very name may be told that it is free; a directory on the way may be meant."""
    assert creates(waiting(path, flags), name) is expected


def test_who_does_not_wait_is_not_known() -> None:
    """A thread in another call, one that is gone, one of another namespace."""
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    assert thread.native_id is not None
    for number in (threading.get_native_id(), thread.native_id, 0, -1):
        assert not creates(number, b"f")
