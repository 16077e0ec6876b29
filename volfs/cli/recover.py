"""`volfs recover`: what an earlier daemon was given and nobody was told to be safe.

The next mount commits by itself what was acknowledged. The rest is kept; these
verbs show it, publish it or discard it. They overwrite nothing that the bytes
were not made from.
"""

from __future__ import annotations

import errno
import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import click

from volfs.cli.kept import KeptFiles, kept_files
from volfs.cli.output import EXIT_USAGE, fail, one_line, reason, warn
from volfs.cli.status import size
from volfs.errors import SetupError

__all__ = ["recover"]

#: So many letters of an id tell a million files apart.
_SHORT: Final = 12

_TARGET = click.argument("target", type=click.Path(path_type=Path))
_ID = click.argument("id_", metavar="ID")


@click.group()
def recover() -> None:
    """Show, publish or discard unfinished files that a killed daemon left.

    TARGET is a mount point, or the cache directory of a mount that is not running. ID may be abbreviated.
    """


@recover.command("list")
@_TARGET
@click.option("--json", "as_json", is_flag=True, help="Print a JSON document.")
def list_(target: Path, as_json: bool) -> None:
    """List the kept files: id, path, bytes, when, and why."""
    with _failing(target):
        files, more = kept_files(target).all()
    if as_json:
        click.echo(json.dumps({"kept": files, "more": more}, indent=2))
        return
    if files:
        _print([("ID", "PATH", "BYTES", "CREATED", "REASON"), *(_row(file) for file in files)])
    if more:
        warn(f"{more} more are not shown; publish or discard some of these first")


@recover.command()
@_TARGET
@_ID
@click.option("--content", is_flag=True, help="Write the file's bytes to stdout instead.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON document.")
def show(target: Path, id_: str, content: bool, as_json: bool) -> None:
    """Show one kept file; its bytes only on the host of the daemon, and as a user who may read them."""
    with _failing(target):
        kept = kept_files(target)
        file = _find(kept, id_)
        path = kept.location() / file["id"]
        if content:
            with path.open("rb") as source:
                shutil.copyfileobj(source, sys.stdout.buffer)
            sys.stdout.buffer.flush()
            return
    document = {**file, "file": str(path)}
    if as_json:
        click.echo(json.dumps(document, indent=2))
    else:
        _print([(name, str(value)) for name, value in {**document, "created": _when(file)}.items()])


@recover.command()
@_TARGET
@_ID
@click.option("--to", metavar="PATH", help="Where to, relative to the volume. [default: where it belongs]")
def publish(target: Path, id_: str, to: str | None) -> None:
    """Commit a kept file. If its place is taken by another file, it goes beside that."""
    with _failing(target):
        kept = kept_files(target)
        placed = kept.publish(_find(kept, id_)["id"], to)
    if placed["conflict"]:
        warn("its place is taken by a file that it was not made from; it was published beside that")
    click.echo(_printable(placed["path"]))


@recover.command()
@_TARGET
@_ID
@click.option("--yes", is_flag=True, help="Say that the bytes are not wanted.")
def discard(target: Path, id_: str, yes: bool) -> None:
    """Delete a kept file for good."""
    with _failing(target):
        kept = kept_files(target)
        file = _find(kept, id_)
        if not yes:
            what = f"{file['id'][:_SHORT]} ({_name(file)}, {_bytes(file)})"
            fail(f"{what} exists nowhere else; to delete it, add --yes", EXIT_USAGE)
        kept.discard(file["id"])


def _find(kept: KeptFiles, prefix: str) -> dict[str, Any]:
    """The one kept file whose id begins so."""
    files, _ = kept.all()
    found = [file for file in files if prefix and file["id"].startswith(prefix)]
    if not found:
        raise OSError(errno.ENOENT, f"there is no kept file {prefix!r}")
    if len(found) > 1:
        raise OSError(errno.EINVAL, f"{len(found)} kept files begin with {prefix!r}")
    return found[0]


@contextmanager
def _failing(target: Path) -> Iterator[None]:
    """What goes wrong, as one line and an exit code."""
    try:
        yield
    except SetupError as error:
        fail(error)
    except TimeoutError:
        fail(f"{target} does not answer")
    except OSError as error:
        fail(reason(error), EXIT_USAGE if error.errno == errno.EINVAL else 1)


def _row(file: dict[str, Any]) -> tuple[str, ...]:
    return (file["id"][:_SHORT], _name(file), _bytes(file), _when(file), file["reason"])


def _name(file: dict[str, Any]) -> str:
    return str(file["path"]) or "(not known)"


def _bytes(file: dict[str, Any]) -> str:
    return "gone" if file["bytes"] is None else size(file["bytes"])


def _when(file: dict[str, Any]) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(file["created"]))


def _printable(text: str) -> str:
    return one_line(text.encode(errors="backslashreplace").decode())


def _print(rows: list[tuple[str, ...]]) -> None:
    """Columns as wide as their contents: an id or a path that is cut is of no use."""
    cells = [[_printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(padded).rstrip())
