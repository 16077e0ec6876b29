"""Somebody who works on the backing itself, each time in one step: no volfs, no locks, no warning."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from tests.simulation.kernel import Path
from tests.simulation.oracle import OUTSIDE, Kind, Oracle
from tests.simulation.records import record

__all__ = ["Outside"]


class Outside:
    """See the module."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle

    def do(self, what: str, path: Path) -> None:
        """Somebody on the backing's own host, in one step."""
        place = self._oracle.backing.joinpath(*path)
        if what == "append":
            if place.is_file():
                self.write(path, "r+b")
        elif what == "replace":
            if place.parent.is_dir() and not place.is_dir():
                self.write(path, "xb")
        elif what == "delete":
            self._take(place.is_file(), path, place.unlink)
        elif what == "remove":
            self._take(place.is_dir(), path, partial(shutil.rmtree, place))
        elif what == "mkdir":
            with suppress(OSError):
                place.mkdir()
                self._oracle.changed(OUTSIDE, what)

    def write(self, path: Path, mode: str) -> None:
        """`xb`: a new file takes the name; `r+b`: in place, at the end."""
        deed = self._oracle.began(OUTSIDE, Kind.REPLACES if mode == "xb" else Kind.APPENDS, path)
        writing = self._oracle.writes(OUTSIDE, "/".join(path), deed.start)
        place = self._oracle.backing.joinpath(*path)
        fresh = self._oracle.backing / ".volfs-fresh" if mode == "xb" else place
        with fresh.open(mode) as file:
            file.seek(0, os.SEEK_END)
            file.write(record(writing.number))
        if fresh != place:
            fresh.rename(place)
        writing.acknowledged = True
        self._oracle.returned(deed)
        self._oracle.owes(OUTSIDE, ())
        self._oracle.changed(OUTSIDE, "a write")

    def _take(self, possible: bool, path: Path, take: Callable[[], None]) -> None:
        if possible:
            deed = self._oracle.began(OUTSIDE, Kind.UNLINKS, path)
            take()
            self._oracle.returned(deed)
            self._oracle.owes(OUTSIDE, ())
            self._oracle.changed(OUTSIDE, "a removal")
