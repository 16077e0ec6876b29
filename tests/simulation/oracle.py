"""What may have become of each record: the promises W2, W6 and W7, checked at every change of the backing.

It knows who wrote what where, what was acknowledged, and which operations may take bytes away: it sees the
backing
right after each store call. It does not know how volfs works.

The rules:
- A file in the backing holds whole records, at any time (W2).
- A store call of a host takes a record away only under an operation of that host which means to: a
  replacement, an
  unlink, a rename over the name; or an edit or truncation of a version that had the record (W7: whatever came
  later is
  in conflict with it).
- A record that was acknowledged and never shown has an excuse: an operation of its own host that came later
  on the
  same file, or a name that was taken away while its descriptor was open.
- What was gone when everything had settled does not come back.

*Invariants:* `now` counts up at each thing that happens; a deed without `end` may still take effect.
"""

from __future__ import annotations

import enum
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path as RealPath

from tests.simulation.kernel import Path
from tests.simulation.records import parse

__all__ = ["CONFLICT", "OUTSIDE", "Deed", "Kind", "Oracle", "Seen", "Writing"]

CONFLICT = ".conflict-"
_DEEPEST = 4
OUTSIDE = "outside"

#: Path -> numbers of the records in the file; None: a directory.
Seen = dict[str, tuple[int, ...] | None]


class Kind(enum.Enum):
    """What an operation may take away: nothing, whatever is there, or what it had seen."""

    APPENDS = enum.auto()
    REPLACES = enum.auto()
    EDITS = enum.auto()
    UNLINKS = enum.auto()
    RENAMES = enum.auto()


@dataclass(eq=False, slots=True)
class Deed:
    """One operation of a program. `path` is where it takes away; `source` is what a rename moves there."""

    who: str
    kind: Kind
    path: str
    start: int
    source: str | None = None
    staged: int | None = None  # when an edit had made its copy: what came later it has not seen
    returned: int | None = None
    end: int | None = None


@dataclass(eq=False, slots=True)
class Writing:
    """One record. `opened`: when its descriptor was; `shown`: when the backing first had it."""

    number: int
    who: str
    path: str
    opened: int
    start: int
    acknowledged: bool = False
    shown: int | None = None
    taken: bool = False  # from the backing, by somebody who might
    gone: bool = False  # for good


