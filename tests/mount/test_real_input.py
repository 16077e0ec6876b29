"""Real programs on a real mount: what people do with a disk, compared through a second mount or by their own
checkers.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.conftest import Area
from tests.mount.volume import Volume

pytestmark = [pytest.mark.modes("local", "cached"), pytest.mark.timeout(300)]

_GIT_IDENTITY = {
    "GIT_AUTHOR_NAME": "volfs",
    "GIT_AUTHOR_EMAIL": "volfs@localhost",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_COMMITTER_NAME": "volfs",
    "GIT_COMMITTER_EMAIL": "volfs@localhost",
    "GIT_CONFIG_SYSTEM": os.devnull,
}


def run(*command: str | Path, cwd: Path | None = None, within: float = 200) -> str:
    """Run a program that must succeed; its output is the answer."""
    done = subprocess.run(
        [str(c) for c in command],
        cwd=cwd,
        env={**os.environ, **_GIT_IDENTITY},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def library() -> list[Path]:
    """The top level of the running Python's standard library, without its own tests."""
    found = sorted(Path(sysconfig.get_paths()["stdlib"]).iterdir())
    return [path for path in found if path.name not in ("site-packages", "test")]


def package(directory: Path, modules: int) -> Path:
    """A wheel of a small package, made by hand so that nothing is built or fetched."""
    wheel = directory / "tinything-1.0-py3-none-any.whl"
    files = {f"tinything/m{i}.py": f"VALUE = {i}\n" for i in range(modules)}
    files["tinything/__init__.py"] = "from tinything.m7 import VALUE\n"
    info = "tinything-1.0.dist-info"
    files[f"{info}/METADATA"] = "Metadata-Version: 2.1\nName: tinything\nVersion: 1.0\n"
    files[f"{info}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return wheel


def test_standard_library_tree(area: Area) -> None:
    """cp -a of the standard library; diff -r through a second mount finds nothing, and times and modes are
    kept.
    """
    there = area.there
    (area.here / "lib").mkdir()
    run("cp", "-a", *library(), area.here / "lib")
    area.settle()
    files = 0
    for source in library():
        run("diff", "-r", "--no-dereference", source, there / "lib" / source.name)
    for directory, _, names in os.walk(there / "lib"):
        for name in names:
            files += 1
            seen = os.lstat(os.path.join(directory, name))
            relative = os.path.relpath(os.path.join(directory, name), there / "lib")
            real = os.lstat(os.path.join(sysconfig.get_paths()["stdlib"], relative))
            assert (seen.st_mode, seen.st_mtime_ns) == (real.st_mode, real.st_mtime_ns), relative
    assert files > 1000
    run("rm", "-r", there / "lib")
    assert os.listdir(area.back) == []


def make_history(repository: Path, commits: int) -> None:
    """A repository of many commits, branches and merges, made on a plain disk."""
    repository.mkdir()
    run("git", "init", "-q", "-b", "main", cwd=repository)
    for i in range(commits):
        path = repository / f"d{i % 7}" / f"f{i % 31}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"line {k} of {i}\n" for k in range(i % 50 + 1)))
        (repository / "all.txt").write_text(f"{i}\n" * (i + 1))
        run("git", "add", "-A", cwd=repository)
        run("git", "commit", "-q", "-m", f"change {i}", cwd=repository)
        if i == commits // 2:
            run("git", "branch", "side", cwd=repository)
    (repository / "large.bin").write_bytes(os.urandom(2_000_000))
    run("git", "add", "-A", cwd=repository)
    run("git", "commit", "-q", "-m", "large", cwd=repository)
    run("git", "checkout", "-q", "side", cwd=repository)
    (repository / "side.txt").write_text("side\n")
    run("git", "add", "-A", cwd=repository)
    run("git", "commit", "-q", "-m", "side", cwd=repository)
    run("git", "checkout", "-q", "main", cwd=repository)
    run("git", "merge", "-q", "-m", "merge", "side", cwd=repository)


def test_git_repository(area: Area, tmp_path: Path) -> None:
    """A repository with history: copied in and cloned, status clean, commit, gc and fsck, seen whole by a
    second mount.
    """
    make_history(tmp_path / "origin", 60)
    run("cp", "-a", tmp_path / "origin", area.here / "copied")
    assert run("git", "status", "--porcelain", cwd=area.here / "copied") == ""
    run("git", "clone", "-q", "--no-hardlinks", area.here / "copied", area.here / "cloned")
    run("git", "fsck", "--full", "--strict", cwd=area.here / "cloned")
    for i in range(5):
        (area.here / "cloned" / f"new{i}.txt").write_text(f"new {i}\n")
        run("git", "add", "-A", cwd=area.here / "cloned")
        run("git", "commit", "-q", "-m", f"new {i}", cwd=area.here / "cloned")
    run("git", "gc", "-q", "--prune=now", cwd=area.here / "cloned")
    run("git", "fsck", "--full", "--strict", cwd=area.here / "cloned")
    run("git", "checkout", "-q", "main~20", cwd=area.here / "cloned")
    run("git", "checkout", "-q", "main", cwd=area.here / "cloned")
    run("git", "push", "-q", "origin", "HEAD:refs/heads/pushed", cwd=area.here / "cloned")

    run("git", "-c", "safe.directory=*", "fsck", "--full", cwd=area.there / "cloned")
    assert run("git", "status", "--porcelain", cwd=area.there / "cloned") == ""
    log = run("git", "log", "--oneline", cwd=area.here / "cloned")
    assert len(log.splitlines()) == 60 + 1 + 1 + 1 + 5
    assert run("git", "log", "--oneline", cwd=area.there / "cloned") == log


def test_sqlite_database(area: Area) -> None:
    """A database with a rollback journal: two connections, a rollback, an integrity check here and through a
    second mount.
    """
    path = area.here / "db.sqlite"
    one, two = sqlite3.connect(path, timeout=20), sqlite3.connect(path, timeout=20)
    try:
        assert one.execute("PRAGMA journal_mode=DELETE").fetchone() == ("delete",)
        one.execute("CREATE TABLE t (k INTEGER PRIMARY KEY, v TEXT)")
        for i in range(40):
            with (one, two)[i % 2] as connection:
                connection.executemany("INSERT INTO t (v) VALUES (?)", [(f"{i}-{k}",) for k in range(50)])
        one.execute("BEGIN IMMEDIATE")
        one.execute("DELETE FROM t")
        with closing(sqlite3.connect(path, timeout=0)) as locked_out:
            with pytest.raises(sqlite3.OperationalError):
                locked_out.execute("BEGIN IMMEDIATE")
        one.rollback()
        assert two.execute("SELECT count(*) FROM t").fetchone() == (2000,)
        assert one.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    finally:
        one.close()
        two.close()
    area.settle()
    third = sqlite3.connect(f"file:{area.there / 'db.sqlite'}?mode=ro", uri=True)
    try:
        assert third.execute("SELECT count(*) FROM t").fetchone() == (2000,)
        assert third.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    finally:
        third.close()
    assert os.listdir(area.back) == ["db.sqlite"]


def test_virtual_environment_and_pip(area: Area, tmp_path: Path) -> None:
    """python -m venv, pip install of a small package into it, and an import by its interpreter, here and
    there.
    """
    run(sys.executable, "-m", "venv", area.here / "venv")
    wheel = package(tmp_path, 60)
    run(area.here / "venv/bin/python", "-m", "pip", "install", "--no-index", "-q", wheel)
    source = "import tinything; print(tinything.VALUE, tinything.__file__)"
    out = run(area.here / "venv/bin/python", "-c", source).split()
    assert out[0] == "7"
    assert out[1].startswith(str(area.here))
    area.settle()
    assert run(area.there / "venv/bin/python", "-c", source).split()[0] == "7"
    run(area.here / "venv/bin/python", "-m", "pip", "uninstall", "-q", "-y", "tinything")
    assert not list((area.back / "venv").rglob("tinything"))


def test_rsync_twice(area: Area, tmp_path: Path) -> None:
    """rsync -a into the mount, and again: the second run copies nothing and changes nothing."""
    source = tmp_path / "source"
    source.mkdir()
    run("cp", "-a", *[p for p in library() if p.name in ("email", "json", "asyncio", "os.py")], source)
    os.symlink("os.py", source / "link")
    os.link(source / "os.py", source / "hard.py")
    command = ("rsync", "-aHX", "--itemize-changes", f"{source}/", f"{area.here}/copy/")
    assert "os.py" in run(*command)
    assert run(*command) == ""
    area.settle()
    assert run(*command) == ""
    assert run("rsync", "-aHX", "--itemize-changes", "--checksum", f"{source}/", f"{area.there}/copy/") == ""
    (source / "json/__init__.py").write_text("changed")
    assert [line.split()[1] for line in run(*command).splitlines()] == ["json/__init__.py"]
    assert (area.there / "copy/json/__init__.py").read_text() == "changed"


def test_tar_both_ways(area: Area, tmp_path: Path) -> None:
    """tar out of a plain tree into the mount and back; --compare agrees with what was archived."""
    source = tmp_path / "source"
    source.mkdir()
    run("cp", "-a", *[p for p in library() if p.name in ("unittest", "ctypes", "wsgiref")], source)
    os.symlink("unittest", source / "link")
    os.mkfifo(source / "fifo")
    run("tar", "-C", source, "-cf", area.here / "a.tar", ".")
    (area.here / "x").mkdir()
    run("tar", "-C", area.here / "x", "-xpf", area.here / "a.tar")
    run("tar", "-C", area.here / "x", "--compare", "-f", area.here / "a.tar")
    run("tar", "-C", area.here / "x", "-cf", tmp_path / "b.tar", ".")
    run("tar", "-C", source, "--compare", "-f", tmp_path / "b.tar")
    area.settle()
    run("tar", "-C", area.there / "x", "--compare", "-f", tmp_path / "b.tar")


def test_torch_checkpoints(area: Area) -> None:
    """torch.save on one mount, torch.load on the other, plain and with mmap=True, five steps published by
    rename.
    """
    import torch

    for step in range(5):
        weights = torch.arange(1_000_000, dtype=torch.float32) + step
        torch.save({"step": step, "w": weights}, area.here / "ck.tmp")
        handle = os.open(area.here / "ck.tmp", os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
        os.rename(area.here / "ck.tmp", area.here / "ck.pt")
        for mapped in (False, True):
            loaded = torch.load(area.there / "ck.pt", mmap=mapped)
            assert loaded["step"] == step
            assert torch.equal(loaded["w"], weights)
            assert torch.equal(torch.load(area.here / "ck.pt", mmap=mapped)["w"], weights)
    loaded = torch.load(area.here / "ck.pt", mmap=True)
    torch.save({"step": 9}, area.there / "ck.tmp")
    os.rename(area.there / "ck.tmp", area.there / "ck.pt")
    assert torch.load(area.here / "ck.pt")["step"] == 9
    assert torch.equal(loaded["w"], weights), "a mapped checkpoint changed when it was replaced"


def test_numpy_memory_map(area: Area) -> None:
    """np.memmap in r+ and w+: what was flushed, and what was only dropped, is in the store afterwards."""
    import numpy as np

    array = np.memmap(area.here / "m.npy", dtype=np.int32, mode="w+", shape=(500, 1000))
    array[:] = np.arange(500_000, dtype=np.int32).reshape(500, 1000)
    array.flush()
    del array
    again = np.memmap(area.here / "m.npy", dtype=np.int32, mode="r+", shape=(500, 1000))
    assert int(again[499, 999]) == 499_999
    again[250] = -1
    del again
    area.settle()
    expected = np.arange(500_000, dtype=np.int32).reshape(500, 1000)
    expected[250] = -1
    there = np.memmap(area.there / "m.npy", dtype=np.int32, mode="r", shape=(500, 1000))
    assert np.array_equal(there, expected)
    assert np.array_equal(np.fromfile(area.back / "m.npy", dtype=np.int32), expected.ravel())


def test_safetensors(area: Area) -> None:
    """save_file and load_file, and a lazy open through a second mount."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file, save_file

    tensors = {f"layer{i}": torch.full((100, 1000), float(i)) for i in range(10)}
    save_file(tensors, area.here / "m.safetensors")
    loaded = load_file(area.here / "m.safetensors")
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())
    with safe_open(area.there / "m.safetensors", framework="pt") as file:
        assert torch.equal(file.get_tensor("layer7"), tensors["layer7"])
    save_file({"layer0": torch.zeros(5)}, area.here / "m.safetensors")
    assert list(load_file(area.there / "m.safetensors")) == ["layer0"]


@pytest.mark.modes("local")
def test_many_small_files_by_shutil(make_volume: Callable[..., Volume], tmp_path: Path) -> None:
    """copytree in background mode, an unmount right after: everything is in the store, nothing staged is
    left.
    """
    source = tmp_path / "source"
    run("cp", "-a", *[p for p in library() if p.name == "email"], tmp_path)
    (tmp_path / "email").rename(source)
    volume = make_volume(mode="cached-background").mount()
    shutil.copytree(source, volume.mountpoint / "copy", symlinks=True)
    volume.unmount()
    run("diff", "-r", source, volume.backing / "copy")
