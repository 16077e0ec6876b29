"""Configuration: which source wins, what is refused and how it is said, and what is derived."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from volfs import config
from volfs.config import MountConfig, load, parse_size
from volfs.errors import SetupError


def loaded(base: Path, flags: dict[str, Any] | None = None, **more: Any) -> MountConfig:
    return load(base / "backing", base / "mount", flags or {}, **({"environment": {}} | more))


def refused(base: Path, flags: dict[str, Any] | None = None, **more: Any) -> str:
    with pytest.raises(SetupError) as caught:
        loaded(base, flags, **more)
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("10GiB", 10 << 30),
        ("10Gi", 10 << 30),
        ("500M", 500_000_000),
        ("500 MB", 500_000_000),
        ("1e9", 10**9),
        ("1.5KiB", 1536),
        (" 7 ", 7),
        ("3t", 3 * 10**12),
        ("1PiB", 1 << 50),
        ("12b", 12),
        (4096, 4096),
        (2.5e9, 2_500_000_000),
    ],
)
def test_sizes(text: str | float, size: int) -> None:
    """Sizes are read with binary and decimal units, exponents and blanks."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "-1", "1X", "1iB", "10 GiB x", "nan", "inf", "1e99", "0x10", "1_000", "٣", True, None, [1]],
)
def test_what_is_not_a_size(text: object) -> None:
    """What is not a size is refused, never guessed."""
    with pytest.raises(ValueError, match="is not a size such as"):
        parse_size(text)


@given(st.integers(min_value=0, max_value=2**40), st.sampled_from([("Ki", 10), ("Mi", 20), ("", 0)]))
def test_whole_sizes_are_exact(count: int, unit: tuple[str, int]) -> None:
    """A whole number of units is read without rounding."""
    assert parse_size(f"{count}{unit[0]}B") == count << unit[1]


def test_defaults(tmp_path: Path) -> None:
    """Nothing given: the documented defaults."""
    got = loaded(tmp_path)

    assert got.cache_bytes == 10 << 30
    assert (got.cache, got.commit, got.log_level) == ("auto", "close", "info")
    assert (got.commit_interval_s, got.poll_interval_s, got.freshness_s) == (5.0, 5.0, None)
    assert (got.read_only, got.foreground) == (False, False)
    assert got.allow_other == (os.geteuid() == 0)


def test_precedence(tmp_path: Path) -> None:
    """Flags win over the environment, that over the file, that over the default."""
    file = tmp_path / "volfs.toml"
    file.write_text('cache_size = "1MiB"\ncommit = "background"\npoll_interval = 7\nread_only = true\n')
    environment = {"VOLFS_CACHE_SIZE": "2MiB", "VOLFS_COMMIT": "close", "OTHER": "x"}
    got = loaded(tmp_path, {"cache_size": "3MiB", "commit": None}, file=file, environment=environment)

    assert got.cache_bytes == 3 << 20
    assert got.commit == "close"
    assert got.poll_interval_s == 7.0
    assert got.read_only is True


@pytest.mark.parametrize(("text", "value"), [("1", True), ("YES", True), ("off", False), ("False", False)])
def test_switches_in_the_environment(tmp_path: Path, text: str, value: bool) -> None:
    """Switches are words in the environment."""
    assert loaded(tmp_path, environment={"VOLFS_READ_ONLY": text}).read_only is value


def test_unknown_key_in_the_file(tmp_path: Path) -> None:
    """A misspelled key is an error that names it, the file, and the closest valid one."""
    file = tmp_path / "volfs.toml"
    file.write_text("cache-size = 1\n")

    assert refused(tmp_path, file=file) == (
        f"unknown setting 'cache-size' in {file}; the closest one is 'cache_size'"
    )


def test_misspelled_variable(tmp_path: Path) -> None:
    """A variable that looks like a setting but is none is an error; one that is for others is not."""
    assert refused(tmp_path, environment={"VOLFS_POLL_INTERVALL": "1"}) == (
        "unknown setting VOLFS_POLL_INTERVALL in the environment; did you mean VOLFS_POLL_INTERVAL?"
    )
    loaded(tmp_path, environment={"VOLFS_SERVICE_HOST": "x", "VOLFS_PORT_80_TCP": "y", "VOLFS_CONFIG": "z"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cache", "maybe"),
        ("commit", "never"),
        ("commit_interval", "0"),
        ("commit_interval", "soon"),
        ("freshness", "-1"),
        ("freshness", "nan"),
        ("poll_interval", "inf"),
        ("poll_interval", "0.01"),
        ("read_only", "perhaps"),
        ("log_level", "loud"),
        ("cache_size", "big"),
        ("cache_dir", ""),
    ],
)
def test_wrong_values_name_the_setting_and_its_source(tmp_path: Path, key: str, value: str) -> None:
    """The line begins with the setting, where it was given, and the value."""
    message = refused(tmp_path, environment={f"VOLFS_{key.upper()}": value})

    assert message.startswith(f"{key} in the environment: {value!r}")