@dataclass(slots=True)
class Oracle:
    """See the module."""

    backing: RealPath
    now: int = 0
    writings: dict[int, Writing] = field(default_factory=dict)
    deeds: list[Deed] = field(default_factory=list)
    seen: Seen = field(default_factory=dict)
    conflicts: set[str] = field(default_factory=set)

    def tick(self) -> int:
        self.now += 1
        return self.now

    # -- what programs do --------------------------------------------------------

    def began(self, who: str, kind: Kind, path: Path, source: Path | None = None) -> Deed:
        """An operation that may take something away."""
        deed = Deed(who, kind, "/".join(path), self.tick(), None if source is None else "/".join(source))
        self.deeds.append(deed)
        return deed

    def writes(self, who: str, path: str, opened: int) -> Writing:
        """A new record is about to be written through a descriptor."""
        number = len(self.writings) + 1
        writing = self.writings[number] = Writing(number, who, path, opened, self.tick())
        return writing

    def returned(self, deed: Deed) -> None:
        deed.returned = self.tick()

    def owes(self, who: str, paths: Iterable[bytes]) -> None:
        """What a host still has to commit: all else that it was told to do has been done."""
        owed = {os.fsdecode(path) for path in paths}
        for deed in self.deeds:
            waits = deed.who == who and deed.returned is not None and deed.end is None
            if waits and owed.isdisjoint(self._paths(deed.path, deed.start)):
                deed.end = self.tick()

    # -- what the backing shows --------------------------------------------------

    def changed(self, who: str, operation: str) -> None:
        """Somebody changed the backing just now: look at all of it."""
        now = self.tick()
        before, self.seen = self.seen, self.look()
        for path, numbers in self.seen.items():
            name = path.rpartition("/")[2]
            if CONFLICT in name and name not in self.conflicts:
                self.conflicts.add(name)
                self._justified(who, operation, path, numbers or ())
        here = {number for numbers in self.seen.values() for number in numbers or ()}
        for number in here:
            writing = self.writings[number]
            assert not writing.gone, f"{operation} by {who} brought record {number} back: {self.seen}"
            writing.taken = False
            if writing.shown is None:
                writing.shown = now
        for path, numbers in before.items():
            for number in numbers or ():
                if number not in here and not self.writings[number].taken:
                    self._taken(who, operation, path, self.writings[number])

    def look(self) -> Seen:
        """The backing as it is, without what volfs reserves."""
        seen: Seen = {}
        for directory, directories, files in os.walk(self.backing):
            if directory == str(self.backing) and ".volfs" in directories:
                directories.remove(".volfs")
            for name in directories:
                seen[os.path.relpath(os.path.join(directory, name), self.backing)] = None
            for name in files:
                real = os.path.join(directory, name)
                path = os.path.relpath(real, self.backing)
                with open(real, "rb") as file:
                    if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                        seen[path] = parse(file.read(), f"the backing's {path}")
        return seen

    def _taken(self, who: str, operation: str, path: str, writing: Writing) -> None:
        writing.taken = True
        if who == OUTSIDE or any(self._licenses(deed, who, path, writing) for deed in self.deeds):
            return
        raise AssertionError(
            f"{operation} by {who} took record {writing.number} (of {writing.who}, "
            f"{'acknowledged' if writing.acknowledged else 'not acknowledged'}) away from {path}, "
            f"and no program asked for that; now {self.seen}"
        )

    def _licenses(self, deed: Deed, who: str, path: str, writing: Writing) -> bool:
        if deed.who != who or deed.end is not None or deed.kind is Kind.APPENDS:
            return False
        paths = self._paths(deed.path, deed.start)
        # A program that has the file open goes on with it where a conflict has put it.
        if path not in paths and path.partition(CONFLICT)[0] not in paths:
            return False
        if deed.kind is Kind.EDITS and writing.who != who and deed.staged is not None:
            return writing.shown is not None and writing.shown < deed.staged
        return True

    def _justified(self, who: str, operation: str, path: str, numbers: tuple[int, ...]) -> None:
        """A conflict needs somebody else, at the same file, since it was opened."""
        ours = [self.writings[number] for number in numbers if self.writings[number].who == who]
        ours = [writing for writing in ours if writing.shown is None]
        for writing in ours:
            paths = self._paths(writing.path, writing.opened)
            if any(self._met(deed, who, writing.opened, paths) for deed in self.deeds):
                return
        assert not ours, f"{operation} by {who} made {path}, a conflict with nobody"

    @staticmethod
    def _met(deed: Deed, who: str, since: int, paths: set[str]) -> bool:
        """Whether it is somebody else's and touched one of the paths, or a directory above, since then."""
        if deed.who == who or (deed.end is not None and deed.end < since):
            return False
        touched = [deed.path, *([deed.source] if deed.source is not None else [])]
        return any(_covers(one, path) for one in touched for path in paths)

    def _paths(self, path: str, since: int) -> set[str]:
        """All paths that the file of a path may have had since."""
        paths = {path}
        todo = [path]
        while todo:
            at = todo.pop()
            for deed in self.deeds:
                if deed.kind is not Kind.RENAMES or (deed.end is not None and deed.end < since):
                    continue
                assert deed.source is not None
                if at == deed.source or at.startswith(deed.source + "/"):
                    moved = deed.path + at[len(deed.source) :]
                    # Renames in a circle would go on for ever; no path of the simulation is that deep.
                    if moved not in paths and moved.count("/") < _DEEPEST:
                        paths.add(moved)
                        todo.append(moved)
        return paths

    # -- what must be there --------------------------------------------------------

    def settled(self, *, open_files: bool) -> None:
        """Nothing waits to be committed anywhere: what was acknowledged is there, or has an excuse."""
        for writing in self.writings.values():
            if writing.shown is None and writing.acknowledged and not self._excused(writing):
                raise AssertionError(
                    f"record {writing.number} of {writing.who}, written to {writing.path} and acknowledged, "
                    f"is lost; the backing has {self.seen}"
                )
            if (writing.taken or writing.shown is None) and not open_files:
                writing.gone = True

    def _excused(self, writing: Writing) -> bool:
        paths = self._paths(writing.path, writing.opened)
        for deed in self.deeds:
            if deed.kind is Kind.APPENDS or not any(_covers(deed.path, path) for path in paths):
                continue
            returned = self.now if deed.returned is None else deed.returned
            if deed.who == writing.who and returned >= writing.start:
                return True
            if deed.start <= writing.start and (deed.end is None or deed.end >= writing.opened):
                return True  # the descriptor's file had no name any more
        return False


def _covers(taken: str, path: str) -> bool:
    return path == taken or path.startswith(taken + "/")
