"""`volfs mount` against a daemon that starts, fails, crashes, dies or says nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Bench
from volfs.cli import launch
from volfs.config import load
from volfs.errors import SetupError
from volfs.kernel import mounts

Make = Callable[..., Bench]


def test_returns_when_the_mount_answers(bench: Make) -> None:
    """Exit code 0 and silence; the daemon is detached, in `/`, with its log in the cache directory."""
    one = bench({})
    pid = one.mounted()

    assert os.getsid(pid) == pid
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert os.readlink(f"/proc/{pid}/fd/2") == str(one.cache_dir / "volfs.log")
    assert os.readlink(f"/proc/{pid}/fd/0") == "/dev/null"
    assert one.cache_dir.stat().st_mode & 0o777 == 0o700
    assert one.umount().returncode == 0
    assert one.daemons() == []


def test_a_reason_not_to_start_is_one_line(bench: Make) -> None:
    """A SetupError of the daemon reaches the user as one line; nothing is left."""
    one = bench({"start": "setup"})
    done = one.mount()

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "volfs: no luck today: try tomorrow\n"
    assert mounts.find(one.mountpoint) is None
    assert one.daemons() == []


def test_a_bug_at_the_start_is_one_line_and_a_traceback_in_the_log(bench: Make) -> None:
    """An unexpected exception is named in one line that says where the traceback is."""
    one = bench({"start": "crash"})
    done = one.mount()

    assert done.returncode == 1
    log = one.cache_dir / "volfs.log"
    assert done.stderr == f"volfs: internal error: ZeroDivisionError: a bug; see {log}\n"
    assert "Traceback" in log.read_text()


def test_a_daemon_that_dies_leaves_its_last_words(bench: Make) -> None:
    """A daemon that ends without a word: the log is named, and its last line shown."""
    one = bench({"start": "die"})
    done = one.mount()

    log = one.cache_dir / "volfs.log"
    assert done.returncode == 1
    assert done.stderr == f"volfs: the daemon died before the mount was ready (see {log}): last words\n"


def test_the_wait_is_bounded_and_leaves_nothing(bench: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that never says that it is ready is ended, and its mount is taken away."""
    one = bench()
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).with_name("fake")))
    monkeypatch.setenv("FAKE_DAEMON", '{"start": "silent"}')
    config = load(one.backing, one.mountpoint, {"cache_dir": str(one.cache_dir)}, environment={})
    began = time.monotonic()
    with pytest.raises(SetupError, match="was not ready within 2 s"):
        launch.start(config, ready_s=2.0)

    assert time.monotonic() - began < 15
    assert mounts.find(one.mountpoint) is None
    assert one.daemons() == []


def test_foreground_says_why_on_stderr(bench: Make) -> None:
    """In the foreground there is no parent to tell: the line goes to stderr, and the code is 1."""
    one = bench({"start": "setup"})
    done = one.mount("--foreground")

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "volfs: no luck today: try tomorrow"


def test_the_current_directory_is_not_code(bench: Make) -> None:
    """Mounting from a directory with a module `volfs` or `json` in it does not run that module."""
    one = bench({})
    trap = one.base / "trap"
    trap.mkdir()
    for name in ("volfs.py", "json.py", "trio.py"):
        (trap / name).write_text("raise SystemExit('trapped')")
    done = one.run("mount", one.backing, one.mountpoint, "--cache-dir", one.cache_dir, cwd=trap)

    assert (done.returncode, done.stderr) == (0, "")
    assert one.umount().returncode == 0


def test_relative_and_odd_paths(bench: Make) -> None:
    """Relative paths, blanks, line feeds, leading dashes and bytes that are no UTF-8 mount and unmount."""
    one = bench({})
    for number, name in enumerate((b"a b", b"new\nline", b"-dash", b"\xff\xfe", b"back\\slash")):
        directory = os.path.join(os.fsencode(one.base), name)
        os.mkdir(directory)
        os.mkdir(directory + b"/b")
        os.mkdir(directory + b"/m")
        within = os.fsdecode(name)
        options = ["--cache-dir", f"cache-{number}", "--"]
        done = one.run("mount", *options, f"{within}/b", f"{within}/m")
        assert (done.returncode, done.stderr) == (0, ""), name
        done = one.run("umount", "--", f"{within}/m")
        assert (done.returncode, done.stderr) == (0, ""), name


def test_the_log_is_put_aside_when_it_is_long(bench: Make) -> None:
    """A start finds a log of more than 10 MiB and begins a new one beside it."""
    one = bench({})
    one.cache_dir.mkdir()
    log = one.cache_dir / "volfs.log"
    with log.open("wb") as file:
        file.truncate((10 << 20) + 1)
    one.mounted()

    assert log.stat().st_size < 1 << 20
    assert (one.cache_dir / "volfs.log.1").stat().st_size == (10 << 20) + 1
    one.umount()


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            ["--cache-size", "lots"],
            "volfs: cache_size in the flags: 'lots': is not a size such as 10GiB or 500M",
        ),
        (["--poll-interval", "0"], "volfs: poll_interval in the flags: '0': Input should be greater than or"),
        (
            ["--config", "/nonexistent.toml"],
            "volfs: cannot read /nonexistent.toml: No such file or directory",
        ),
    ],
)
def test_wrong_usage_is_code_2(bench: Make, options: list[str], line: str) -> None:
    """A setting that cannot be is a usage error: one line that names it."""
    done = bench({}).mount(*options)

    assert done.returncode == 2
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1


def test_an_unusable_cache_directory_is_named(bench: Make) -> None:
    """A cache directory that is a file is said before anything is mounted."""
    one = bench({})
    one.cache_dir.write_text("")
    done = one.mount()

    assert done.returncode == 1
    assert done.stderr == (
        f"volfs: cache directory {one.cache_dir} cannot be used (File exists): "
        "name another one with --cache-dir\n"
    )
