"""`make demo`: two mounts of one directory, as two nodes have them, and what each promise means there.

Every step says what it proves, and the first one that does not hold ends the
demo with the reason and a non-zero code. Whatever happens, nothing stays mounted.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from volfs.kernel import mounts

__all__ = ["main"]

_MIB = 1 << 20
#: Without a new open a change is seen by notification: at once, but not before the daemon was scheduled.
_WINDOW_S = 5.0


class Failed(Exception):
    """A step did not show what it should."""


def volfs(*words: str | Path) -> str:
    """Run the command line; its output."""
    command = [sys.executable, "-P", "-m", "volfs", *map(str, words)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    if done.returncode != 0:
        raise Failed(f"volfs {words[0]} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def status(mount: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(volfs("status", mount, "--json"))
    return document


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise Failed(otherwise)


def soon(holds: Callable[[], bool], otherwise: str) -> float:
    """Wait until it holds, within the window; how long that took."""
    began, pause = time.monotonic(), threading.Event()
    while not holds():
        if time.monotonic() - began > _WINDOW_S:
            raise Failed(f"{otherwise} within {_WINDOW_S:.0f} s")
        pause.wait(0.01)
    return time.monotonic() - began


class Demo:
    """The directories, the two mounts, and the steps in order."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.backing = base / "backing"
        self.one = base / "node-1"
        self.two = base / "node-2"
        for path in (self.backing, self.one, self.two):
            path.mkdir()

    def mount_twice(self) -> str:
        """Two mounts of one directory answer"""
        volfs("mount", self.backing, self.one, "--cache-dir", self.base / "cache-1")
        volfs("mount", self.backing, self.two, "--cache-dir", self.base / "cache-2", "--cache", "on")
        modes = [
            "cache on" if status(mount)["mode"]["cache"] else "no cache" for mount in (self.one, self.two)
        ]
        expect(modes == ["no cache", "cache on"], f"the modes are {modes}")
        return f"{self.one.name} reads straight from the local disk, {self.two.name} keeps a block cache"

    def write_appears(self) -> str:
        """What one node wrote and closed, the other reads at its next open"""
        (self.one / "letter").write_text("from node 1")
        seen = (self.two / "letter").read_text()
        expect(seen == "from node 1", f"node 2 read {seen!r}")
        (self.two / "letter").write_text("answered by node 2")
        seen = (self.one / "letter").read_text()
        expect(seen == "answered by node 2", f"node 1 read {seen!r}")
        plain = (self.backing / "letter").read_text()
        expect(plain == "answered by node 2", f"the backing directory holds {plain!r}")
        return "both ways, and the backing directory holds the plain file"

    def outside_edit_appears(self) -> str:
        """An edit by hand in the backing directory shows on both nodes, with no refresh"""
        for mount in (self.one, self.two):
            (mount / "letter").read_text()
        (self.backing / "letter").write_text("edited by hand!!!!")  # the same size as before
        for mount in (self.one, self.two):
            seen = (mount / "letter").read_text()
            expect(
                seen == "edited by hand!!!!", f"{mount.name} read {seen!r} on a path that it had read before"
            )
        (self.backing / "new").touch()
        for mount in (self.one, self.two):
            expect((mount / "new").exists(), f"{mount.name} does not find a new name")
        return "on a path that was read before, with the same size, and under a new name"

    def open_file_follows(self) -> str:
        """A file that is open elsewhere grows under its reader"""
        with (self.two / "letter").open() as file:
            file.read()
            with (self.backing / "letter").open("a") as outside:
                outside.write(" and more")
            took = soon(lambda: file.read() == " and more", "the open handle did not see the new bytes")
        return f"after {took:.2f} s, with no new open"

    def replacement_is_whole(self) -> str:
        """A reader never sees a mix of two versions"""
        (self.one / "weights").write_bytes(b"a" * (8 * _MIB))
        with (self.two / "weights").open("rb") as reader:
            first = reader.read(_MIB)
            (self.one / "weights.new").write_bytes(b"b" * (8 * _MIB))
            (self.one / "weights.new").rename(self.one / "weights")
            rest = reader.read()
        again = (self.two / "weights").read_bytes()
        expect(set(first + rest) == {ord("a")}, "the open handle mixed two versions")
        expect(len(first + rest) == 8 * _MIB, "the open handle lost bytes")
        expect(again == b"b" * (8 * _MIB), "a new open did not read the new version")
        return "the open handle kept the old 8 MiB whole, the next open read the new ones"

    def cache_serves(self) -> str:
        """A second read comes from the cache, not from the backing directory"""
        content = os.urandom(16 * _MIB)
        (self.backing / "data").write_bytes(content)
        # A file that changed within the clock's last tick may change again unseen; that is not kept.
        os.utime(self.backing / "data", (1_700_000_000, 1_700_000_000))
        # The first read fetches; the next one may already be served, and soon one must be.
        fetched = self._read(content)[0]
        expect(fetched >= len(content), f"the first read fetched {fetched} bytes only")
        soon(lambda: self._read(content)[0] == 0, "reads still went to the backing directory")
        fetched, hits = self._read(content)
        expect(fetched == 0, f"{fetched} bytes came from the backing directory again")
        expect(hits > 0, "the kernel answered by itself: this proved nothing")
        return f"16 MiB, the kernel's own pages dropped first: 0 bytes from the backing, {hits} blocks hit"

    def _read(self, content: bytes) -> tuple[int, int]:
        """Read the file once more; the bytes that came from the backing, and the blocks from the cache."""
        before = status(self.two)
        with (self.two / "data").open("rb") as file:
            # Else the kernel would answer from its own pages.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            expect(file.read() == content, "the bytes differ")
        after = status(self.two)
        fetched = int(after["store_read_bytes"]) - int(before["store_read_bytes"])
        return fetched, int(after["cache"]["hits"]) - int(before["cache"]["hits"])

    def unmount_clean(self) -> str:
        """Unmounting leaves nothing behind"""
        for mount in (self.one, self.two):
            volfs("umount", mount)
            expect(mounts.find(mount) is None, f"{mount.name} is still mounted")
            expect(list(mount.iterdir()) == [], f"{mount.name} is not empty underneath")
        left = [str(path) for path in (self.backing / ".volfs").rglob("*") if not path.is_dir()]
        expect(left == [], f"staged files stayed: {left}")
        names = sorted(path.name for path in self.backing.iterdir() if path.name != ".volfs")
        expect(names == ["data", "letter", "new", "weights"], f"the backing directory holds {names}")
        return "exit code 0, no mount, no staged file; the backing directory holds the four files"


def main() -> int:
    base = Path(tempfile.mkdtemp(prefix="volfs-demo-")).resolve()
    demo = Demo(base)
    steps = [
        demo.mount_twice,
        demo.write_appears,
        demo.outside_edit_appears,
        demo.open_file_follows,
        demo.replacement_is_whole,
        demo.cache_serves,
        demo.unmount_clean,
    ]
    try:
        for number, step in enumerate(steps, 1):
            print(f"{number}. {step.__doc__}", flush=True)
            print(f"   ok: {step()}", flush=True)
    except (Failed, OSError, subprocess.TimeoutExpired) as error:
        print(f"   FAILED: {error}", file=sys.stderr)
        for log in sorted(base.glob("cache-*/volfs.log")):
            tail = log.read_text(errors="replace").splitlines()[-20:]
            print(f"--- {log.parent.name}/{log.name}", *tail, sep="\n", file=sys.stderr)
        return 1
    finally:
        for mount in (demo.one, demo.two):
            while mounts.find(mount) is not None:
                mounts.unmount(mount, lazy=True)
        shutil.rmtree(base, ignore_errors=True)
    print("all shown")
    return 0


if __name__ == "__main__":
    sys.exit(main())
