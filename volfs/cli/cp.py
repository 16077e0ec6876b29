"""`volfs cp`: copy files and trees in parallel, into a mount, out of one, or between any two directories.

The work is the client's (`volfs_client.copying`). This is the only module of the daemon's
distribution that imports the client, and only when the verb is run.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import click

from volfs.cli.output import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, fail, reason, warn
from volfs.cli.progress import Progress
from volfs.cli.status import size

if TYPE_CHECKING:
    from volfs_client.copying import CopyCounts, Overwrite
    from volfs_client.errors import CopyFailed

__all__ = ["cp"]

#: Failures that are named; the others are counted.
_NAMED: Final = 10

_OVERWRITE: Final[dict[str, Overwrite]] = {"changed": "changed", "never": "never", "always": "always"}


@click.command()
@click.argument("paths", metavar="SRC... DST", nargs=-1, required=True)
@click.option(
    "--jobs", type=click.IntRange(1, 256), default=32, show_default=True, help="Files copied at once."
)
@click.option(
    "--overwrite",
    type=click.Choice(list(_OVERWRITE)),
    default="changed",
    show_default=True,
    help="Replace a file that is there if its size or time differs, never, or always.",
)
@click.option("--fsync", is_flag=True, help="Each file survives a power cut once it has its name.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
def cp(paths: tuple[str, ...], jobs: int, overwrite: str, fsync: bool, as_json: bool) -> None:
    """Copy files and whole directories into the directory DST, or one file to the name DST.

    A directory SRC becomes DST/SRC; of SRC/, with a slash, the content goes into DST. So a command that
    was interrupted goes on where it was when it is given again. Each file appears when it is complete;
    modes, times and symlinks are kept.

    Exit code 0: all were copied, or were there already. 1: some were not; the first ones are named.
    """
    if len(paths) < 2:
        fail("name what to copy, and where to: volfs cp SRC... DST", EXIT_USAGE)
    try:
        from volfs_client.copying import copy_pairs
        from volfs_client.errors import CopyFailed
    except ImportError:
        fail("volfs cp is done by the client: pip install volfs-client (here: make setup)", EXIT_USAGE)
    told: list[CopyCounts] = []
    failure: CopyFailed | None = None

    def show(counts: CopyCounts) -> None:
        told[:] = [counts]
        done_bytes = counts.bytes + counts.unchanged_bytes
        bar.show(counts.done, counts.found, done_bytes, counts.found_bytes)

    try:
        pairs = list(_pairs(paths[:-1], paths[-1]))
        with Progress("copying") as bar:
            copy_pairs(pairs, jobs=jobs, overwrite=_OVERWRITE[overwrite], fsync=fsync, progress=show)
    except KeyboardInterrupt:
        done = f"{told[0].files} files, {size(told[0].bytes)}" if told else "nothing"
        fail(f"interrupted after {done}; given again, it goes on from there", EXIT_INTERRUPTED)
    except CopyFailed as error:
        failure = error
    except OSError as error:
        fail(f"cannot copy: {os.fsdecode(error.filename or '')}: {reason(error)}")
    _tell(told[0], failure, as_json=as_json)
    sys.exit(EXIT_FAILED if failure else 0)


def _pairs(sources: tuple[str, ...], target: str) -> Iterator[tuple[str, str]]:
    """What becomes what, by rules that do not depend on what an earlier call has made."""
    if len(sources) == 1 and not (os.path.isdir(sources[0]) or target.endswith("/") or os.path.isdir(target)):
        yield sources[0], target
        return
    taken: dict[str, str] = {}
    for source in sources:
        name = os.path.basename(source)
        path = target if name in ("", ".", "..") else os.path.join(target, name)
        if path in taken:
            fail(f"{taken[path]} and {source} would both become {path}: one call for each", EXIT_USAGE)
        taken[path] = source
        yield source, path


def _tell(counts: CopyCounts, failure: CopyFailed | None, *, as_json: bool) -> None:
    failed = failure.failed if failure else []
    if failure is not None and failure.stopped:
        warn(failure)
    else:
        for path, error in failed[:_NAMED]:
            warn(f"{path}: {reason(error)}")
        if len(failed) > _NAMED:
            warn(f"and {len(failed) - _NAMED} more")
    if as_json:
        failures = [{"path": path, "errno": error.errno, "error": reason(error)} for path, error in failed]
        click.echo(json.dumps({**asdict(counts), "failures": failures}, indent=2))
        return
    rate = size(int(counts.bytes / counts.elapsed_s)) if counts.elapsed_s else "0 B"
    text = f"copied: {counts.files} files, {size(counts.bytes)} in {counts.elapsed_s:.1f} s, {rate}/s"
    if counts.unchanged:
        text += f"; there already: {counts.unchanged} files, {size(counts.unchanged_bytes)}"
    if failed:
        text += f"; failed: {len(failed)}"
    click.echo(text)
