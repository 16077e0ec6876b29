"""The configuration of one mount: parse, validate, derive; the result is frozen.

Settings come from flags, then the environment (VOLFS_CACHE_SIZE), then a TOML
file (cache_size), then the defaults, under the same names everywhere. This
module does not look at the machine beyond resolving the paths: whether the mount
can start is for `kernel.preflight`.

*Invariants:* all paths of a `MountConfig` are absolute and have no symlinks in
them; resolving a mount point never asks the file system that is mounted there,
which may be dead or hung.
"""

from __future__ import annotations

import difflib
import math
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import xxhash
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from volfs.errors import SetupError

__all__ = ["SETTINGS", "MountConfig", "default_cache_dir", "load", "parse_size", "resolve_mountpoint"]

#: 10 GiB: what a root disk of the usual 30 to 100 GiB can spare; it holds a data set of a few GB whole.
DEFAULT_CACHE_BYTES: Final = 10 << 30

#: Setting (flag, TOML key, environment name after VOLFS_) -> field of MountConfig.
SETTINGS: Final = {
    "cache_dir": "cache_dir",
    "cache_size": "cache_bytes",
    "cache": "cache",
    "commit": "commit",
    "commit_interval": "commit_interval_s",
    "freshness": "freshness_s",
    "poll_interval": "poll_interval_s",
    "store_timeout": "store_timeout_s",
    "stale_if_error": "stale_if_error_s",
    "drain_timeout": "drain_timeout_s",
    "lease": "lease_s",
    "durable_close": "durable_close",
    "read_only": "read_only",
    "transport": "transport",
    "allow_other": "allow_other",
    "foreground": "foreground",
    "log_level": "log_level",
}

_PREFIX: Final = "VOLFS_"
#: How like a known name an unknown variable must be to count as a misspelling. The environment also
#: holds names that are not for us: Kubernetes sets VOLFS_SERVICE_HOST for a service called "volfs".
_MISSPELLED: Final = 0.8

_UNITS: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_BINARY_UNITS: Final = {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40, "pi": 1 << 50}
_SIZE: Final = re.compile(
    r"\s*(\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+)\s*([kKmMgGtTpP]?[iI]?)[bB]?\s*", re.ASCII
)


def parse_size(value: object) -> int:
    """Bytes from 10GiB, 500M, 1.5e9 or an integer. K, M, G, T, P are decimal, Ki ... Pi binary."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("is not a size such as 10GiB or 500M")
    match = _SIZE.fullmatch(str(value))
    scale = {**_UNITS, **_BINARY_UNITS}.get(match[2].lower()) if match else None
    size = float(match[1]) * scale if match and scale else math.inf
    if not size < 1 << 63:
        raise ValueError("is not a size such as 10GiB or 500M")
    return int(size)


def _seconds(value: object) -> object:
    # Text comes from flags and the environment; pydantic's own float parsing takes "nan" and "infinity".
    if isinstance(value, bool):
        raise ValueError("is not a number of seconds")
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise ValueError("is not a number of seconds") from None
    return value


_SWITCH: Final = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


def _switch(value: object) -> object:
    known = _SWITCH.get(value.lower()) if isinstance(value, str) else value
    if not isinstance(known, bool):
        raise ValueError("is neither true nor false")
    return known


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


Seconds = Annotated[float, BeforeValidator(_seconds), Field(allow_inf_nan=False)]
Switch = Annotated[bool, BeforeValidator(_switch)]


class MountConfig(BaseModel):
    """Everything that a daemon is told. Sizes in bytes, times in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    backing: Path
    mountpoint: Path
    cache_dir: Path
    cache_bytes: Annotated[int, BeforeValidator(parse_size)] = DEFAULT_CACHE_BYTES
    #: auto: on for backings on network and FUSE file systems.
    cache: Literal["auto", "on", "off"] = "auto"
    commit: Literal["close", "background"] = "close"
    #: W3: long enough for the pauses of a program that writes in bursts, short enough to tail a log.
    commit_interval_s: Annotated[Seconds, Field(gt=0, le=86400)] = 5.0
    #: None: 0 where the backing tells of changes, 1 s where it must be asked (R1).
    freshness_s: Annotated[Seconds, Field(ge=0, le=86400)] | None = None
    #: R2. The lower bound keeps a typing error from keeping the backing's server busy.
    poll_interval_s: Annotated[Seconds, Field(ge=0.1, le=86400)] = 5.0
    #: B3: longer than a failover of a file server takes, shorter than the patience of who waits for a read.
    store_timeout_s: Annotated[Seconds, Field(ge=0.1, le=86400)] = 30.0
    #: B3: 0: what cannot be asked is an error, so that nobody reads old bytes unless they said so.
    stale_if_error_s: Annotated[Seconds, Field(ge=0, le=30 * 86400)] = 0.0
    #: B4: within Kubernetes' grace period of 30 s, with room for the unmount.
    drain_timeout_s: Annotated[Seconds, Field(ge=0, le=86400)] = 20.0
    #: R6: ample time to open a path that was handed out; a client that crashed holds the file for no longer.
    lease_s: Annotated[Seconds, Field(ge=1, le=86400)] = 60.0
    #: W5: whether close, too, survives a power cut.
    durable_close: Switch = False
    #: The way to the kernel: its protocol spoken directly where this process may mount, else libfuse.
    transport: Literal["auto", "direct", "pyfuse3"] = "auto"
    read_only: Switch = False
    allow_other: Switch = False
    foreground: Switch = False
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)] = "info"

    def flags(self) -> list[str]:
        """This configuration as flags of `volfs mount`, for the daemon that is started with it."""
        words = [
            f"--cache-dir={self.cache_dir}",
            f"--cache-size={self.cache_bytes}",
            f"--cache={self.cache}",
            f"--commit={self.commit}",
            f"--commit-interval={self.commit_interval_s!r}",
            f"--poll-interval={self.poll_interval_s!r}",
            f"--store-timeout={self.store_timeout_s!r}",
            f"--stale-if-error={self.stale_if_error_s!r}",
            f"--drain-timeout={self.drain_timeout_s!r}",
            f"--lease={self.lease_s!r}",
            f"--transport={self.transport}",
            "--durable-close" if self.durable_close else "--no-durable-close",
            "--read-only" if self.read_only else "--no-read-only",
            "--allow-other" if self.allow_other else "--no-allow-other",
            f"--log-level={self.log_level}",
        ]
        if self.freshness_s is not None:
            words.append(f"--freshness={self.freshness_s!r}")
        return words


