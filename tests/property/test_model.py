"""Lists of operations by hypothesis against a mount and the reference model.

`VOLFS_MODEL_OPERATIONS` says how many operations at least (2,000 otherwise); with it the lists are random,
without
it they are the same in each run. A list that failed, shrunk, stays below as a test with a name.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.conftest import Area
from tests.model import Path
from tests.mount.volume import Volume
from tests.property.operations import Fill, World

_AT_LEAST = int(os.environ.get("VOLFS_MODEL_OPERATIONS", "2000"))
_LIST_LENGTH = (28, 45)

Operation = tuple[str, tuple[object, ...]]

_path: st.SearchStrategy[Path] = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map(tuple)
_size = st.sampled_from([0, 1, 10, 4095, 4096, 5000, 70_000, 262_144, 300_000])
_data = st.builds(Fill, st.integers(1, 255), st.sampled_from([1, 7, 4096, 5000, 280_000]))
_how = st.sampled_from(["replace", "create", "log", "update", "append", "read"])
_edit = st.sampled_from(["replace", "rewrite", "append", "delete", "mkdir"])
_slot = st.integers(0, 2)


def _operation(name: str, *arguments: st.SearchStrategy[object]) -> st.SearchStrategy[Operation]:
    return st.tuples(st.just(name), st.tuples(*arguments))


_operations: st.SearchStrategy[Operation] = st.one_of(
    _operation("nothing"),
    _operation("write_file", _path, st.sampled_from(["replace", "create", "log", "update"]), _size, _data),
    _operation("write_file", _path, st.sampled_from(["replace", "create", "log", "update"]), _size, _data),
    _operation("mkdir", _path),
    _operation("open", _slot, _path, _how),
    _operation("write", _slot, _size, _data),
    _operation("write", _slot, _size, _data),
    _operation("resize", _slot, _size),
    _operation("fsync", _slot),
    _operation("close", _slot),
    _operation("truncate", _path, _size),
    _operation("symlink", _path),
    _operation("unlink", _path),
    _operation("rmdir", _path),
    _operation("rename", _path, _path),
    _operation("rename", _path, _path),
    _operation("exchange", _path, _path),
    _operation("link", _path, _path),
    _operation("chmod", _path, st.sampled_from([0o600, 0o644, 0o755, 0o444])),
    _operation("commit"),
    _operation("by_hand", _path, _edit, _data),
    _operation("by_mount", _path, _edit, _data),
    _operation("read_by_mount", _path),
)

_numbers = itertools.count(1)


def run(volume: Volume, operations: list[Operation]) -> int:
    """A fresh world in a directory of its own, the operations, the comparison; how many had been done."""
    area = Area(volume, f"model{next(_numbers)}")
    area.here.mkdir()
    world = World(area)
    try:
        for name, arguments in operations:
            getattr(world, name)(*arguments)
        world.check_all()
    finally:
        for fd, _ in world.handles.values():
            os.close(fd)
        world.handles.clear()
    return sum(name != "nothing" for name, _ in operations)


@pytest.mark.timeout(max(240, _AT_LEAST // 8))  # a failure needs time to shrink
@pytest.mark.modes("local", "cached", "background")
def test_any_list_of_operations(volume: Volume, guarded: None) -> None:
    """A mount does what the model does, whatever the order: at least 2,000 operations."""
    count = 0

    @settings(
        max_examples=_AT_LEAST // 25 + 1,
        deadline=None,
        database=None,
        derandomize="VOLFS_MODEL_OPERATIONS" not in os.environ,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )
    @given(st.lists(_operations, min_size=_LIST_LENGTH[0], max_size=_LIST_LENGTH[1]))
    def check(operations: list[Operation]) -> None:
        nonlocal count
        count += run(volume, operations)

    volume.others or volume.second()
    check()

    assert count >= _AT_LEAST


def replay(*operations: Operation) -> Callable[[Volume, None], None]:
    """A named test out of a list that once failed."""

    @pytest.mark.modes("local", "cached", "background")
    def test(volume: Volume, guarded: None) -> None:
        run(volume, list(operations))

    return test
