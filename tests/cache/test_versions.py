"""What happens to a version beside reads: adopted, given a new token, forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cache.source import M, Source, allocated, cache_files, content, running, settled, sums_of, warm
from volfs.cache.fill import BLOCK_BYTES as B
from volfs.core.spans import INODE_BYTES, cost_bytes
from volfs.core.versions import Version
from volfs.errors import VersionChanged


async def test_adopt_makes_a_complete_file(tmp_path: Path) -> None:
    """A committed staged file is the cache file from then on: no fetch, also after a restart."""
    data = content(2 * M + 77)
    staged = tmp_path / "staged"
    staged.write_bytes(data)
    staged.chmod(0o200)
    async with running(tmp_path) as cache:
        await cache.adopt(Version(b"new"), len(data), staged, sums_of(data))
        assert not staged.exists()
        file = cache.attach(Version(b"new"), len(data))
        assert file.complete
        assert bytes(await file.read(0, len(data), None)) == data
        file.detach()
        assert allocated(tmp_path) <= cache.used_bytes <= allocated(tmp_path) + 4096 + INODE_BYTES
    async with running(tmp_path) as cache:
        file = cache.attach(Version(b"new"), len(data))
        assert bytes(await file.read(0, len(data), None)) == data
        file.detach()


@pytest.mark.parametrize("case", ["too large", "wrong sums", "other size", "gone"])
async def test_adopt_of_what_does_not_fit(tmp_path: Path, case: str) -> None:
    """Whatever is wrong with it, the staged file is removed and the cache stays as it was."""
    data = content(2 * M)
    staged = tmp_path / "staged"
    if case != "gone":
        staged.write_bytes(data)
    sums = sums_of(data)[1 if case == "wrong sums" else 0 :]
    async with running(tmp_path, limit=M if case == "too large" else 64 * M) as cache:
        size = len(data) - 1 if case == "other size" else len(data)
        await cache.adopt(Version(b"new"), size, staged, sums)
        assert cache.used_bytes == 0
    assert not staged.exists()
    assert cache_files(tmp_path) == []


async def test_adopted_file_that_was_written_after_its_sums(tmp_path: Path) -> None:
    """R4: adopted bytes are believed only after a look at them."""
    data = content(2 * M)
    staged = tmp_path / "staged"
    staged.write_bytes(data[:M] + b"late" + data[M + 4 :])
    source = Source(data)
    async with running(tmp_path) as cache:
        await cache.adopt(source.version, len(data), staged, sums_of(data))
        file = cache.attach(source.version, len(data))
        assert bytes(await file.read(0, len(data), source)) == data
        assert cache.corrupt_blocks == 1
        assert source.fetched == {M // B: 1}
        file.detach()


async def test_rekey_keeps_the_bytes(tmp_path: Path) -> None:
    """Our own chmod changes the version and not the content: attached, cold and after a restart."""
    source = Source(content(2 * M))
    async with running(tmp_path) as cache:
        file = cache.attach(source.version, 2 * M)
        await file.read(0, 2 * M, source)
        await settled(cache)
        cache.rekey(Version(b"v1"), Version(b"v2"))
        assert file.version == b"v2"
        assert bytes(await file.read(0, M, None)) == source.data[:M]
        assert cache.attach(Version(b"v2"), 2 * M) is file
        file.detach()
        file.detach()
        await cache._shelf.flush()
        cache.rekey(Version(b"v2"), Version(b"v3"))
    source.version = Version(b"v3")
    async with running(tmp_path) as cache:
        await warm(cache, source)
        assert cache.hits == 2 * M // B
        old = cache.attach(Version(b"v1"), 2 * M)
        assert not old.complete
        old.detach()
    assert max(source.fetched.values()) == 1


async def test_rekey_during_a_fetch(tmp_path: Path) -> None:
    """A fetch that overlaps our own chmod is not lost: the bytes are the same."""
    source = Source(content(M))

    async def chmod(_: int) -> None:
        source.version = Version(b"v2")
        cache.rekey(Version(b"v1"), Version(b"v2"))

    async with running(tmp_path) as cache:
        source.on_read = chmod
        file = cache.attach(Version(b"v1"), M)
        assert bytes(await file.read(0, M, source)) == source.data
        file.detach()


async def test_forget_drops_when_nobody_is_attached(tmp_path: Path) -> None:
    """A deleted file is readable for those who have it, and its space comes back after them."""
    source = Source(content(2 * M))
    async with running(tmp_path) as cache:
        await warm(cache, source)
        await cache._shelf.flush()
        file = cache.attach(source.version, 2 * M)
        cache.forget(source.version)
        assert bytes(await file.read(0, M, None)) == source.data[:M]
        other = cache.attach(source.version, 2 * M)
        assert other is not file
        assert not other.complete
        other.detach()
        file.detach()
        await cache._shelf.flush()
        assert cache.used_bytes == 0
        assert cache_files(tmp_path) == []
        await warm(cache, source)
        await cache._shelf.flush()
        cache.forget(source.version)  # cold
        cache.forget(Version(b"never seen"))
    assert cache_files(tmp_path) == []


async def test_one_token_for_two_sizes(tmp_path: Path) -> None:
    """A store that gives one token to two contents is believed in neither."""
    source = Source(content(2 * M))
    async with running(tmp_path) as cache:
        await warm(cache, source)
        file = cache.attach(source.version, M)
        assert file.size == M
        with pytest.raises(VersionChanged):
            await file.read(0, 10, None)
        file.detach()
        await cache._shelf.flush()
        assert cache.used_bytes == 0


async def test_rekey_to_a_version_that_is_here(tmp_path: Path) -> None:
    """Two cache files for one version are one too many: the renamed one stays."""
    one, two = Source(content(M), b"v1"), Source(content(M), b"v2")
    async with running(tmp_path) as cache:
        await warm(cache, one)
        await warm(cache, two)
        cache.rekey(one.version, two.version)
        await cache._shelf.flush()
        assert len(cache_files(tmp_path)) == 1
        assert cache.used_bytes == cost_bytes(M // B, True, M)
        await warm(cache, two)
    assert set(two.fetched.values()) == {1}


async def test_same_version_is_the_same_object(tmp_path: Path) -> None:
    """Attachments are counted: the object lives until the last one ends."""
    async with running(tmp_path) as cache:
        one = cache.attach(Version(b"a"), 10)
        assert cache.attach(Version(b"a"), 10) is one
        one.detach()
        assert cache.attach(Version(b"a"), 10) is one
        one.detach()
        one.detach()
        with pytest.raises(AssertionError):
            one.detach()
        assert not cache._attached
        assert not cache._shelf.hot