def load(
    backing: Path,
    mountpoint: Path,
    flags: Mapping[str, object],
    *,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> MountConfig:
    """The configuration of a mount. SetupError names the setting that is wrong and where it was given.

    A flag that is None was not given.
    """
    environment = os.environ if environment is None else environment
    origin: dict[str, str] = {}
    chosen: dict[str, object] = {}
    file_layer = {} if file is None else _read(file)
    for where, layer in (
        (f"{file}", file_layer),
        ("the environment", _from_environment(environment)),
        ("the flags", {key: value for key, value in flags.items() if value is not None}),
    ):
        for key, value in layer.items():
            _check_known(key, where)
            chosen[key] = value
            origin[key] = where
    values: dict[str, object] = {SETTINGS[key]: value for key, value in chosen.items()}
    values["backing"] = Path(os.path.realpath(backing))
    values["mountpoint"] = resolve_mountpoint(mountpoint)
    if "cache_dir" in values:
        given = values["cache_dir"]
        if not isinstance(given, str | Path) or str(given) == "" or "\0" in str(given):
            raise SetupError(f"cache_dir in {origin['cache_dir']}: {given!r} is not a path")
        values["cache_dir"] = Path(os.path.realpath(os.path.expanduser(given)))
    else:
        values["cache_dir"] = default_cache_dir(backing, mountpoint, environment)
    # Root mounts for a machine; without this, its other users and services would get EACCES.
    values.setdefault("allow_other", os.geteuid() == 0)
    try:
        return MountConfig.model_validate(values)
    except ValidationError as error:
        raise SetupError(_first_line(error, origin)) from error


def default_cache_dir(backing: Path, mountpoint: Path, environment: Mapping[str, str] | None = None) -> Path:
    """Where a mount keeps its cache and journal unless told: found again by the next mount of the pair."""
    environment = os.environ if environment is None else environment
    pair = os.fsencode(os.path.realpath(backing)) + b"\0" + os.fsencode(resolve_mountpoint(mountpoint))
    name = xxhash.xxh3_64_hexdigest(pair)
    if os.geteuid() == 0:
        return Path("/var/cache/volfs", name)
    home = environment.get("XDG_CACHE_HOME", "")
    base = Path(home) if os.path.isabs(home) else Path("~/.cache").expanduser()
    return Path(os.path.realpath(base), "volfs", name)


def resolve_mountpoint(path: Path) -> Path:
    """`path` without symlinks. Unlike realpath(3), it does not stat what is mounted there."""
    current = os.path.abspath(path)
    for _ in range(40):  # as many links as the kernel follows
        parent, name = os.path.split(current)
        current = os.path.join(os.path.realpath(parent), name)
        try:
            # On a mounted directory the kernel answers EINVAL by itself.
            target = os.readlink(current)
        except OSError:
            break
        current = os.path.normpath(os.path.join(os.path.dirname(current), target))
    return Path(current)


def _read(file: Path) -> dict[str, object]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise SetupError(f"cannot read {file}: {os.strerror(error.errno or 0)}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SetupError(f"{file} is not valid TOML: {' '.join(str(error).split())}") from error


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in environment.items():
        if not name.startswith(_PREFIX):
            continue
        key = name.removeprefix(_PREFIX).lower()
        if key in SETTINGS:
            found[key] = value
        elif close := difflib.get_close_matches(key, SETTINGS, n=1, cutoff=_MISSPELLED):
            raise SetupError(
                f"unknown setting {name} in the environment; did you mean {_PREFIX}{close[0].upper()}?"
            )
    return found


def _check_known(key: str, where: str) -> None:
    if key not in SETTINGS:
        closest = difflib.get_close_matches(key, SETTINGS, n=1, cutoff=0.0)[0]
        raise SetupError(f"unknown setting {key!r} in {where}; the closest one is {closest!r}")


def _first_line(error: ValidationError, origin: Mapping[str, str]) -> str:
    problem = error.errors(include_url=False)[0]
    field = str(problem["loc"][0]) if problem["loc"] else ""
    key = next((key for key, name in SETTINGS.items() if name == field), field)
    text = problem["msg"].removeprefix("Value error, ")
    return f"{key} in {origin.get(key, 'the flags')}: {problem['input']!r}: {text}"
