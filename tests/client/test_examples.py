"""The examples of the client run, on any directory, as users start them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import volfs_client

_SOURCE = Path(volfs_client.__file__).parents[1]
_EXAMPLES = _SOURCE.parent / "examples"


def run(name: str, *arguments: object, ranks: int = 0) -> str:
    """What an example prints; under torchrun if there are ranks."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []
    done = subprocess.run(
        [sys.executable, *launcher, str(_EXAMPLES / name), *map(str, arguments)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(_SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_images(tmp_path: Path) -> None:
    """Every file of two classes in each epoch, with the last batch filled up."""
    for label in ("cat", "dog"):
        (tmp_path / label).mkdir()
        for number in range(5):
            (tmp_path / label / f"{number}.jpg").write_bytes(b"no image" * number)
    said = run("image_dataset.py", tmp_path, "--batch-size", 4, "--workers", 0)
    assert re.findall(r"epoch (\d): (\d+) samples", said) == [("0", "12"), ("1", "12")]


def test_checkpoints_in_the_background(tmp_path: Path) -> None:
    """The newest two are kept."""
    assert "checkpoints of steps 4, 6 are in" in run("dcp_async.py", tmp_path)


def test_torch_save(tmp_path: Path) -> None:
    """One process saves and loads, and leaves one file."""
    assert "on 1 ranks" in run("torch_save.py", tmp_path)
    assert os.listdir(tmp_path) == ["model.pt"]


@pytest.mark.long
def test_under_torchrun(tmp_path: Path) -> None:
    """Two ranks load what one saved; two ranks go on from the checkpoint of one."""
    assert "on 2 ranks" in run("torch_save.py", tmp_path / "plain", ranks=2)
    run("dcp_async.py", tmp_path / "dcp", "--steps", 4)
    said = run("dcp_async.py", tmp_path / "dcp", "--steps", 2, ranks=2)
    assert "goes on after step 4" in said
    assert "checkpoints of steps 4, 6 are in" in said


@pytest.mark.long
def test_table_export(tmp_path: Path) -> None:
    """A table is made, exported, and loaded."""
    assert run("table_export.py", tmp_path).splitlines() == [
        f"1000 rows, {sum(p.stat().st_size for p in (tmp_path / 'rows').iterdir())} bytes in 4 files",
        "datasets has 1000 rows: id, text",
    ]