@pytest.mark.parametrize("value", ["1", "true", "[1]", "{a = 1}", "2020-01-01", '"\\u0000"'])
def test_odd_types_in_the_file(tmp_path: Path, value: str) -> None:
    """A value of another type than expected is refused by name, not by a traceback."""
    file = tmp_path / "volfs.toml"
    file.write_text(f"cache_dir = {value}\n")

    assert refused(tmp_path, file=file).startswith(f"cache_dir in {file}: ")


def test_broken_file(tmp_path: Path) -> None:
    """A file that is no TOML, not text or not there is named."""
    file = tmp_path / "volfs.toml"
    assert refused(tmp_path, file=file) == f"cannot read {file}: No such file or directory"
    file.write_text("cache_size =\n")
    assert refused(tmp_path, file=file).startswith(f"{file} is not valid TOML: ")
    file.write_bytes(b"\xff\xfe")
    assert refused(tmp_path, file=file).startswith(f"{file} is not valid TOML: ")


def test_frozen(tmp_path: Path) -> None:
    """A configuration does not change after it was made."""
    with pytest.raises(ValidationError):
        loaded(tmp_path).commit = "background"  # type: ignore[misc]


def test_default_cache_dir_is_of_the_pair(tmp_path: Path) -> None:
    """The same pair of directories finds its cache again, by whatever road; another pair gets another."""
    (tmp_path / "backing").mkdir()
    (tmp_path / "link").symlink_to("backing")
    here = config.default_cache_dir(tmp_path / "backing", tmp_path / "mount", {})
    linked = config.default_cache_dir(tmp_path / "link", tmp_path / "x" / ".." / "mount", {})
    other = config.default_cache_dir(tmp_path / "backing", tmp_path / "mount2", {})

    assert here == linked
    assert here != other
    assert len(here.name) == 16


def test_default_cache_dir_of_a_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Users other than root keep it under XDG_CACHE_HOME, or ~/.cache; a relative value does not count."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def parent(environment: dict[str, str]) -> Path:
        return config.default_cache_dir(tmp_path, tmp_path, environment).parent

    assert parent({"XDG_CACHE_HOME": str(tmp_path)}) == tmp_path / "volfs"
    assert parent({}) == tmp_path / "home/.cache/volfs"
    assert parent({"XDG_CACHE_HOME": "rel"}) == tmp_path / "home/.cache/volfs"
    assert loaded(tmp_path).allow_other is False


def test_mountpoint_is_resolved_without_a_stat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links on the way and at the end are followed, and the last name is never looked into."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real/m").mkdir()
    (tmp_path / "dir").symlink_to("real")
    (tmp_path / "last").symlink_to("dir/m")
    looked: list[str] = []
    lstat = os.lstat
    monkeypatch.setattr(
        os, "lstat", lambda path, **kw: (looked.append(os.fspath(path)), lstat(path, **kw))[1]
    )

    assert config.resolve_mountpoint(tmp_path / "last") == tmp_path / "real/m"
    assert str(tmp_path / "real/m") not in looked
    (tmp_path / "loop").symlink_to("loop")
    config.resolve_mountpoint(tmp_path / "loop")


def test_flags_are_the_whole_configuration(tmp_path: Path) -> None:
    """What a daemon is started with gives the same configuration again, whatever its environment says."""
    from click.testing import CliRunner

    from volfs.cli import main

    first = loaded(
        tmp_path,
        {
            "cache_dir": str(tmp_path / "c"),
            "cache_size": "1MiB",
            "cache": "on",
            "commit": "background",
            "commit_interval": "0.25",
            "freshness": "1e-3",
            "poll_interval": "0.1",
            "read_only": True,
            "allow_other": False,
            "log_level": "DEBUG",
        },
    )
    got: list[MountConfig] = []
    environment = {f"VOLFS_{key.upper()}": value for key, value in (("cache", "off"), ("read_only", "no"))}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("volfs.cli.mount.start", lambda config: got.append(config) or "")
        words = ["mount", *first.flags(), "--", str(first.backing), str(first.mountpoint)]
        done = CliRunner().invoke(main, words, env=environment)

    assert done.exit_code == 0, done.output
    assert got == [first]
