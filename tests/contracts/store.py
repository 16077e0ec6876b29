"""The contract of a store as a test suite: every store and every wrapper of one runs it.

Subclass `StoreContract` in a test module and give it a `store` fixture.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from volfs.core.versions import Version
from volfs.errors import AlreadyExists, NotFound, StoreError, VersionChanged
from volfs.store.base import Changes, Expected, Observer, Owner, Stat, Store

NOBODY = Owner(None, None)


def staged_file(directory: Path, data: bytes) -> int:
    """An open file outside the store, as a commit gets it."""
    path = directory / "staged"
    path.write_bytes(data)
    fd = os.open(path, os.O_RDWR)
    path.unlink()
    return fd


async def publish(store: Store, directory: Path, path: bytes, data: bytes, *, durable: bool = False) -> Stat:
    """Commit `data` to `path` by copy."""
    fd = staged_file(directory, data)
    try:
        upload = await store.upload(fd, None, durable=durable, observe=None)
    finally:
        os.close(fd)
    try:
        return await upload.show(path, Expected.ANYTHING)
    except StoreError:
        await upload.discard()
        raise


async def content(store: Store, path: bytes) -> bytes:
    """All bytes at `path`."""
    reader = await store.open(path)
    try:
        return bytes(await reader.read(0, 1 << 20))
    finally:
        reader.close()


async def names(store: Store, path: bytes, step: int = 3) -> list[bytes]:
    """The listing of a directory, in steps."""
    scan = await store.scan(path)
    found: list[bytes] = []
    try:
        while chunk := await scan.names(step):
            found += [name for name, _ in await scan.stats(chunk)]
    finally:
        scan.close()
    return sorted(found)


def _into(seen: bytearray) -> Observer:
    """An observer that puts the pieces together."""

    def observe(offset: int, piece: memoryview) -> None:
        seen[offset : offset + len(piece)] = piece

    return observe


class StoreContract:
    """What `volfs.store.base.Store` promises."""

    async def test_published_bytes_are_read_back(self, store: Store, tmp_path: Path) -> None:
        """A commit is readable and has the size that was staged."""
        st = await publish(store, tmp_path, b"f", b"hello")
        assert st.size == 5
        assert st.version == (await store.stat(b"f")).version
        assert await content(store, b"f") == b"hello"

    async def test_publish_replaces_atomically_for_open_readers(self, store: Store, tmp_path: Path) -> None:
        """A reader that is open keeps the version that it opened."""
        await publish(store, tmp_path, b"f", b"old")
        reader = await store.open(b"f")
        await publish(store, tmp_path, b"f", b"new!")
        assert bytes(await reader.read(0, 10)) == b"old"
        assert await content(store, b"f") == b"new!"
        reader.close()

    async def test_publish_tells_every_byte(self, store: Store, tmp_path: Path) -> None:
        """The observer sees the whole content once, and where each piece belongs."""
        data = os.urandom((2 << 20) + 17)
        seen = bytearray()
        fd = staged_file(tmp_path, data)
        upload = await store.upload(fd, None, durable=True, observe=_into(seen))
        await upload.show(b"big", Expected.ANYTHING)
        os.close(fd)
        assert bytes(seen) == data

    async def test_publish_into_a_missing_directory_changes_nothing(
        self, store: Store, tmp_path: Path
    ) -> None:
        """ENOENT, and nothing is left behind."""
        with pytest.raises(NotFound):
            await publish(store, tmp_path, b"no/f", b"x")
        assert await names(store, b"") == []

    async def test_a_replaced_file_has_a_new_identity_and_version(self, store: Store, tmp_path: Path) -> None:
        """Two contents of one name never share a version."""
        first = await publish(store, tmp_path, b"f", b"same")
        reader = await store.open(b"f")  # its object lives on, so its identity cannot be given again
        second = await publish(store, tmp_path, b"f", b"same")
        reader.close()
        assert first.version != second.version
        assert first.identity != second.identity

    @pytest.mark.parametrize("theirs", [b"theirs", b"base, longer", None])
    async def test_a_version_takes_the_place_of_what_it_expects_or_of_nothing(
        self, store: Store, tmp_path: Path, theirs: bytes | None
    ) -> None:
        """W7: an upload that finds another version, or none, changes nothing and can be shown elsewhere."""
        base = (await publish(store, tmp_path, b"f", b"base")).version
        fd = staged_file(tmp_path, b"ours")
        upload = await store.upload(fd, None, durable=False, observe=None)
        os.close(fd)
        if theirs is None:
            await store.unlink(b"f")
        else:
            await publish(store, tmp_path, b"f", theirs)
        with pytest.raises(VersionChanged):
            await upload.show(b"f", base)
        assert await names(store, b"") == ([b"f"] if theirs is not None else [])
        await upload.show(b"g", Expected.NOTHING)
        assert await content(store, b"g") == b"ours"
        if theirs is not None:
            assert await content(store, b"f") == theirs

    async def test_the_expected_version_is_replaced(self, store: Store, tmp_path: Path) -> None:
        """The other side of it; and nothing is left of what was replaced."""
        base = (await publish(store, tmp_path, b"f", b"base")).version
        fd = staged_file(tmp_path, b"ours")
        st = await (await store.upload(fd, None, durable=False, observe=None)).show(b"f", base)
        os.close(fd)
        assert st.nlink == 1
        assert st.version == (await store.stat(b"f")).version
        assert await content(store, b"f") == b"ours"

    async def test_a_new_name_has_one_winner(self, store: Store, tmp_path: Path) -> None:
        """Shown where nothing was expected and something is: refused, and the other one is whole."""
        await publish(store, tmp_path, b"f", b"theirs")
        fd = staged_file(tmp_path, b"ours")
        upload = await store.upload(fd, None, durable=False, observe=None)
        os.close(fd)
        with pytest.raises(VersionChanged):
            await upload.show(b"f", Expected.NOTHING)
        await upload.discard()
        assert await content(store, b"f") == b"theirs"

    async def test_overwrite_keeps_every_name_on_one_object(self, store: Store, tmp_path: Path) -> None:
        """In place: a second name sees the new bytes, and a shorter content ends where it should."""
        await publish(store, tmp_path, b"f", b"long content")
        await store.link(b"f", b"g")
        fd = staged_file(tmp_path, b"short")
        st = await store.overwrite(fd, b"f", None)
        os.close(fd)
        assert st.nlink == 2
        assert await content(store, b"g") == b"short"

    async def test_attributes_of_the_staged_file_are_published(self, store: Store, tmp_path: Path) -> None:
        """W9: mode and mtime go with the bytes."""
        fd = staged_file(tmp_path, b"x")
        os.fchmod(fd, 0o751)
        os.utime(fd, ns=(1_000_000_007, 2_000_000_009))
        st = await (await store.upload(fd, None, durable=False, observe=None)).show(b"f", Expected.ANYTHING)
        os.close(fd)
        assert (stat.S_IMODE(st.mode), st.mtime_ns) == (0o751, 2_000_000_009)

    async def test_a_small_file_is_fetched_whole(self, store: Store, tmp_path: Path) -> None:
        """Bytes and attributes are of one version, and nothing stays open."""
        for data in (b"", b"x", os.urandom(300_000)):
            st = await publish(store, tmp_path, b"f", data)
            assert await store.fetch(b"f", len(data)) == (st, data)

    async def test_a_fetch_believes_what_is_known_only_while_it_is_so(
        self, store: Store, tmp_path: Path
    ) -> None:
        """R3: the bytes are of the version that comes with them, whatever was known before."""
        old = await publish(store, tmp_path, b"f", b"old and longer")
        st, data = await store.fetch(b"f", 100, old)
        assert (st.version, data) == (old.version, b"old and longer")
        new = await publish(store, tmp_path, b"f", b"new")
        st, data = await store.fetch(b"f", 100, old)
        assert (st.version, data) == (new.version, b"new")
        st, data = await store.fetch(b"f", 2, old)
        assert (st.version, data) == (new.version, None)
        await store.unlink(b"f")
        await store.mkdir(b"f", 0o755, NOBODY)
        with pytest.raises(StoreError):
            await store.fetch(b"f", 100, new)

    async def test_a_larger_file_is_not_fetched(self, store: Store, tmp_path: Path) -> None:
        """Its attributes are answered, and no bytes."""
        st = await publish(store, tmp_path, b"f", b"1234")
        assert await store.fetch(b"f", 3) == (st, None)

    async def test_only_regular_files_are_fetched(self, store: Store) -> None:
        """No directory, no FIFO, nothing through a symlink; and none of them hangs."""
        await store.mkdir(b"d", 0o755, NOBODY)
        await store.mknod(b"p", stat.S_IFIFO | 0o600, 0, NOBODY)
        await store.symlink(b"l", b"d", NOBODY)
        for path in (b"d", b"p", b"l", b"no"):
            with pytest.raises(StoreError):
                await store.fetch(path, 10)

    async def test_missing_names(self, store: Store) -> None:
        """Every call on a name that is not there says ENOENT."""
        calls: list[Callable[[], object]] = [
            lambda: store.stat(b"no"),
            lambda: store.open(b"no"),
            lambda: store.fetch(b"no", 1),
            lambda: store.scan(b"no"),
            lambda: store.unlink(b"no"),
            lambda: store.rmdir(b"no"),
            lambda: store.readlink(b"no"),
            lambda: store.rename(b"no", b"x", 0),
            lambda: store.change(b"no", Changes(mode=0o600)),
            lambda: store.listxattr(b"no"),
        ]
        for call in calls:
            with pytest.raises(NotFound):
                await call()  # type: ignore[misc]

    async def test_mknod_has_one_winner(self, store: Store) -> None:
        """W10 rests on this: the second one gets EEXIST."""
        st = await store.mknod(b"f", stat.S_IFREG | 0o640, 0, NOBODY)
        assert (st.size, stat.S_IMODE(st.mode)) == (0, 0o640)
        with pytest.raises(AlreadyExists):
            await store.mknod(b"f", stat.S_IFREG | 0o640, 0, NOBODY)

    async def test_directories(self, store: Store, tmp_path: Path) -> None:
        """mkdir, listing, ENOTEMPTY, rmdir."""
        assert (await store.mkdir(b"d", 0o755, NOBODY)).is_dir
        with pytest.raises(AlreadyExists):
            await store.mkdir(b"d", 0o755, NOBODY)
        for k in range(10):
            await publish(store, tmp_path, b"d/%d" % k, b"")
        assert await names(store, b"d") == [b"%d" % k for k in range(10)]
        with pytest.raises(StoreError) as raised:
            await store.rmdir(b"d")
        assert raised.value.errno == errno.ENOTEMPTY
        for k in range(10):
            await store.unlink(b"d/%d" % k)
        await store.rmdir(b"d")
        assert await names(store, b"") == []

    async def test_a_listing_leaves_out_what_vanished(self, store: Store, tmp_path: Path) -> None:
        """A name that is removed between the scan and its stat is not an error."""
        await publish(store, tmp_path, b"a", b"")
        await publish(store, tmp_path, b"b", b"")
        scan = await store.scan(b"")
        found = await scan.names(10)
        await store.unlink(b"a")
        assert [name for name, _ in await scan.stats(sorted(found))] == [b"b"]
        scan.close()

    async def test_rename_flags(self, store: Store, tmp_path: Path) -> None:
        """Replace, NOREPLACE, EXCHANGE."""
        await publish(store, tmp_path, b"a", b"A")
        await publish(store, tmp_path, b"b", b"B")
        with pytest.raises(AlreadyExists):
            await store.rename(b"a", b"b", 1)
        await store.rename(b"a", b"b", 2)
        assert (await content(store, b"a"), await content(store, b"b")) == (b"B", b"A")
        await store.rename(b"a", b"b", 0)
        assert await names(store, b"") == [b"b"]
        assert await content(store, b"b") == b"B"

    async def test_symlinks_are_kept_and_never_followed(self, store: Store) -> None:
        """D4: A link out of the volume is data; nothing resolves a path through it."""
        st = await store.symlink(b"l", b"/etc", NOBODY)
        assert stat.S_ISLNK(st.mode)
        assert await store.readlink(b"l") == b"/etc"
        for call in (store.stat, store.open, store.scan, store.unlink):
            with pytest.raises(StoreError) as raised:
                await call(b"l/passwd")
            assert raised.value.errno in (errno.ENOTDIR, errno.ELOOP)
        with pytest.raises(StoreError):
            await store.open(b"l")
        with pytest.raises(StoreError):
            await store.scan(b"l")

    async def test_change_of_attributes(self, store: Store, tmp_path: Path) -> None:
        """What is given is set to the nanosecond, what is None stays."""
        before = await publish(store, tmp_path, b"f", b"x")
        after = await store.change(b"f", Changes(mode=0o600, mtime_ns=1_234_567_890_123_456_789))
        assert stat.S_IMODE(after.mode) == 0o600
        assert after.mtime_ns == 1_234_567_890_123_456_789
        assert after.atime_ns == before.atime_ns
        assert after.identity == before.identity

    async def test_user_xattrs(self, store: Store, tmp_path: Path) -> None:
        """Set, get, list, remove; ENODATA for what is not there."""
        await publish(store, tmp_path, b"f", b"x")
        await store.setxattr(b"f", b"user.k", b"v\0v")
        assert await store.getxattr(b"f", b"user.k") == b"v\0v"
        assert await store.listxattr(b"f") == [b"user.k"]
        await store.removexattr(b"f", b"user.k")
        with pytest.raises(StoreError) as raised:
            await store.getxattr(b"f", b"user.k")
        assert raised.value.errno == errno.ENODATA

    async def test_reads_at_the_edges(self, store: Store, tmp_path: Path) -> None:
        """Short at the end, empty beyond it."""
        await publish(store, tmp_path, b"f", b"0123456789")
        reader = await store.open(b"f")
        assert bytes(await reader.read(8, 10)) == b"89"
        assert bytes(await reader.read(10, 10)) == b""
        assert bytes(await reader.read(99, 10)) == b""
        reader.close()

    async def test_reads_into_memory(self, store: Store, tmp_path: Path) -> None:
        """As any other read, and the version comes with it; what is beyond the end stays as it was."""
        data = os.urandom((1 << 20) + 4097)
        st = await publish(store, tmp_path, b"f", data)
        reader = await store.open(b"f")
        buffer = memoryview(bytearray(b"." * (1 << 20)))
        for offset, size, expected in (
            (0, 1 << 20, 1 << 20),
            (4097, 1 << 20, 1 << 20),
            (1 << 20, 8192, 4097),
            (st.size, 10, 0),
            (3, 5, 5),
        ):
            n, version, _ = await reader.read_into(buffer[:size], offset)
            assert (n, version) == (expected, st.version)
            assert buffer[:n] == data[offset : offset + n]
        assert buffer[5:8] == data[st.size - 4092 : st.size - 4089]
        reader.close()

    async def test_many_reads_into_memory_at_once(self, store: Store, tmp_path: Path) -> None:
        """Side by side they get what they would get one after another, and leave nothing open."""
        data = os.urandom(12 << 20)
        await publish(store, tmp_path, b"f", data)
        before = len(os.listdir("/proc/self/fd"))
        reader = await store.open(b"f")
        pieces = [memoryview(mmap.mmap(-1, 1 << 19)) for _ in range(24)]
        wrong = []

        async def piece(number: int) -> None:
            n, _, _ = await reader.read_into(pieces[number], number << 19)
            if pieces[number][:n] != data[number << 19 : (number + 1) << 19]:
                wrong.append(number)

        async with trio.open_nursery() as nursery:
            for number in range(24):
                nursery.start_soon(piece, number)
        assert wrong == []
        reader.close()
        with trio.fail_after(10):
            while len(os.listdir("/proc/self/fd")) > before:
                await trio.sleep(0.001)

    async def test_a_read_into_memory_tells_of_a_change(self, store: Store, tmp_path: Path) -> None:
        """The version is of after the read, if that is certain: bytes of two are never taken for one."""
        before = await publish(store, tmp_path, b"f", b"one")
        reader = await store.open(b"f")
        fd = staged_file(tmp_path, b"other")
        await store.overwrite(fd, b"f", None)
        os.close(fd)
        buffer = memoryview(bytearray(8))
        n, version, certain = await reader.read_into(buffer, 0)
        assert bytes(buffer[:n]) == b"other"
        assert version != before.version or not certain
        assert (await reader.stat()).version != before.version
        reader.close()

    async def test_a_reader_sees_a_change_in_place_in_its_version(self, store: Store, tmp_path: Path) -> None:
        """What makes mixed reads detectable: the open object's version moves with its content."""
        await publish(store, tmp_path, b"f", b"one")
        reader = await store.open(b"f")
        before: Version = (await reader.stat()).version
        fd = staged_file(tmp_path, b"other")
        await store.overwrite(fd, b"f", None)
        os.close(fd)
        assert (await reader.stat()).version != before
        reader.close()

    async def test_the_reserved_name_is_not_listed(self, store: Store, tmp_path: Path) -> None:
        """`.volfs` is hidden at the root only."""
        await store.mkdir(b"d", 0o755, NOBODY)
        await store.mkdir(b"d/.volfs", 0o755, NOBODY)
        assert await names(store, b"") == [b"d"]
        assert await names(store, b"d") == [b".volfs"]
