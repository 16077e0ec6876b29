"""The client: what it says of plain paths, and that it is as light as it says."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import volfs_client


def test_a_plain_path_is_not_volfs(tmp_path: Path) -> None:
    """A path on another file system: no, and no status."""
    assert volfs_client.is_volfs(tmp_path) is False
    assert volfs_client.is_volfs(os.fsencode(tmp_path)) is False
    assert volfs_client.is_volfs("/proc") is False
    with pytest.raises(ValueError, match="is not on a volfs mount"):
        volfs_client.status(tmp_path)


def test_a_missing_path_is_an_error(tmp_path: Path) -> None:
    """A path that is not there is neither."""
    for ask in (volfs_client.is_volfs, volfs_client.status):
        with pytest.raises(FileNotFoundError):
            ask(tmp_path / "missing")


def test_a_dead_mount_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """C28: ENOTCONN is passed on: a dead mount must not be taken for a plain directory."""

    def dead(path: object, name: str) -> bytes:
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

    monkeypatch.setattr(os, "getxattr", dead)
    for ask in (volfs_client.is_volfs, volfs_client.status):
        with pytest.raises(OSError) as caught:
            ask("/mnt")
        assert caught.value.errno == errno.ENOTCONN


def test_status_is_the_mounts_own_document(monkeypatch: pytest.MonkeyPatch) -> None:
    """The document is handed over as it is; what is no document is refused."""
    answer = {"user.volfs.status": json.dumps({"pid": 7}).encode()}
    monkeypatch.setattr(os, "getxattr", lambda path, name: answer[name])

    assert volfs_client.is_volfs("/mnt") is True
    assert volfs_client.status("/mnt") == {"pid": 7}
    answer["user.volfs.status"] = b"[]"
    with pytest.raises(ValueError, match="not a status document"):
        volfs_client.status("/mnt")


def test_imports_nothing_but_the_standard_library() -> None:
    """C29: Importing the client loads neither the daemon nor any other distribution."""
    code = (
        "import sys, volfs_client;"
        "print(sorted({name.partition('.')[0] for name in sys.modules} - sys.stdlib_module_names))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-P", "-c", code], env={"PYTHONPATH": _source()}, capture_output=True
    )

    assert done.stdout.decode().strip() == "['__main__', 'volfs_client']", done.stderr


def _source() -> str:
    assert volfs_client.__file__ is not None
    return str(Path(volfs_client.__file__).parents[1])
