"""The daemon runs out of descriptors: who opens is told so, and nobody else suffers."""

from __future__ import annotations

import errno
import math
import os
import resource
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.fs.remote import READER, remote
from tests.mount.volume import REPOSITORY
from volfs.errors import StoreError, from_os_error
from volfs.fs import descriptors
from volfs.fs.tree import ROOT

_MORE = 200


@pytest.fixture
def few() -> Iterator[None]:
    """This process may have so many more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + _MORE, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def _for_ever(do: Callable[[], Awaitable[None]]) -> None:
    while True:
        await do()


async def test_opens_leave_some_for_others(
    tmp_path: Path, few: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B5: too many open files are ENFILE for the next open; all else goes on, and so do opens later."""
    monkeypatch.setattr(descriptors, "_said_s", -math.inf)
    async with remote(tmp_path) as mount:
        handles: list[int] = []

        async def make() -> None:
            name = b"f%d" % len(handles)
            _, opened = await mount.vfs.create(ROOT, name, 0o644, os.O_WRONLY, READER)
            handles.append(opened.handle)
            await mount.vfs.write(opened.handle, 0, b"bytes")

        while len(handles) < _MORE // 4:
            await make()
        with capture_logs() as said, pytest.raises(StoreError) as refused:
            await _for_ever(make)
        assert [line["event"] for line in said if line["log_level"] == "error"] == [str(refused.value)]
        assert refused.value.errno == errno.ENFILE
        assert "ulimit" in str(refused.value)
        await mount.vfs.mkdir(ROOT, b"d", 0o755, READER)
        (mount.root / "theirs").write_bytes(b"theirs")
        number = await mount.number("theirs")
        with capture_logs() as said, pytest.raises(StoreError):
            await mount.vfs.open(number, os.O_RDONLY, READER)
        assert not said, "it was said just now"
        await mount.vfs.fsync(handles[0])
        for handle in handles:
            await mount.vfs.flush(handle)
            await mount.vfs.release(handle)
        assert (mount.root / f"f{len(handles) - 1}").read_bytes() == b"bytes"
        assert await mount.read("theirs") == b"theirs"


def test_the_callers_table_is_not_blamed() -> None:
    """EMFILE of a call that the daemon makes is not the caller's."""
    assert from_os_error(OSError(errno.EMFILE, "Too many open files")).errno == errno.ENFILE


def test_as_many_as_there_are() -> None:
    """The limit is raised to the hard one, and beyond where that is permitted."""
    program = (
        "import resource; from volfs.fs.descriptors import raise_limit\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 5000)); raise_limit()\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    soft, hard = map(int, done.stdout.split())
    assert soft == hard
    assert hard in (5000, int(Path("/proc/sys/fs/nr_open").read_text()))  # root may not, in a container
