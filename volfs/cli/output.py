"""How the verbs fail: one line on stderr and an exit code."""

from __future__ import annotations

import sys
from typing import Final, NoReturn

import click

__all__ = [
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "EXIT_JOURNAL",
    "EXIT_USAGE",
    "fail",
    "one_line",
    "reason",
    "warn",
]

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
#: Done, but bytes stay in the journal; the next mount of the same directories commits them.
EXIT_JOURNAL: Final = 3
#: As a shell says of a program that Ctrl-C ended.
EXIT_INTERRUPTED: Final = 130


def one_line(message: object) -> str:
    """The message without line breaks: a path may have them."""
    return " ".join(str(message).split())


def reason(error: OSError) -> str:
    """What the system says about the error, without Python's decoration."""
    return one_line(error.strerror or error)


def warn(message: object) -> None:
    """Say it in one line on stderr."""
    click.echo(f"volfs: {one_line(message)}", err=True)


def fail(message: object, code: int = EXIT_FAILED) -> NoReturn:
    """Say it in one line on stderr and end with the code."""
    warn(message)
    sys.exit(code)
