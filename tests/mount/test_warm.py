"""`volfs warm` and `volfs evict` on a real mount: what is in the cache after, what it cost, what is said."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.mount.calls import NOBODY, as_user, error_of, in_process
from tests.mount.volume import PLAIN, REPOSITORY, Volume, eventually

pytestmark = [
    pytest.mark.skipif(PLAIN, reason="a plain directory has no cache"),
    pytest.mark.timeout(180),
]

K, M = 1 << 10, 1 << 20
FAULTY_STORE = Path(__file__).with_name("faulty_store.py")

Make = Callable[..., Volume]


def noise(size: int, seed: int) -> bytes:
    """Bytes that nothing makes smaller."""
    return random.Random(seed).randbytes(size)


def tree(volume: Volume) -> dict[str, bytes]:
    """A tree in the backing: small files in two directories, one of several megabytes, an empty one."""
    files = {f"a/f{i}": noise(150 * K + i, i) for i in range(20)}
    files |= {f"a/b/g{i}": noise(i * 1000, i) for i in range(5)}
    files["big"] = noise(5 * M + 1, 99)
    for name, data in files.items():
        (volume.backing / name).parent.mkdir(parents=True, exist_ok=True)
        (volume.backing / name).write_bytes(data)
    return files


def told(volume: Volume, *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    """A verb with --json: exit code and document."""
    done = volume.volfs(*map(str, arguments), "--json", within=100)
    return done.returncode, json.loads(done.stdout)


def state(path: Path) -> dict[str, Any]:
    """What the cache has of a file."""
    loaded: dict[str, Any] = json.loads(os.getxattr(path, "user.volfs.cached"))
    return loaded


def cache_file(volume: Volume, size: int) -> Path:
    """The one cache file of this size."""
    (found,) = (p for p in (volume.cache_dir / "cache/blocks").rglob("*") if p.stat().st_size == size)
    return found


def faulty(volume: Volume) -> Path:
    """Mount by a daemon whose store fails on demand; where the faults go."""
    faults = Path(tempfile.mkdtemp(dir=volume.base))
    volume.environment = {"VOLFS_TEST_FAULTS": str(faults)}
    volume.mount_by(FAULTY_STORE)
    return faults


def test_what_was_warmed_costs_the_store_no_read(make_volume: Make) -> None:
    """R8: warm brings whole trees in, once; reading them afterwards, also after a restart, is local."""
    volume = make_volume(mode="cached")
    files = tree(volume)
    volume.mount()
    code, document = told(volume, "warm", volume.mountpoint)
    size = sum(len(data) for data in files.values())
    assert (code, document["files"], document["failed"]) == (0, len(files), 0)
    assert document["complete"] == {"files": len(files), "bytes": size}
    assert volume.status()["store_read_bytes"] == size
    assert {name: (volume.mountpoint / name).read_bytes() for name in files} == files
    assert told(volume, "warm", volume.mountpoint)[0] == 0
    assert volume.status()["store_read_bytes"] == size
    volume.unmount()
    volume.remount()
    assert told(volume, "warm", "--check", volume.mountpoint)[1]["complete"]["files"] == len(files)
    assert {name: (volume.mountpoint / name).read_bytes() for name in files} == files
    assert volume.status()["store_read_bytes"] == 0


def test_concurrent_warming_reads_the_store_once(make_volume: Make) -> None:
    """R8: those who warm or read the same files at the same time share what is fetched."""
    volume = make_volume(mode="cached")
    files = tree(volume)
    volume.mount()
    big = volume.mountpoint / "big"
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(os.getxattr, big, "user.volfs.warm") for _ in range(6)]
        reads = [pool.submit(big.read_bytes) for _ in range(2)]
    assert all(json.loads(answer.result())["complete"] for answer in answers)
    assert all(read.result() == files["big"] for read in reads)
    assert volume.status()["store_read_bytes"] == len(files["big"])


def test_check_tells_and_changes_nothing(make_volume: Make) -> None:
    """R8: --check counts what is complete, partial and absent, and finds damage, which is never served."""
    volume = make_volume(mode="cached")
    files = tree(volume)
    volume.mount()
    code, document = told(volume, "warm", "--check", volume.mountpoint)
    assert (code, document["absent"]["files"]) == (1, len(files) - 1)  # an empty one is always complete
    assert volume.status()["store_read_bytes"] == 0
    with (volume.mountpoint / "big").open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        file.read(10)
    eventually(lambda: state(volume.mountpoint / "big")["cached_bytes"], what="a block is kept")
    assert told(volume, "warm", "--check", volume.mountpoint)[1]["partial"]["files"] == 1
    assert told(volume, "warm", volume.mountpoint)[0] == 0
    with cache_file(volume, len(files["big"])).open("r+b") as file:
        file.seek(3 * M)
        file.write(b"damage")
    code, document = told(volume, "warm", "--check", volume.mountpoint / "big")
    assert code == 1
    assert 0 < document["damaged_bytes"] <= 256 * K
    assert document["complete"]["files"] == 1
    assert volume.status()["cache"]["corrupt_blocks"] == 0
    assert (volume.mountpoint / "big").read_bytes() == files["big"]
    assert volume.status()["cache"]["corrupt_blocks"] == 1
    assert told(volume, "warm", volume.mountpoint)[0] == 0
    assert told(volume, "warm", "--check", volume.mountpoint)[0] == 0


def test_evict(make_volume: Make) -> None:
    """R8: evict drops files from the cache, but those that are open or not committed."""
    volume = make_volume("--commit-interval", "60", mode="cached-background")
    files = tree(volume)
    volume.mount()
    assert told(volume, "warm", volume.mountpoint)[0] == 0
    used = volume.status()["cache"]["used_bytes"]
    code, document = told(volume, "evict", volume.mountpoint / "a")
    assert (code, document["kept_bytes"]) == (0, 0)
    assert volume.status()["cache"]["used_bytes"] == used - document["freed_bytes"]
    assert told(volume, "warm", "--check", volume.mountpoint)[1]["absent"]["files"] == 24
    # By another process: a fork of this one would close the file, too, and that commits it.
    source = "import sys; f = open(sys.argv[1], 'wb', 0); print(f.write(bytes(1 << 20)), flush=True); input()"
    writer = in_process(source, volume.mountpoint / "w")
    assert writer.stdout is not None
    assert writer.stdout.readline() == f"{M}\n"
    with (volume.mountpoint / "big").open("rb") as file:
        code, document = told(volume, "evict", volume.mountpoint / "big", volume.mountpoint / "w")
        assert document["freed_bytes"] == 0
        assert document["kept_bytes"] >= len(files["big"]) + M
        assert file.read() == files["big"]
    writer.communicate("\n")
    volume.settle()
    code, document = told(volume, "evict", volume.mountpoint)
    assert (code, document["kept_bytes"]) == (0, 0)
    assert volume.status()["cache"]["used_bytes"] == 0
    assert (volume.mountpoint / "w").read_bytes() == bytes(M)


def test_more_than_fits(make_volume: Make) -> None:
    """R8, B1: what the cache has no room for is said before, and does not drive out what was brought in."""
    volume = make_volume("--cache-size", "24MiB", mode="cached")
    for i in range(20):
        (volume.backing / f"f{i:02}").write_bytes(noise(2 * M, i))
    (volume.backing / "huge").write_bytes(noise(40 * M, 50))
    volume.mount()
    done = volume.volfs("warm", str(volume.mountpoint), "--jobs", "4", within=100)
    assert done.returncode == 1
    assert "80.0 MiB in 21 files are wanted" in done.stderr
    status = volume.status()
    assert status["cache"]["used_bytes"] <= 24 * M
    assert status["cache"]["evicted_bytes"] == 0
    fitted = status["store_read_bytes"] // (2 * M)
    assert fitted >= 9
    assert f"complete: {fitted} files" in done.stdout
    assert f"no room: {21 - fitted} files" in done.stdout
    assert error_of(os.getxattr, volume.mountpoint / "huge", "user.volfs.warm") == "ENOSPC"


def test_a_set_that_fits_takes_the_place_of_others(make_volume: Make) -> None:
    """R8: files that are warmed drive out older ones, and none of their own."""
    volume = make_volume("--cache-size", "24MiB", mode="cached")
    for name in "old", "new":
        (volume.backing / name).mkdir()
        for i in range(9):
            (volume.backing / name / f"f{i}").write_bytes(noise(2 * M, i))
    volume.mount()
    assert told(volume, "warm", volume.mountpoint / "old")[0] == 0
    assert told(volume, "warm", volume.mountpoint / "new")[0] == 0
    assert told(volume, "warm", "--check", volume.mountpoint / "new")[0] == 0
    assert volume.status()["store_read_bytes"] == 36 * M


def test_what_fails_is_named_and_the_rest_goes_on(make_volume: Make) -> None:
    """R8: a file that cannot be read costs that file, its true error is shown, and the exit code says it."""
    volume = make_volume(mode="cached")
    files = tree(volume)
    faults = faulty(volume)
    (faults / "open").write_text("EREMOTEIO always under=big")
    done = volume.volfs("warm", str(volume.mountpoint), str(volume.mountpoint / "nosuch"), within=100)
    assert done.returncode == 1
    assert f"{volume.mountpoint}/big: Remote I/O error" in done.stderr
    assert f"{volume.mountpoint}/nosuch: No such file" in done.stderr
    assert f"complete: {len(files) - 1} files" in done.stdout
    (faults / "open").unlink()
    assert volume.volfs("warm", str(volume.mountpoint), within=100).returncode == 0


def test_interrupted(make_volume: Make) -> None:
    """R8: Ctrl-C ends it at once also while the store hangs, and says how far it was."""
    volume = make_volume(mode="cached")
    tree(volume)
    faults = faulty(volume)
    (faults / "open").write_text("hang under=big")
    process = subprocess.Popen(
        [sys.executable, "-m", "volfs", "warm", volume.mountpoint],
        cwd=REPOSITORY,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        eventually(lambda: "open big met" in (faults / "calls").read_text(), what="the store hangs")
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    finally:
        (faults / "open").unlink()
        process.kill()
        process.communicate()
    assert process.returncode == 130
    assert "interrupted after" in errors


def test_who_may(make_volume: Make) -> None:
    """R8: whoever may read a file may warm and evict it, also on a read-only mount; nobody else."""
    volume = make_volume("--read-only", mode="cached")
    tree(volume)
    (volume.backing / "big").chmod(0o644)
    (volume.backing / "a").chmod(0o755)
    (volume.backing / "a/f1").chmod(0o600)
    volume.mount()
    big, secret = volume.mountpoint / "big", volume.mountpoint / "a/f1"
    if os.geteuid() == 0:
        assert as_user(NOBODY, lambda: os.getxattr(big, "user.volfs.warm")) == ""
        assert as_user(NOBODY, lambda: os.getxattr(secret, "user.volfs.warm")) == "EACCES"
        assert as_user(NOBODY, lambda: os.getxattr(volume.mountpoint, "user.volfs.evict")) == "EPERM"
        assert state(big)["complete"]
        assert as_user(NOBODY, lambda: os.getxattr(big, "user.volfs.evict")) == ""
        assert state(big)["cached_bytes"] == 0
    assert told(volume, "warm", volume.mountpoint)[0] == 0


def test_where_there_is_no_cache(make_volume: Make, tmp_path: Path) -> None:
    """R8: a mount without a cache, and a path that is on no mount, are said with exit code 2."""
    volume = make_volume()
    tree(volume)
    volume.mount()
    done = volume.volfs("warm", str(volume.mountpoint))
    assert (done.returncode, "no cache" in done.stderr) == (2, True)
    done = volume.volfs("evict", str(tmp_path))
    assert (done.returncode, "not on a volfs mount" in done.stderr) == (2, True)
    assert error_of(os.getxattr, volume.mountpoint / "big", "user.volfs.warm") == "EOPNOTSUPP"
