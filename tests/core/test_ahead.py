"""What is copied ahead of a file's end: a table of stories, and a model that copies bytes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from volfs.core import ahead
from volfs.core.ahead import PART_BYTES as P
from volfs.core.ahead import START_BYTES, Parts
from volfs.core.spans import Extent


def written(size: int, existing: int = 0) -> Parts:
    """Parts of a file to which so much was appended."""
    parts = Parts(existing)
    parts.wrote(existing, size)
    return parts


@pytest.mark.parametrize(
    ("existing", "size", "due"),
    [
        (0, START_BYTES - 1, False),
        (0, START_BYTES, True),
        (10 * START_BYTES, 1, False),
        (P - 1, START_BYTES, True),
    ],
)
def test_due(existing: int, size: int, due: bool) -> None:
    """A large file is worth it, a small one not, nor a little more at the end of a large one."""
    assert written(size, existing).due is due


def test_scattered_writes_are_not_copied_ahead() -> None:
    """Nobody knows when they are done."""
    parts = Parts()
    for number in range(100):
        parts.wrote((number * 7 % 100) * P, P)
    assert parts.written < START_BYTES
    assert not parts.due


def test_parts_are_offered_once_and_whole() -> None:
    """In order, at most so many, and none that is still being written."""
    parts = written(3 * P + 1)
    assert parts.begin(2) == [Extent(0, P), Extent(P, P)]
    parts.ended()
    assert parts.begin(9) == [Extent(2 * P, P)]
    parts.ended()
    assert parts.begin(9) == []
    assert parts.rest(3 * P + 1) == [Extent(3 * P, 1)]


@pytest.mark.parametrize("when", ["while", "after"])
def test_what_changes_is_left_to_the_end(when: str) -> None:
    """W3b: a part that is written to while it is copied, or after, is copied again at the end."""
    parts = written(4 * P)
    parts.begin(4)
    if when == "after":
        parts.ended()
    parts.changing(2 * P - 1, 2)
    if when == "while":
        parts.ended()
    assert parts.begin(4) == []
    parts.ended()
    assert parts.rest(4 * P) == [Extent(P, 2 * P)]


def test_a_cut_takes_parts_away() -> None:
    """What is beyond, and the part that the new end is in, are not there any more; they may come again."""
    parts = written(4 * P)
    parts.begin(4)
    parts.ended()
    parts.cut(2 * P + 5)
    assert parts.rest(2 * P + 5) == [Extent(2 * P, 5)]
    parts.wrote(2 * P + 5, P)
    assert parts.begin(9) == [Extent(2 * P, P)]
    parts.ended()
    assert parts.rest(3 * P + 5) == [Extent(3 * P, 5)]


def test_a_cut_while_parts_are_copied() -> None:
    """They are not believed, though there may be as many bytes again when they have been copied."""
    parts = written(3 * P)
    parts.begin(3)
    parts.cut(P)
    parts.wrote(P, 2 * P)
    parts.ended()
    assert parts.rest(3 * P) == [Extent(P, 2 * P)]


@settings(max_examples=300)
@given(data=st.data())
def test_what_is_there_at_the_end_is_the_file(data: st.DataObject) -> None:
    """Whatever is written, cut and copied in whatever order: what was brought, and the rest, is all of it."""
    part = 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ahead, "PART_BYTES", part)
        file, copy, parts = bytearray(), bytearray(), Parts()
        flying: list[tuple[Extent, int]] = []  # copied so far: half of each part now, half when it ends
        for step in data.draw(
            st.lists(st.sampled_from(["append", "write", "cut", "begin", "end"]), max_size=30)
        ):
            if step == "append" or step == "write":
                offset = len(file) if step == "append" else data.draw(st.integers(0, len(file)))
                piece = data.draw(st.binary(min_size=1, max_size=9))
                parts.changing(offset, len(piece))
                if not flying and data.draw(st.booleans()):  # the copy begins in the middle of the write
                    flying = [(extent, part // 2) for extent in parts.begin(5)]
                    for extent, half in flying:
                        _put(copy, extent.offset, file[extent.offset : extent.offset + half])
                _put(file, offset, piece)
                parts.wrote(offset, len(piece))
            elif step == "cut":
                size = data.draw(st.integers(0, len(file) + 5))
                file[size:] = bytes(max(0, size - len(file)))
                parts.cut(size)
            elif step == "begin" and not flying:
                flying = [(extent, part // 2) for extent in parts.begin(data.draw(st.integers(1, 5)))]
                for extent, half in flying:
                    _put(copy, extent.offset, file[extent.offset : extent.offset + half])
            elif step == "end":
                for extent, half in flying:
                    _put(copy, extent.offset + half, file[extent.offset + half : extent.end])
                parts.ended()
                flying = []
        if flying:
            parts.ended()  # of these the second half was never copied: they must have been in time
            for extent, half in flying:
                _put(copy, extent.offset + half, file[extent.offset + half : extent.end])
        for extent in parts.rest(len(file)):
            _put(copy, extent.offset, file[extent.offset : extent.end])
        del copy[len(file) :]
        assert copy == file


def _put(target: bytearray, offset: int, piece: bytes | bytearray) -> None:
    """pwrite, in memory."""
    target.extend(bytes(max(0, offset - len(target))))
    target[offset : offset + len(piece)] = piece
