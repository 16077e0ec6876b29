"""`volfs fsck`: whether journal, staged files, cache index and cache files agree, and every checksum holds.

A daemon checks itself while it serves. A cache directory without one is checked
here, under its lock.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from volfs.cli import control, target
from volfs.cli.output import fail, reason
from volfs.cli.status import size
from volfs.errors import VolfsError

if TYPE_CHECKING:
    from volfs.commit.check import JournalReport

__all__ = ["EXIT_DAMAGED", "EXIT_NOT_DONE", "EXIT_REPAIRED", "fsck"]

EXIT_REPAIRED: Final = 1
#: As fsck(8): errors are left.
EXIT_DAMAGED: Final = 4
#: As fsck(8): the check itself failed.
EXIT_NOT_DONE: Final = 8

_FSCK: Final = "user.volfs.fsck"


@click.command()
@click.argument("where", metavar="TARGET", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--repair/--no-repair", default=True, help="Repair what is safe to repair. [default: yes]")
def fsck(where: Path, as_json: bool, repair: bool) -> None:
    """Check a mount, or the cache directory of one that is not running.

    Damaged blocks of the cache are dropped, and fetched again. Staged bytes are never deleted: those that
    the journal does not know are kept for `volfs recover`.

    Exit code 0: no damage. 1: all of it is repaired. 4: damage is left, lost bytes included. 8: not checked.
    """
    try:
        found = target.find(where)
        if isinstance(found, target.Mounted):
            report = _of_mount(found.mountpoint, repair=repair)
        else:
            report = _of_directory(found.cache_dir, repair=repair)
    except OSError as error:
        fail(f"{where} cannot be checked: {reason(error)}", EXIT_NOT_DONE)
    except (VolfsError, sqlite3.Error) as error:
        fail(f"{where} cannot be checked: {error}", EXIT_NOT_DONE)
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        for line in lines(report, repair=repair):
            click.echo(line)
    if report["remaining"]:
        sys.exit(EXIT_DAMAGED)
    sys.exit(EXIT_REPAIRED if report["found"] else 0)


def _of_mount(mountpoint: Path, *, repair: bool) -> dict[str, Any]:
    control.write(mountpoint, _FSCK, json.dumps({"repair": repair}).encode())
    # As long as reading the whole cache takes; Ctrl-C works.
    report = json.loads(control.read(mountpoint, _FSCK, None))
    if not isinstance(report, dict):
        fail(f"the check of {mountpoint} failed; the daemon's log says why", EXIT_NOT_DONE)
    return report


def _of_directory(cache_dir: Path, *, repair: bool) -> dict[str, Any]:
    import trio

    from volfs.cache.unused import look_at, mend_at
    from volfs.commit.check import document
    from volfs.telemetry import set_up_logging

    async def main() -> dict[str, Any]:
        with target.opened(cache_dir) as directory:
            journal = await (_mend_journal(directory) if repair else _look_at_journal(directory))
            cache = None
            if directory.cache is not None:
                cache = await (mend_at(directory.cache) if repair else look_at(directory.cache))
            return document(journal, cache)

    set_up_logging("warning")
    return trio.run(main)


async def _mend_journal(directory: target.Directory) -> JournalReport:
    from volfs.commit.check import JournalCheck, JournalReport, verdict
    from volfs.commit.journal import Journal

    damage = verdict(directory.journal)
    journal = Journal(directory.journal)  # reads what can be read, and sets the rest aside
    try:
        report = JournalReport()
        if directory.staging is not None:
            report = await JournalCheck(directory.staging, journal).mend()
    finally:
        journal.close()
    if journal.damaged:
        report.damage = damage or "its last record was torn"
    return report


async def _look_at_journal(directory: target.Directory) -> JournalReport:
    from volfs.commit.check import JournalCheck, JournalReport, verdict
    from volfs.commit.journal import Journal

    with target.journal_copy(directory.journal) as copy:
        damage = verdict(copy)
        journal = Journal(copy)
        report = JournalReport()
        if directory.staging is not None:
            report = await JournalCheck(directory.staging, journal).look()
        journal.close()
    if journal.damaged:
        report.damage = damage or "its last record is torn"
        report.unmended += 1
    return report


def lines(report: dict[str, Any], *, repair: bool) -> list[str]:
    """The report for people: the counts, then a line for each kind of damage."""
    out: list[str] = []
    for part in (_journal, _cache):
        out += part(report, repair=repair)
    if not report["found"]:
        out.append("no damage")
    else:
        out.append(f"found {report['found']}, repaired {report['repaired']}, left {report['remaining']}")
    return out


def _journal(report: dict[str, Any], *, repair: bool) -> list[str]:
    j = report["journal"]
    out = [f"journal: records {j['rows']}, staged files {j['files']}, kept for volfs recover {j['kept']}"]
    if j["damage"]:
        out.append(f"  damaged: {j['damage']}")
    if j["quarantined"]:
        done = "; kept for volfs recover" if repair else ""
        out.append(f"  staged files without a record: {j['quarantined']}{done}")
    if j["lost"]:
        out.append(f"  files whose staged bytes are lost: {j['lost']}")
        out += [f"    {_printable(name)}" for name in j["lost_files"]]
    if j["held"]:
        out.append(
            f"  staged files that were removed while they are open, volfs commit saves them: {j['held']}"
        )
        out += [f"    {_printable(name)}" for name in j["held_files"]]
    return out


def _cache(report: dict[str, Any], *, repair: bool) -> list[str]:
    c = report["cache"]
    if c is None:
        return []
    out = [f"cache: files {c['files']}, blocks {c['blocks']}, verified {size(c['bytes'])}"]
    if c["index_damage"]:
        out.append(f"  the index is damaged: {c['index_damage']}")
    for key, text, done in (
        ("damaged_blocks", "damaged blocks", "dropped"),
        ("missing_files", "missing files", "forgotten"),
        ("foreign_files", "files that the index does not know", "removed"),
        ("bloated_files", "files with more space than their blocks need", "given back"),
        ("skipped_files", "files that could not be looked at", "the log says why"),
    ):
        if c[key]:
            out.append(f"  {text}: {c[key]}{', ' + done if repair else ''}")
    return out


def _printable(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
