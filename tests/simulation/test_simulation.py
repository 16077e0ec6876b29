"""Random lists of operations and schedules: two hosts, the outside, failures and crashes, one oracle.

`VOLFS_SIMULATION_EXAMPLES` says how many lists; with it they are random, without it the same in each run. A
list
that failed, shrunk, becomes a named test in `test_found`.
"""

from __future__ import annotations

import errno
import os
import shutil
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.simulation.kernel import Path
from tests.simulation.replay import MODES, run
from tests.simulation.world import Operation

_EXAMPLES = int(os.environ.get("VOLFS_SIMULATION_EXAMPLES", "70"))

#: Few, so that operations meet; `e` is not there at first.
_FILES: list[Path] = [("a",), ("d", "a"), ("b",), ("e", "a")]
_DIRECTORIES: list[Path] = [("d",), ("e",)]

#: Mostly one of the two, so that more than one thing happens on a host before the other one meddles.
_host = st.sampled_from([0, 0, 0, 1])
_slot = st.integers(0, 1)
_file = st.sampled_from([*_FILES[:2], *_FILES])
_directory = st.sampled_from(_DIRECTORIES)
_renamed = st.sampled_from([("a",), ("a",), ("b",), ("d", "a"), ("d",), ("e",)])
_how = st.sampled_from(["append", "append", "replace", "create", "edit"])

_failing = st.sampled_from(
    [
        *("stat", "open", "unlink", "rename", "mkdir", "mknod", "upload", "upload.show", "sync_directory"),
        *(
            "reader.read",
            "reader.read_into",
            "reader.stat",
            "reader.copy_to",
            "listxattr",
            "directory.stats",
            "scan",
        ),
    ]
)
_losing = st.sampled_from(["unlink", "rename", "mkdir", "mknod", "upload.show"])
_errno = st.sampled_from([errno.EIO, errno.ENOSPC, errno.EACCES, errno.ESTALE])


def _operation(name: str, *arguments: st.SearchStrategy[object]) -> st.SearchStrategy[Operation]:
    return st.tuples(st.just(name), st.tuples(*arguments))


_calls: st.SearchStrategy[Operation] = st.one_of(
    _operation("save", _host, _file, _how),
    _operation("save", _host, _file, _how),
    _operation("open", _host, _slot, _file, _how),
    _operation("put", _host, _slot, _file, _how),
    _operation("put", _host, _slot, _file, _how),
    _operation("put", _host, _slot, _file, _how),
    _operation("fsync", _host, _slot),
    _operation("close", _host, _slot),
    _operation("read", _host, _file),
    _operation("list", _host, _directory),
    _operation("truncate", _host, _file),
    _operation("unlink", _host, _file),
    _operation("rename", _host, _renamed, _renamed),
    _operation("mkdir", _host, _directory),
    _operation("rmdir", _host, _directory),
    _operation("outside", st.sampled_from(["append", "replace", "delete"]), _file),
    _operation("outside", st.sampled_from(["remove", "mkdir"]), _directory),
    _operation("commit", _host),
    _operation("evict", _host),
    _operation("refresh", _host),
    _operation("wait", st.sampled_from([0.3, 6.0])),
)
_steps: st.SearchStrategy[Operation] = st.one_of(
    _calls,
    _calls,
    st.tuples(st.just("together"), st.lists(_calls, min_size=2, max_size=5).map(tuple)),
    st.tuples(st.just("together"), st.lists(_calls, min_size=2, max_size=5).map(tuple)),
    _operation("fail", _host, _failing, _errno, st.integers(1, 3), st.integers(1, 4), st.just("fail")),
    _operation(
        "fail", _host, st.just("upload"), _errno, st.just(1), st.sampled_from([2, 50]), st.just("fail")
    ),
    _operation("fail", _host, _losing, _errno, st.integers(1, 2), st.just(1), st.just("lose")),
    _operation("crash", _host, st.just(0) | st.integers(1, 16), st.none() | st.integers(0, 8)),
    _operation("crash", _host, st.integers(1, 16), st.none() | st.integers(0, 8)),
    _operation("restart", _host),
    _operation("settle"),
)


@pytest.mark.timeout(max(300, _EXAMPLES))  # a failure needs time to shrink
@pytest.mark.parametrize("mode", MODES)
def test_any_list_of_operations(mode: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No acknowledged record is lost or torn, whatever the order, the schedule and the failures."""

    @settings(
        max_examples=_EXAMPLES,
        deadline=None,
        database=None,
        derandomize="VOLFS_SIMULATION_EXAMPLES" not in os.environ,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(st.random_module(), st.lists(_steps, min_size=5, max_size=14))
    def check(schedule: Any, operations: list[Operation]) -> None:
        base = tmp_path_factory.mktemp("volume")
        run(base, MODES[mode], schedule.seed, operations)
        shutil.rmtree(base)

    check()
