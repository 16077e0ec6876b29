"""Locks: flock, fcntl and open-file-description locks hold between processes of one mount (W10)."""

from __future__ import annotations

import errno
import fcntl
import os
import struct

import pytest

from tests.conftest import Area
from tests.mount.calls import in_process

pytestmark = pytest.mark.modes("local", "cached")

_COUNT = """
import fcntl, sys
here, kind = sys.argv[1:]
for _ in range(40):
    with open(here + "/lock", "a") as lock:
        (fcntl.flock if kind == "flock" else fcntl.lockf)(lock, fcntl.LOCK_EX)
        with open(here + "/counter", "a+") as counter:
            counter.seek(0)
            value = int(counter.read() or 0)
            counter.truncate(0)
            counter.write(str(value + 1))
"""
_F_OFD_SETLK = 37


@pytest.mark.parametrize("kind", ["flock", "fcntl"])
def test_counter_under_a_lock(area: Area, kind: str) -> None:
    """Six processes count to 240 in a file under a lock: no update is lost."""
    workers = [in_process(_COUNT, area.here, kind) for _ in range(6)]
    for worker in workers:
        worker.communicate()
        assert worker.returncode == 0
    assert (area.here / "counter").read_text() == "240"


def test_lock_that_is_held_is_refused(area: Area) -> None:
    """A non-blocking attempt from another description or process answers EWOULDBLOCK or EACCES, and none
    leaks.
    """
    path = area.here / "l"
    with path.open("w") as one, path.open("w") as two:
        fcntl.flock(one, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(one, fcntl.LOCK_UN)
        fcntl.flock(two, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with path.open("r+") as one:
        fcntl.lockf(one, fcntl.LOCK_EX, 10, 5)
        source = (
            "import fcntl,sys\n"
            "f=open(sys.argv[1],'r+'); fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB,10,50)\n"
            "try: fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB,10,10)\n"
            "except OSError as e: print(e.errno)"
        )
        out, _ = in_process(source, path).communicate()
        assert int(out) in (errno.EACCES, errno.EAGAIN)


def test_open_file_description_locks(area: Area) -> None:
    """OFD locks conflict between two descriptions of one process."""
    request = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    with (area.here / "o").open("w") as one, (area.here / "o").open("w") as two:
        fcntl.fcntl(one, _F_OFD_SETLK, request)
        with pytest.raises(OSError) as caught:
            fcntl.fcntl(two, _F_OFD_SETLK, request)
        assert caught.value.errno in (errno.EAGAIN, errno.EACCES)
