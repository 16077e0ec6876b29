"""What a store promises of commits that were interrupted in the middle of an exchange.

A part of the contract (`tests.contracts.store`), for test modules to subclass along with it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.contracts.store import content, names, publish, staged_file
from volfs.core.versions import Version
from volfs.errors import VersionChanged
from volfs.store.base import Expected, Store

__all__ = ["ExchangeContract", "Killed", "interrupted"]


class Killed(BaseException):
    """In place of the end of the process."""


async def interrupted(
    store: Store, directory: Path, monkeypatch: pytest.MonkeyPatch, path: bytes, base: Version
) -> str | None:
    """Commit `ours` to `path`, and die right after the exchange; the trace. None: the store knows none."""
    fd = staged_file(directory, b"ours")
    upload = await store.upload(fd, None, durable=False, observe=None, replaces=True)
    trace = upload.trace(base)

    def point(name: str) -> None:
        if name == "show.exchanged":
            raise Killed

    died = False
    with monkeypatch.context() as patch:
        patch.setattr("volfs.crash.point", point)
        try:
            await upload.show(path, base)
        except Killed:
            died = True
        except VersionChanged:
            pass
    os.close(fd)
    copy = upload.descriptor()
    if copy is not None:
        os.close(copy)
    if died:
        return trace
    await upload.discard()  # it was compared under a lock file, and is where it was
    assert await store.keep_left(trace, path) is None
    return None


class ExchangeContract:
    """See the module."""

    async def test_a_version_that_an_interrupted_commit_left_is_kept(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """W7e: what others put there in the moment before the exchange gets a name, once."""
        base = (await publish(store, tmp_path, b"f", b"base")).version
        await publish(store, tmp_path, b"f", b"theirs")
        trace = await interrupted(store, tmp_path, monkeypatch, b"f", base)
        if trace is None:
            return
        assert await content(store, b"f") == b"ours"
        kept_as = await store.keep_left(trace, b"f")
        assert kept_as is not None
        assert await content(store, kept_as) == b"theirs"
        assert await store.keep_left(trace, b"f") is None
        assert await names(store, b"") == [b"f", kept_as]

    async def test_what_was_to_be_replaced_is_not_kept(
        self, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The commit was done but for its last step: nobody's version was lost."""
        base = (await publish(store, tmp_path, b"f", b"base")).version
        trace = await interrupted(store, tmp_path, monkeypatch, b"f", base)
        if trace is not None:
            assert await store.keep_left(trace, b"f") is None
        assert await names(store, b"") == [b"f"]

    async def test_a_copy_that_was_not_exchanged_is_not_kept(self, store: Store, tmp_path: Path) -> None:
        """The crash came before: it is ours, and its bytes are staged."""
        base = (await publish(store, tmp_path, b"f", b"base")).version
        fd = staged_file(tmp_path, b"ours")
        upload = await store.upload(fd, None, durable=False, observe=None, replaces=True)
        os.close(fd)
        assert [upload.trace(Expected.NOTHING), upload.trace(Expected.ANYTHING)] == ["", ""]
        assert await store.keep_left(upload.trace(base), b"f") is None
        await store.clear_left()  # of an earlier daemon: this copy is of this one
        await upload.show(b"f", base)
        assert await content(store, b"f") == b"ours"
        assert await names(store, b"") == [b"f"]
