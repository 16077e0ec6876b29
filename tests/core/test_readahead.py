"""Fetching ahead: what each kind of reader makes it do."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from volfs.core.readahead import Readahead
from volfs.core.spans import Extent

M = 1 << 20
FILE = 1 << 30


def sequence(cursor: Readahead, start: int, count: int, waited: bool, size: int = M) -> list[Extent]:
    """The extents asked for by `count` reads in order."""
    found = []
    for i in range(count):
        extent = cursor.advance(start + i * size, size, FILE, waited)
        if extent is not None:
            found.append(extent)
    return found


def test_first_read_asks_for_nothing() -> None:
    """One read shows no direction, be it at the start of the file."""
    assert Readahead().advance(0, M, FILE, True) is None


def test_second_read_in_order_begins_a_window() -> None:
    """The read that continues the first one is followed by one request of the kernel's size."""
    cursor = Readahead()
    cursor.advance(0, M, FILE, True)
    assert cursor.advance(M, M, FILE, True) == Extent(2 * M, M)


def test_window_doubles_while_the_reader_waits() -> None:
    """Extents follow each other without a gap, each up to twice as far ahead, up to 96 MiB."""
    found = sequence(Readahead(), 0, 200, waited=True)
    assert [extent.size for extent in found[:3]] == [M, 2 * M, 3 * M]
    for left, right in pairwise(found):
        assert left.end == right.offset
    assert found[-1].end - 200 * M <= 96 * M
    assert found[-1].end - 200 * M >= 80 * M


def test_window_stays_when_nobody_waits() -> None:
    """A reader that finds everything there needs no more."""
    assert all(extent.size <= M for extent in sequence(Readahead(), 0, 100, waited=False))


def test_random_reads_ask_for_nothing() -> None:
    """Reads at distances that are no disorder of the kernel cost what they read."""
    cursor = Readahead()
    places = [(i * 7919) % 997 for i in range(500)]
    assert all(cursor.advance(place * M, 4096, FILE, True) is None for place in places)


def test_random_reads_in_a_small_file_ask_for_nothing() -> None:
    """Near each other is not in order."""
    cursor = Readahead()
    places = [(i * 37 + 11) % 101 for i in range(100)]
    assert all(cursor.advance(p * 8192, 4096, 101 * 8192, True) is None for p in places)


def test_backward_reads_ask_for_nothing() -> None:
    """A file that is read from its end has no bytes ahead."""
    cursor = Readahead()
    assert all(cursor.advance(FILE - (i + 1) * M, M, FILE, True) is None for i in range(100))


def test_several_streams_keep_their_windows() -> None:
    """Four places read in turn each fetch ahead, as one place does."""
    cursor = Readahead()
    alone = sequence(Readahead(), 0, 20, waited=True)
    found: dict[int, list[Extent]] = {place: [] for place in range(4)}
    for i in range(20):
        for place in found:
            extent = cursor.advance(place * 200 * M + i * M, M, FILE, True)
            if extent is not None:
                found[place].append(extent)
    for place, extents in found.items():
        assert [e.offset - place * 200 * M for e in extents] == [e.offset for e in alone]


def test_disorder_of_the_kernel_is_no_seek() -> None:
    """Requests that arrive a little out of order do not end a stream."""
    cursor = Readahead()
    sequence(cursor, 0, 10, waited=True)
    cursor.advance(11 * M, M, FILE, True)  # the early one
    assert cursor.advance(10 * M, M, FILE, True) is None  # the late one
    after = sequence(cursor, 12 * M, 30, waited=True)
    assert after
    assert max(e.end for e in after) > 50 * M


def test_far_seek_begins_anew() -> None:
    """After a jump the window is small again."""
    cursor = Readahead()
    sequence(cursor, 0, 50, waited=True)
    found = sequence(cursor, 500 * M, 3, waited=True)
    assert found[0] == Extent(502 * M, M)


def test_caller_without_memory_gets_nothing() -> None:
    """With no memory to spare nothing is asked for, and the window comes back after."""
    cursor = Readahead()
    sequence(cursor, 0, 20, waited=True)
    position = 20 * M
    for _ in range(120):
        assert cursor.advance(position, M, FILE, True, most=0) is None
        position += M
    assert cursor.advance(position, M, FILE, True) is not None


READS = st.lists(
    st.tuples(st.integers(0, 300), st.integers(1, 5), st.booleans(), st.integers(0, 40)), max_size=80
)


@given(READS, st.integers(1, 300 * M))
def test_never_outside_the_file_nor_above_the_limit(
    reads: list[tuple[int, int, bool, int]], file_size: int
) -> None:
    """Whatever is read: extents lie behind the read, inside the file, and within the window allowed."""
    cursor = Readahead()
    for place, size, waited, most in reads:
        offset = min(place * M, file_size - 1)
        extent = cursor.advance(offset, size * M, file_size, waited, most * M)
        if extent is not None:
            end = min(offset + size * M, file_size)
            assert extent.size > 0
            assert end <= extent.offset
            assert extent.end <= min(file_size, end + most * M)


@given(st.integers(1, 200), st.sampled_from([4096, 128 << 10, M]), st.lists(st.booleans(), min_size=200))
def test_sequential_reader_is_asked_for_each_byte_once(count: int, size: int, waits: list[bool]) -> None:
    """Extents of one stream never overlap and leave no gap."""
    cursor = Readahead()
    last = None
    for i in range(count):
        extent = cursor.advance(i * size, size, FILE, waits[i])
        if extent is not None:
            assert last is None or extent.offset >= last
            last = extent.end


def test_a_window_is_split_into_many_requests() -> None:
    """Of whatever size it is: so that they fly side by side, larger ones once it has grown."""
    cursor = Readahead()
    assert cursor.piece_bytes == 0
    sizes = []
    for i in range(60):
        cursor.advance(i * M, M, FILE, True)
        sizes.append(cursor.piece_bytes)
    assert sizes == sorted(sizes)
    assert sizes[1] == M // 16
    assert sizes[-1] == 6 * M


def test_large_steps_once_the_window_is_large() -> None:
    """Then what is asked for at once is worth large requests; not for each read a little."""
    found = sequence(Readahead(), 0, 300, waited=True)
    assert all(extent.size >= 8 * M for extent in found[20:])


def test_sixteen_streams_keep_their_windows() -> None:
    """As many readers of one file, or places that one reads in turn."""
    cursor = Readahead()
    asked = [0] * 16
    for i in range(30):
        for place in range(16):
            if cursor.advance(place * 50 * M + i * M, M, FILE, True) is not None:
                asked[place] += 1
    assert min(asked) == max(asked) > 5
