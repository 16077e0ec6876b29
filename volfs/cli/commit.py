"""`volfs commit`: publish what is staged under a path, now."""

from __future__ import annotations

from pathlib import Path

import click

from volfs.cli import control
from volfs.cli.output import fail, reason

__all__ = ["commit"]


@click.command()
@click.argument("path", type=click.Path(path_type=Path))
def commit(path: Path) -> None:
    """Commit the file PATH, or everything under the directory PATH, and return when it is done."""
    try:
        if not control.on_volfs(path):
            fail(f"{path} is not on a volfs mount")
        # No deadline: how long a commit takes is the store's matter, and Ctrl-C works.
        control.commit(path, None)
    except OSError as error:
        fail(f"cannot commit {path}: {reason(error)}")
