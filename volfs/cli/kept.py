"""The kept files of a mount or of a cache directory: the same four verbs for both.

A daemon is asked through its control plane. For a cache directory without one
`commit.kept` does here what it does there.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

from volfs.cli import control, target
from volfs.errors import SetupError, VolfsError

if TYPE_CHECKING:
    from volfs.commit.kept import Kept

__all__ = ["KeptFiles", "kept_files"]

T = TypeVar("T")

_LIST: Final = "user.volfs.recover"
_PUBLISH: Final = "user.volfs.recover.publish"
_DISCARD: Final = "user.volfs.recover.discard"
_LAST: Final = "user.volfs.recover.last"


class KeptFiles(Protocol):
    """What can be done about kept files. OSError with the true errno, or SetupError."""

    def all(self) -> tuple[list[dict[str, Any]], int]:
        """A document for each, oldest first, and how many more there are."""
        ...

    def publish(self, id_: str, to: str | None) -> dict[str, Any]:
        """Commit it; `path` and `conflict` say where it is now."""
        ...

    def discard(self, id_: str) -> None:
        """Delete it."""
        ...

    def location(self) -> Path:
        """The directory that has the bytes, by id."""
        ...


def kept_files(where: Path) -> KeptFiles:
    """Those of TARGET."""
    found = target.find(where)
    return _OfMount(found.mountpoint) if isinstance(found, target.Mounted) else _OfDirectory(found.cache_dir)


class _OfMount:
    def __init__(self, mountpoint: Path) -> None:
        self._mountpoint = mountpoint

    def all(self) -> tuple[list[dict[str, Any]], int]:
        document = json.loads(control.read(self._mountpoint, _LIST, control.STATUS_DEADLINE_S))
        return document["kept"], document["more"]

    def publish(self, id_: str, to: str | None) -> dict[str, Any]:
        return self._ask(_PUBLISH, {"id": id_, "to": to})

    def discard(self, id_: str) -> None:
        self._ask(_DISCARD, {"id": id_})

    def _ask(self, name: str, wish: dict[str, Any]) -> dict[str, Any]:
        control.write(self._mountpoint, name, json.dumps(wish).encode())
        # How long it takes to bring the bytes into the store is the store's matter.
        results = json.loads(control.read(self._mountpoint, _LAST, None))
        result: dict[str, Any] = next((r for r in reversed(results) if r["id"] == wish["id"]), {})
        if result.get("errno", errno.EIO):
            raise OSError(result.get("errno", errno.EIO), result.get("error", "the daemon gave no answer"))
        return result

    def location(self) -> Path:
        from volfs.commit.record import staging_path

        return staging_path(Path(control.read_status(self._mountpoint)["cache_dir"]))


class _OfDirectory:
    def __init__(self, cache_dir: Path) -> None:
        self._cache_dir = cache_dir

    def all(self) -> tuple[list[dict[str, Any]], int]:
        async def work(kept: Kept) -> list[dict[str, Any]]:
            return [file.document() for file in await kept.files()]

        return self._run(work, []), 0

    def publish(self, id_: str, to: str | None) -> dict[str, Any]:
        from volfs.commit.kept import volume_path

        async def work(kept: Kept) -> dict[str, Any]:
            placed = await kept.publish(id_, None if to is None else volume_path(to))
            return {"path": os.fsdecode(placed.path), "conflict": placed.conflict}

        return self._run(work, {})

    def discard(self, id_: str) -> None:
        async def work(kept: Kept) -> None:
            await kept.discard(id_)

        self._run(work, None)

    def location(self) -> Path:
        from volfs.commit.record import staging_path

        return staging_path(self._cache_dir)

    def _run(self, work: Callable[[Kept], Awaitable[T]], nothing: T) -> T:
        """`work` on the directory's kept files; `nothing` if nothing is staged at all."""
        import trio

        from volfs.telemetry import set_up_logging

        async def main() -> T:
            with target.opened(self._cache_dir) as directory:
                if directory.staging is None:
                    return nothing
                with _opened(directory) as kept:
                    return await work(kept)

        set_up_logging("warning")
        try:
            return trio.run(main)
        except SetupError:
            raise
        except sqlite3.Error as error:
            raise SetupError(f"the journal of {self._cache_dir} cannot be used: {error}") from error
        except VolfsError as error:
            raise OSError(error.errno, str(error)) from error


@contextmanager
def _opened(directory: target.Directory) -> Iterator[Kept]:
    from volfs.commit.journal import Journal
    from volfs.commit.kept import Kept
    from volfs.store.directory import DirectoryStore

    assert directory.staging is not None
    store = DirectoryStore(directory.backing)
    try:
        store.open_staging(directory.mount_id)
        journal = Journal(directory.journal)
        try:
            yield Kept(store, directory.staging, journal)
            if not journal.entries():
                store.remove_staging()
        finally:
            journal.close()
    finally:
        store.close()
