"""A mount by the faulty store's daemon, as a test sees it: faults in, the store's calls and the state out.

It does not know what is right. The words of a fault are those of `faulty_store`.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.conftest import VolumeFactory
from tests.mount.volume import Volume

__all__ = ["MODES", "FaultyMount", "Logged", "Look", "look"]

#: How the daemon runs: with the local store renamed into, copied into, and taken for one over a network.
MODES = {"local": "local", "cached": "cached", "remote": "cached"}

Look = dict[str, tuple[object, ...]]


def look(directory: Path) -> Look:
    """All that is in a directory: kinds, modes, links, bytes, attributes."""
    found: Look = {}
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        path = Path(entry.path)
        st = path.lstat()
        seen: list[object] = [stat.filemode(st.st_mode)]
        if stat.S_ISDIR(st.st_mode):
            seen.append(look(path))
        elif stat.S_ISLNK(st.st_mode):
            seen.append(os.readlink(path))
        elif stat.S_ISREG(st.st_mode):
            names = [name for name in os.listxattr(path) if name.startswith("user.")]
            seen += [st.st_nlink, path.read_bytes(), {name: os.getxattr(path, name) for name in names}]
        found[entry.name] = tuple(seen)
    return found


class Logged(NamedTuple):
    """A line of the faulty store's log; `met` is `met` or `-`."""

    operation: str
    path: str
    met: str


class FaultyMount:
    """See the module. After a test that it did not stand it is renewed, so that the next one says its own."""

    def __init__(self, mode: str, base: Path) -> None:
        self.mode = mode
        self._factory = VolumeFactory(base)
        self._base = base
        self._count = 0
        self._mount()

    def _mount(self) -> None:
        self._faults = Path(tempfile.mkdtemp(prefix=f"store-faults-{self.mode}-", dir=self._base))
        environment = {
            "VOLFS_TEST_FAULTS": str(self._faults),
            "VOLFS_TEST_STORE": "remote" if self.mode == "remote" else "",
        }
        # Changes made elsewhere are not the matter here, and a poll would be one more that asks the store.
        self.volume: Volume = self._factory(
            "--poll-interval", "60", mode=MODES[self.mode], environment=environment
        )
        self.volume.mount_by(Path(__file__).with_name("faulty_store.py"))
        self._log = (self._faults / "calls").open()

    def renew_unless_clean(self) -> None:
        if not self.volume.is_alive() or self.waiting() or self.volume.leftovers():
            self.volume.discard()
            self._log.close()
            self._mount()

    def finish(self) -> list[str]:
        """Unmount; what had to be forced."""
        self._log.close()
        return self._factory.finish()

    def number(self) -> int:
        """Never the same twice."""
        self._count += 1
        return self._count

    def calls(self) -> list[Logged]:
        """The store's calls since they were asked for last."""
        return [Logged(*line.rstrip("\n").rsplit(" ", 2)) for line in self._log]

    def inject(self, operation: str, words: str) -> Path:
        """A fault of one operation from now on; the file that is it."""
        number = self.number()
        hidden = self._faults / f".{number}"
        hidden.write_text(words)
        return hidden.rename(self._faults / f"{operation}@{number}")

    def waiting(self) -> int:
        """How many files wait to be committed."""
        waiting: int = self.volume.status()["commit"]["waiting"]
        return waiting
