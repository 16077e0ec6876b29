"""`volfs status`: what the daemon says about its mount, for people or as JSON."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import click

from volfs.cli import control
from volfs.cli.output import fail, one_line, reason
from volfs.kernel import mounts

__all__ = ["status"]


@click.command()
@click.argument("mountpoint", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the daemon's own document.")
def status(mountpoint: Path, as_json: bool) -> None:
    """Show version, store, cache, files that wait to be committed, conflicts and errors of a mount."""
    mount = mounts.find(mountpoint)
    if mount is None or not mount.is_volfs:
        fail(f"{mountpoint} is not a volfs mount")
    try:
        document = control.read_status(mountpoint)
    except TimeoutError:
        fail(f"{mountpoint} does not answer; to take it away: volfs umount --force {mountpoint}")
    except OSError as error:
        if error.errno == errno.ENOTCONN:
            fail(f"the daemon of {mountpoint} has died; mount it again, or: volfs umount {mountpoint}")
        fail(f"{mountpoint} gives no status: {reason(error)}")
    if as_json:
        click.echo(json.dumps(document, indent=2))
    else:
        _print(mountpoint, document)


def _print(mountpoint: Path, document: dict[str, Any]) -> None:
    # Imported where it is used: it costs more than the rest of the command.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in rows(mountpoint, document):
        # A path may hold what looks like markup, and bytes that stdout cannot encode.
        table.add_row(name, Text(one_line(value.encode(errors="backslashreplace").decode())))
    Console().print(table)


def rows(mountpoint: Path, document: dict[str, Any]) -> list[tuple[str, str]]:
    """The human form of the status document, a line a subject."""
    mode, cache, commit = (document.get(part) or {} for part in ("mode", "cache", "commit"))
    lines = [
        ("volume", f"{document.get('backing')} on {mountpoint}"),
        (
            "daemon",
            f"volfs {document.get('version')}, pid {document.get('pid')}, {document.get('transport')} "
            f"({document.get('transport_reason')})",
        ),
        (
            "mode",
            ", ".join(
                [
                    f"{document.get('store')} store",
                    "read-only" if mode.get("read_only") else f"commit on {mode.get('commit')}",
                    f"changes by {mode.get('change_detection')}",
                ]
            ),
        ),
        ("cache", _cache(cache) if mode.get("cache") else "off: reads go straight to the backing"),
        *_leases(document.get("leases") or {}),
        ("journal, log", str(document.get("cache_dir"))),
        ("waiting", _waiting(commit)),
        ("committed", _committed(commit)),
    ]
    if document.get("store_away"):
        lines.append(("store", "does not answer; what was written waits here and is tried again"))
    if document.get("stale_answers"):
        lines.append(("old answers", f"{document['stale_answers']}, served while the store failed"))
    if commit.get("last_error"):
        lines.append(("last error", str(commit["last_error"])))
    lines += [
        ("conflicts", str(document.get("conflicts", 0))),
        ("errors", str(document.get("errors", 0))),
        ("requests", str(document.get("requests", 0))),
    ]
    return lines


def _cache(cache: dict[str, Any]) -> str:
    ratio = cache.get("hit_ratio")
    hits = "no reads yet" if ratio is None else f"hit ratio {ratio:.0%}"
    corrupt = (
        f", {cache['corrupt_blocks']} damaged blocks fetched again" if cache.get("corrupt_blocks") else ""
    )
    used, limit = size(cache.get("used_bytes", 0)), size(cache.get("limit_bytes", 0))
    return f"{used} of {limit}, {hits}{corrupt}"


def _leases(leases: dict[str, Any]) -> list[tuple[str, str]]:
    count = leases.get("count", 0)
    return [("handed out", f"{count} files, {size(leases.get('bytes', 0))}")] if count else []


def _waiting(commit: dict[str, Any]) -> str:
    waiting, age = commit.get("waiting", 0), commit.get("oldest_age_s")
    return f"{waiting} files" + (f", the oldest for {age:.0f} s" if waiting and age is not None else "")


def _committed(commit: dict[str, Any]) -> str:
    parts = [f"{commit.get('committed', 0)} files"]
    for key, text in (
        ("failed", "failed attempts"),
        ("recovered", "recovered from an earlier daemon"),
        ("replaying", "of an earlier daemon that wait"),
        ("kept", "kept for volfs recover"),
        ("lost", "lost (see the log)"),
    ):
        if commit.get(key):
            parts.append(f"{commit[key]} {text}")
    return ", ".join(parts)


def size(count: int) -> str:
    """Bytes for people: 1.5 GiB."""
    value, unit = float(count), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
