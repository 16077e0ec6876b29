"""`volfs cp`: what becomes what, what it says, and how it ends. No mount is needed."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from volfs.cli import main


def run(*arguments: str | Path) -> Result:
    """The verb, in this process."""
    return CliRunner().invoke(main, ["cp", *map(str, arguments)])


def tree(root: Path) -> dict[str, bytes]:
    """The files below a directory."""
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory to copy."""
    (tmp_path / "src/deep").mkdir(parents=True)
    (tmp_path / "src/one").write_bytes(b"1")
    (tmp_path / "src/deep/two").write_bytes(b"22")
    return tmp_path / "src"


@pytest.mark.parametrize("there", [False, True])
def test_what_becomes_what(tmp_path: Path, source: Path, there: bool) -> None:
    """SRC becomes DST/SRC and SRC/ becomes DST, whether DST is there or not; so the same call goes on."""
    target = tmp_path / "dst"
    if there:
        target.mkdir()
    for wanted in (2, 0):
        done = run(source, target, "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["files"] == wanted
    assert tree(target) == {"src/one": b"1", "src/deep/two": b"22"}
    run(f"{source}/", target)
    assert tree(target) == {"src/one": b"1", "src/deep/two": b"22", "one": b"1", "deep/two": b"22"}


def test_files_to_names_and_into_directories(tmp_path: Path, source: Path) -> None:
    """One file gets the name given, unless that is a directory or has a slash; several go into DST."""
    run(source / "one", tmp_path / "name")
    assert (tmp_path / "name").read_bytes() == b"1"
    run(source / "one", f"{tmp_path}/into/")
    run(source / "one", source / "deep/two", tmp_path / "into")
    assert tree(tmp_path / "into") == {"one": b"1", "two": b"22"}
    run(source / "one", source)
    done = run(source / "one", f"{source}/deep/../one", tmp_path / "into")
    assert done.exit_code == 2
    assert "would both become" in done.stderr


def test_what_is_said(tmp_path: Path, source: Path) -> None:
    """Counts for people and programs; failures are named, and the exit code says that there were some."""
    done = run(f"{source}/", tmp_path / "dst")
    assert done.stdout.startswith("copied: 2 files, 3 B in ")
    os.mkfifo(source / "pipe")
    done = run(f"{source}/", tmp_path / "dst")
    assert done.exit_code == 1
    assert f"{source}/pipe: it is a named pipe; only files" in done.stderr
    assert "there already: 2 files, 3 B; failed: 1" in done.stdout
    done = run(f"{source}/", tmp_path / "dst", "--json")
    assert [Path(f["path"]).name for f in json.loads(done.stdout)["failures"]] == ["pipe"]
    (source / "one").write_bytes(b"changed")
    run(f"{source}/", tmp_path / "dst", "--overwrite", "never")
    assert (tmp_path / "dst/one").read_bytes() == b"1"


def test_what_cannot_be_is_one_line(tmp_path: Path, source: Path) -> None:
    """A missing source, a target in its source, one path only: a line that says so, and nothing is made."""
    for arguments, code, text in (
        ((tmp_path / "none", tmp_path / "dst"), 1, "none: No such file"),
        ((source, source / "deep"), 1, "cannot be put into what it is of"),
        ((source,), 2, "where to"),
    ):
        done = run(*arguments)
        assert (done.exit_code, len(done.stderr.splitlines())) == (code, 1), done.output
        assert text in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["src"]


def test_ctrl_c_and_no_client(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted: 130 and how to go on. Without the client's distribution: what to install."""
    import volfs_client.copying

    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(volfs_client.copying, "copy_pairs", interrupted)
    done = run(source, tmp_path / "dst")
    assert (done.exit_code, "goes on from there" in done.stderr) == (130, True)
    monkeypatch.setitem(sys.modules, "volfs_client.copying", None)
    done = run(source, tmp_path / "dst")
    assert (done.exit_code, "pip install volfs-client" in done.stderr) == (2, True)
