"""`volfs mount`: start a daemon for one backing directory, in the background or in this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any, Final

import click

from volfs.cli import exit_record
from volfs.cli.launch import LOG_NAME, Announcement, start
from volfs.cli.output import EXIT_FAILED, EXIT_USAGE, fail, one_line, reason, warn
from volfs.config import MountConfig, load
from volfs.errors import SetupError
from volfs.kernel import preflight
from volfs.telemetry import LOG_LEVELS, get_logger, set_up_logging

__all__ = ["mount"]

_log = get_logger("mount")

#: A log of this size is put aside when a daemon starts: months of a quiet mount, or one noisy night.
_LOG_BYTES: Final = 10 << 20


@click.command()
@click.argument("backing", type=click.Path(path_type=Path))
@click.argument("mountpoint", type=click.Path(path_type=Path))
@click.option("--cache-dir", metavar="DIR", help="Cache, journal and log; one directory a mount.")
@click.option("--cache-size", metavar="SIZE", help="Limit of the cache on disk. [default: 10GiB]")
@click.option(
    "--cache",
    type=click.Choice(["auto", "on", "off"]),
    help="Keep what was read on the local disk; auto: on for network and FUSE file systems. [default: auto]",
)
@click.option(
    "--commit",
    type=click.Choice(["close", "background"]),
    help="Whether close() waits for the commit and reports its error. [default: close]",
)
@click.option(
    "--commit-interval", metavar="S", help="Commit an open file that was quiet for so long. [default: 5]"
)
@click.option(
    "--freshness",
    metavar="S",
    help="How old an answer may be at open. [default: 0 for local backings, 1 for others]",
)
@click.option(
    "--poll-interval", metavar="S", help="How often to ask a backing that cannot notify. [default: 5]"
)
@click.option(
    "--store-timeout", metavar="S", help="Fail a request that the backing leaves unanswered. [default: 30]"
)
@click.option(
    "--stale-if-error",
    metavar="S",
    help="While the backing fails, serve what was right so long ago. [default: 0]",
)
@click.option(
    "--drain-timeout", metavar="S", help="How long commits may take when the daemon ends. [default: 20]"
)
@click.option(
    "--lease",
    metavar="S",
    help="How long a cache file that was handed out is kept for its reader. [default: 60]",
)
@click.option(
    "--durable-close/--no-durable-close",
    default=None,
    help="Make close() survive a power cut, as fsync does. [default: no]",
)
@click.option(
    "--transport",
    type=click.Choice(["auto", "direct", "pyfuse3"]),
    help="The way to the kernel: directly, for who may mount, or by libfuse. [default: auto]",
)
@click.option("--read-only/--no-read-only", default=None, help="Refuse changes. [default: no]")
@click.option(
    "--allow-other/--no-allow-other",
    default=None,
    help="Let other users in. [default: yes for root, else no]",
)
@click.option("--foreground/--no-foreground", default=None, help="Serve in this process, log to stderr.")
@click.option("--log-level", type=click.Choice(list(LOG_LEVELS)), help="[default: info]")
@click.option(
    "--config", metavar="FILE", envvar="VOLFS_CONFIG", help='Options in TOML: cache_size = "10GiB".'
)
@click.option("--ready-fd", type=int, hidden=True)
def mount(backing: Path, mountpoint: Path, config: str | None, ready_fd: int | None, **flags: Any) -> None:
    """Mount the directory BACKING at MOUNTPOINT.

    Returns when the mount answers. Options can also be given as environment variables (VOLFS_CACHE_SIZE)
    and in a TOML file (cache_size).
    """
    try:
        loaded = load(backing, mountpoint, flags, file=None if config is None else Path(config))
    except SetupError as error:
        Announcement(ready_fd).failed(error)
        fail(error, EXIT_USAGE)
    if loaded.foreground:
        sys.exit(serve(loaded, Announcement(ready_fd)))
    try:
        said = start(loaded)
    except SetupError as error:
        fail(error)
    if said.strip():
        click.echo(said.rstrip(), err=True)


def serve(config: MountConfig, announcement: Announcement) -> int:
    """Run the daemon in this process until its mount is taken away; returns the exit code."""
    set_up_logging(config.log_level)
    try:
        preflight.check(config)
        _make_cache_dir(config.cache_dir)
        if announcement.awaited:
            _log_to(config.cache_dir / LOG_NAME)
        # Imported here: the other verbs must not pay for trio and pyfuse3.
        from volfs import daemon

        exit_record.clear(config.cache_dir)
        code = daemon.run(config, announcement.ready)
        exit_record.write(config.cache_dir, code)
        return code
    except SetupError as error:
        _report(announcement, error)
    except Exception as error:
        _log.exception("the daemon ended with an unexpected error")
        where = f"; see {config.cache_dir / LOG_NAME}" if announcement.awaited else ""
        _report(announcement, f"internal error: {type(error).__name__}: {error}{where}")
    return EXIT_FAILED


def _report(announcement: Announcement, error: object) -> None:
    if announcement.awaited:
        _log.error("the mount did not start", error=one_line(error))
        announcement.failed(error)
    else:
        warn(error)


def _make_cache_dir(directory: Path) -> None:
    try:
        # 0700: the cache holds the files' bytes, and checks nobody's permissions.
        directory.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        directory.mkdir(mode=0o700, exist_ok=True)
        # A trial, because access(2) says nothing about a full or read-only disk.
        trial = directory / f".trial-{os.getpid()}"
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise SetupError(
            f"cache directory {directory} cannot be used ({reason(error)}): name another one with --cache-dir"
        ) from error


def _log_to(file: Path) -> None:
    """Make `file` the stdout and stderr of this process."""
    try:
        if file.exists() and file.stat().st_size > _LOG_BYTES:
            file.rename(file.with_name(f"{file.name}.1"))
        descriptor = os.open(
            file, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
        )
    except OSError as error:
        raise SetupError(f"cannot write the log {file}: {reason(error)}; name another --cache-dir") from error
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
