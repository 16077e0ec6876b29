"""`volfs evict`: drop files from the cache."""

from __future__ import annotations

import errno
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from volfs.cli import bulk, control
from volfs.cli.output import EXIT_FAILED, fail, reason
from volfs.cli.status import size
from volfs.cli.warm import Tally, run
from volfs.kernel import mounts

__all__ = ["evict"]

_EVICT = "user.volfs.evict"


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--jobs", type=click.IntRange(1, 128), default=16, show_default=True, help="Files at once.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
def evict(paths: tuple[Path, ...], jobs: int, as_json: bool) -> None:
    """Drop files, and all files below directories, from the cache of their mount.

    The store keeps them. What is open, handed out or not committed yet stays, and is counted. Given the mount
    point itself, also versions leave that no file has any more.
    """
    try:
        bulk.status_of(paths)
        document = _all(paths) or _each(paths, jobs)
    except OSError as error:
        fail(f"cannot ask the mount: {reason(error)}")
    if as_json:
        click.echo(json.dumps(document, indent=2))
    else:
        kept = f"; {size(document['kept_bytes'])} are in use and stay" if document["kept_bytes"] else ""
        click.echo(f"freed {size(document['freed_bytes'])}{kept}")
    sys.exit(EXIT_FAILED if document.get("failed") else 0)


def _all(paths: tuple[Path, ...]) -> dict[str, Any] | None:
    """Empty the whole cache, if that is what is meant and the caller may."""
    for path in paths:
        if mounts.find(path) is not None:
            try:
                answer = json.loads(control.read(path, _EVICT, None))
            except OSError as error:
                if error.errno != errno.EPERM:
                    raise
            else:
                return dict(answer)
    return None


def _each(paths: tuple[Path, ...], jobs: int) -> dict[str, Any]:
    tally: Tally = run(paths, _evict, jobs, "evicting")
    tally.complain()
    freed, kept = (tally.answers.get(name, 0) for name in ("freed_bytes", "kept_bytes"))
    return {"files": tally.files, "freed_bytes": freed, "kept_bytes": kept, "failed": tally.failed}


def _evict(path: str, count: int, part: Callable[[int], None]) -> dict[str, Any]:
    return bulk.ask(path, _EVICT)
