"""A store that hangs: what still works, what fails in bounded time, and that nothing is lost.

The store is another volfs mount whose daemon is stopped by SIGSTOP: its requests wait in the kernel, as those
to a file server that is away. `VOLFS_HANG_S` says for how long (8 s otherwise; the full proof takes 60).
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.mount.volume import PLAIN, Volume, eventually

_HANG_S = float(os.environ.get("VOLFS_HANG_S", "8"))
_STORE_TIMEOUT_S = 3.0
_RACY_S = 2.5
_OPTIONS = (
    *("--store-timeout", f"{_STORE_TIMEOUT_S}", "--stale-if-error", "300"),
    *("--freshness", "0", "--drain-timeout", "3"),
)

#: "Under a second" is the promise; what the machine adds to it when it is busy is not the daemon's.
_AT_ONCE_S = 1.0

pytestmark = [
    pytest.mark.skipif(PLAIN, reason="a plain directory has no daemon to stop"),
    pytest.mark.timeout(120 + 2 * _HANG_S),
]


@dataclass
class Stack:
    """A mount whose store is another mount, which can be stopped."""

    outer: Volume
    inner: Volume
    failed: list[str] = field(default_factory=list)

    def stop(self) -> None:
        os.kill(self.inner.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.inner.pid, signal.SIGCONT)

    def within(self, limit_s: float, what: str, call: Callable[[], Any]) -> Any:
        """Call, and note if it took longer than it may."""
        began = time.monotonic()
        try:
            return call()
        finally:
            took = time.monotonic() - began
            if took > limit_s:
                self.failed.append(f"{what} took {took:.2f} s")


@pytest.fixture
def stack(make_volume: Callable[..., Volume]) -> Iterator[Stack]:
    """Both mounts; the store goes on and both go away at the end."""
    inner = make_volume().mount()
    (inner.mountpoint / "data").mkdir()
    outer = Volume(
        inner.base,
        _OPTIONS,
        "outer",
        inner.mountpoint / "data",
    )
    made = Stack(outer.mount(), inner)
    yield made
    made.go_on()
    outer.unmount()
    assert outer.discard() == []


def test_a_hanging_store(stack: Stack) -> None:
    """B3: cached reads, `df`, the root and the status answer at once, the rest fails in bounded time; what
    is staged is committed by itself when the store is back.
    """
    mount, store = stack.outer.mountpoint, stack.inner.backing / "data"
    data = os.urandom(3 << 20)
    (mount / "cached").write_bytes(data)
    _keep(stack.outer, "cached", data)
    dirty = os.open(mount / "dirty", os.O_RDWR | os.O_CREAT)
    os.write(dirty, b"written before")
    # In a directory of their own: the kernel sends the lookups of one directory one after the other.
    other = mount / "other"
    other.mkdir()
    Path("/proc/sys/vm/drop_caches").write_text("2")  # what the kernel forgets, the mount does not
    stack.stop()
    threads = [_Background(lambda: os.close(dirty))]
    threads += [_Background(lambda k=k: os.stat(other / f"unknown{k}")) for k in range(100)]
    threads += [_Background(lambda k=k: (other / f"new{k}").write_bytes(b"new")) for k in range(5)]
    until = time.monotonic() + _HANG_S
    rounds = 0
    while time.monotonic() < until:
        rounds += 1
        stack.within(_AT_ONCE_S, "statvfs", lambda: os.statvfs(mount))
        stack.within(_AT_ONCE_S, "stat of the root", lambda: os.stat(mount))
        stack.within(_AT_ONCE_S, "status", stack.outer.status)
        assert stack.within(_AT_ONCE_S, "a cached read", (mount / "cached").read_bytes) == data
        time.sleep(0.2)  # a pace, not a wait: the mount is watched while it hangs
    for thread in threads:
        thread.thread.join(3 * _STORE_TIMEOUT_S + 5)
    assert [thread for thread in threads if thread.thread.is_alive()] == []
    assert {thread.errno for thread in threads} == {errno.ETIMEDOUT}
    status = stack.outer.status()
    assert status["commit"]["waiting"] == 1
    assert status["store_away"] and status["stale_answers"] >= rounds
    assert "does not answer" in stack.outer.volfs("status", str(mount)).stdout
    stack.go_on()
    eventually(lambda: stack.outer.status()["commit"]["waiting"] == 0, 35, "all is committed by itself")
    assert not stack.outer.status()["store_away"]
    assert (store / "dirty").read_bytes() == b"written before"
    assert (mount / "dirty").read_bytes() == b"written before"
    assert not (other / "unknown0").exists()
    (mount / "after").write_bytes(b"after")
    assert (store / "after").read_bytes() == b"after"
    assert stack.failed == []
    assert rounds > 3


def test_a_mount_over_a_hanging_store_ends(stack: Stack) -> None:
    """SIGTERM while the store hangs: it ends within the drain timeout, and the next mount has all bytes."""
    mount, store = stack.outer.mountpoint, stack.inner.backing / "data"
    dirty = os.open(mount / "dirty", os.O_RDWR | os.O_CREAT)
    os.write(dirty, b"bytes")
    stack.stop()
    closing = _Background(lambda: os.close(dirty))
    closing.thread.join(3 * _STORE_TIMEOUT_S + 5)
    assert closing.errno == errno.ETIMEDOUT
    began = time.monotonic()
    os.kill(stack.outer.pid, signal.SIGTERM)
    eventually(lambda: not stack.outer.is_running(), 18, "the daemon ends though its store hangs")
    assert time.monotonic() - began < 35
    stack.go_on()
    stack.outer.mount()
    eventually(lambda: (store / "dirty").exists(), 20, "the next mount commits it")
    assert (store / "dirty").read_bytes() == b"bytes"


class _Background:
    """A call in a thread of its own, and the errno that it ended with."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.errno = 0
        self._call = call
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._call()
        except OSError as error:
            self.errno = error.errno or -1


def _keep(volume: Volume, name: str, data: bytes) -> None:
    """Bring the file into the cache, which takes nothing that may still change within a tick of the clock."""
    path = volume.mountpoint / name
    eventually(lambda: time.time() - path.stat().st_ctime > _RACY_S, 10, "the file is old enough", every=0.1)
    assert path.read_bytes() == data
    eventually(lambda: volume.status()["cache"]["used_bytes"] >= len(data), 10, "the file is in the cache")
