"""`volfs warm`: bring files into the cache, or look what of them is there."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from volfs.cli import bulk, control
from volfs.cli.output import EXIT_FAILED, EXIT_INTERRUPTED, fail, reason, warn
from volfs.cli.progress import Progress
from volfs.cli.status import size

__all__ = ["Tally", "run", "warm"]

#: Failures that are named; the others are counted.
_NAMED: Final = 10

#: A file that does not get on for so many answers, each after a second, is given up.
_PATIENCE: Final = 60

#: Room is made in steps, and a step too many would take what was just brought in.
_SPARE: Final = 32


@dataclass(slots=True)
class Tally:
    """What became of the files."""

    files: int = 0
    bytes: int = 0
    left_out: int = 0
    left_out_bytes: int = 0
    done: int = 0
    done_bytes: int = 0
    answers: dict[str, int] = field(default_factory=dict)  # sums of the numbers of all answers
    states: dict[str, list[int]] = field(default_factory=dict)  # complete, partial, absent: files, bytes
    failed: int = 0
    failures: list[bulk.Failed] = field(default_factory=list)  # the first ones

    def take(self, event: bulk.Event) -> None:
        """Count one event."""
        if isinstance(event, bulk.Found):
            self.files, self.bytes = event.files, event.bytes
            self.left_out, self.left_out_bytes = event.left_out, event.left_out_bytes
        elif isinstance(event, bulk.Part):
            self.done_bytes += event.bytes
        elif isinstance(event, bulk.Done):
            self.done += 1
            self.done_bytes += event.rest
            for name, value in event.answer.items():
                self.answers[name] = self.answers.get(name, 0) + int(value)
            state = self.states.setdefault(_state(event.answer), [0, 0])
            state[0] += 1
            state[1] += int(event.answer.get("size", event.size))
        else:
            self.failed += 1
            if len(self.failures) < _NAMED:
                self.failures.append(event)

    def complain(self) -> None:
        """Name the first failures, and count the rest."""
        for failure in self.failures:
            warn(f"{failure.path}: {os.strerror(failure.errno)}")
        if self.failed > len(self.failures):
            warn(f"and {self.failed - len(self.failures)} more")

    def document(self) -> dict[str, Any]:
        """For JSON."""
        named = [{"path": f.path, "errno": f.errno, "error": os.strerror(f.errno)} for f in self.failures]
        states = {
            state: {"files": self.states.get(state, [0, 0])[0], "bytes": self.states.get(state, [0, 0])[1]}
            for state in ("complete", "partial", "absent")
        }
        return {
            "files": self.files,
            "bytes": self.bytes,
            **states,
            "cached_bytes": self.answers.get("cached_bytes", 0),
            "damaged_bytes": self.answers.get("damaged_bytes", 0),
            "left_out": {"files": self.left_out, "bytes": self.left_out_bytes},
            "failed": self.failed,
            "failures": named,
        }


def _state(answer: dict[str, Any]) -> str:
    if answer.get("complete"):
        return "complete"
    return "partial" if answer.get("cached_bytes") else "absent"


def run(
    paths: tuple[Path, ...],
    work: bulk.Ask,
    jobs: int,
    what: str,
    room_bytes: int | None = None,
    found: Callable[[Tally], None] = lambda tally: None,
) -> Tally:
    """Do the work for all files, and show how far it is. Ctrl-C ends the program, with what was done."""
    tally = Tally()
    try:
        with bulk.events(paths, work, jobs, room_bytes) as events, Progress(what) as progress:
            for event in events:
                if event is not None:
                    tally.take(event)
                if isinstance(event, bulk.Found):
                    found(tally)
                if tally.files:
                    wanted, count = tally.files - tally.left_out, tally.bytes - tally.left_out_bytes
                    progress.show(tally.done + tally.failed, wanted, tally.done_bytes, count)
    except KeyboardInterrupt:
        fail(f"interrupted after {tally.done} files, {size(tally.done_bytes)}", EXIT_INTERRUPTED)
    except OSError as error:
        fail(f"cannot go on: {reason(error)}")
    return tally


@click.command()
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--jobs", type=click.IntRange(1, 128), default=32, show_default=True, help="Files brought in at once."
)
@click.option("--check", is_flag=True, help="Change nothing: tell what is in the cache, and verify it.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
def warm(paths: tuple[Path, ...], jobs: int, check: bool, as_json: bool) -> None:
    """Bring files, and all files below directories, whole into the cache of their mount.

    Exit code 0: all of them are in it, and with --check undamaged. 1: some are not; the first ones are named.
    2: there is no mount with a cache at the paths.
    """
    try:
        status = bulk.status_of(paths)
        tally = run(paths, _check, jobs, "checking") if check else _warm(paths, jobs, status)
    except OSError as error:
        fail(f"cannot ask the mount: {reason(error)}")
    tally.complain()
    if as_json:
        click.echo(json.dumps(tally.document(), indent=2))
    else:
        for line in _lines(tally, check=check):
            click.echo(line)
    complete = tally.states.get("complete", [0])[0]
    good = complete == tally.files and not tally.failed and not tally.answers.get("damaged_bytes")
    sys.exit(0 if good else EXIT_FAILED)


def _warm(paths: tuple[Path, ...], jobs: int, status: dict[str, Any]) -> Tally:
    room_bytes = status["cache"]["room_bytes"]
    room_bytes -= room_bytes // _SPARE

    def found(tally: Tally) -> None:
        if tally.left_out:
            warn(
                f"{size(tally.bytes)} in {tally.files} files are wanted and the cache has room for "
                f"{size(room_bytes)}: {tally.left_out} files ({size(tally.left_out_bytes)}) are left out"
            )

    tally = run(paths, _bring, jobs, "warming", room_bytes, found)
    # What made room may have been one of these files.
    after = control.read_status(paths[0])["cache"]["evicted_bytes"]
    if after == status["cache"]["evicted_bytes"]:
        return tally
    again = run(paths, _look, jobs, "looking again")
    tally.states, tally.answers = again.states, again.answers
    return tally


def _bring(path: str, count: int, part: Callable[[int], None]) -> dict[str, Any]:
    present = 0
    waited = 0
    while True:
        answer = bulk.ask(path, "user.volfs.warm")
        if answer["complete"]:
            return answer
        waited = waited + 1 if answer["cached_bytes"] <= present else 0
        if waited == _PATIENCE:
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        if answer["cached_bytes"] > present:
            part(answer["cached_bytes"] - present)
            present = answer["cached_bytes"]


def _look(path: str, count: int, part: Callable[[int], None]) -> dict[str, Any]:
    return bulk.ask(path, "user.volfs.cached")


def _check(path: str, count: int, part: Callable[[int], None]) -> dict[str, Any]:
    answer = _look(path, count, part)
    answer["damaged_bytes"] = offset = 0
    while offset >= 0 and answer["cached_bytes"]:
        checked = bulk.ask(path, f"user.volfs.verify.{offset}")
        answer["damaged_bytes"] += checked["damaged_bytes"]
        if checked["next_offset"] >= 0:
            part(checked["next_offset"] - offset)
        offset = checked["next_offset"]
    return answer


def _lines(tally: Tally, *, check: bool) -> list[str]:
    """The counts for people."""
    document = tally.document()
    lines = []
    for state in ("complete", "partial", "absent"):
        files, count = document[state]["files"], document[state]["bytes"]
        if files or state == "complete":
            lines.append(f"{state}: {files} files, {size(count)}")
    if document["partial"]["files"]:
        whole = document["complete"]["bytes"]
        lines[1] += f", of which {size(document['cached_bytes'] - whole)} are in the cache"
    if tally.left_out:
        lines.append(f"no room: {tally.left_out} files, {size(tally.left_out_bytes)}")
    if tally.failed:
        lines.append(f"failed: {tally.failed}")
    if check:
        damaged = document["damaged_bytes"]
        lines.append(f"damaged: {size(damaged)}, fetched again when read" if damaged else "no damage")
    return lines
