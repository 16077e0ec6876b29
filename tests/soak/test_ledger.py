"""What the soak takes for allowed after a crash, and that it notices what is not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.soak.drawing import draw
from tests.soak.ledger import (
    DIRECTORY,
    Grown,
    Inode,
    Ledger,
    Operation,
    Piece,
    Step,
    Tree,
    difference,
    put,
)
from tests.soak.shared import Shared, line, whole

OLD = Piece(None, 1, 100)
NEW = Piece(None, 2, 50)
MORE = Piece(None, 3, 30)


def ledger(**files: bytes) -> Ledger:
    return Ledger({name: Inode(data) for name, data in files.items()})


def write(how: str, *steps: Step | Piece) -> Operation:
    parts = tuple(Step("write", s) if isinstance(s, Piece) else s for s in steps)
    return Operation("write", "f", how=how, steps=(*parts, Step("close")))


@pytest.mark.parametrize(
    ("found", "allowed"),
    [(OLD.data, True), (NEW.data, False), (NEW.data + MORE.data, True), (b"", False), (None, False)],
)
def test_a_replacement_that_was_being_closed(found: bytes | None, allowed: bool) -> None:
    """The whole old file or the whole new one; not a part of it, not an empty one, not none."""
    worlds = ledger(f=OLD.data).worlds(write("replace", NEW, MORE), 2)
    assert (difference({} if found is None else {"f": found}, worlds) == []) is allowed


def test_a_replacement_that_was_being_written() -> None:
    """Nobody asked for a commit yet: the old file."""
    worlds = ledger(f=OLD.data).worlds(write("replace", NEW, MORE), 1)
    assert difference({"f": OLD.data}, worlds) == []
    assert difference({"f": NEW.data}, worlds) and difference({"f": NEW.data + MORE.data}, worlds)


def test_what_was_synced_stays() -> None:
    """After an fsync the file has what was synced; what follows in order is an append to that."""
    worlds = ledger(f=OLD.data).worlds(write("replace", NEW, Step("fsync"), MORE), 2)
    assert difference({"f": NEW.data + MORE.data[:7]}, worlds) == []
    assert difference({"f": OLD.data}, worlds) and difference({"f": NEW.data[:-1]}, worlds)


def test_an_append() -> None:
    """All that was acknowledged, and any part of what was not."""
    worlds = ledger(f=OLD.data).worlds(write("append", NEW), 0)
    for part in (0, 1, 50):
        assert difference({"f": OLD.data + NEW.data[:part]}, worlds) == []
    assert difference({"f": OLD.data[:-1]}, worlds) and difference({"f": OLD.data + b"x"}, worlds)
    assert Grown(b"ab", b"abc").allows(b"abc") and not Grown(b"ab", b"abc").allows(b"a")


def test_a_name_taken_by_o_excl() -> None:
    """It may be there, and empty; not half written."""
    worlds = Ledger().worlds(write("exclusive", NEW, MORE), 1)
    assert difference({}, worlds) == [] and difference({"f": b""}, worlds) == []
    assert difference({"f": NEW.data}, worlds)


def test_a_rename_is_whole() -> None:
    """The file has its old name or its new one, never both or none; what it replaces is nowhere else."""
    worlds = ledger(f=OLD.data, g=NEW.data).worlds(Operation("rename", "f", "g"), 0)
    assert difference({"g": OLD.data}, worlds) == []
    assert difference({"f": OLD.data, "g": NEW.data}, worlds) == []
    assert difference({"f": OLD.data, "g": OLD.data}, worlds) and difference({"f": OLD.data}, worlds)


def test_a_rename_of_an_open_file() -> None:
    """What takes the place of another file is committed as it is (W8): the old one or the new, never none."""
    op = write("create", NEW, Step("rename", name="g"), MORE)
    during = ledger(g=OLD.data).worlds(op, 1)
    possible: list[Tree] = [{"g": OLD.data}, {"g": OLD.data, "f": NEW.data}, {"g": NEW.data}]
    for found in possible:
        assert difference(found, during) == []
    assert difference({}, during) and difference({"f": NEW.data}, during)
    after = ledger(g=OLD.data).worlds(op, 3)
    for data in (NEW.data, NEW.data + MORE.data):
        assert difference({"g": data}, after) == []
    assert difference({"g": OLD.data}, after) and difference({}, after) and difference({"f": NEW.data}, after)


def test_a_rename_of_a_file_that_is_rewritten() -> None:
    """W8: that it was there before makes no difference: what replaces another file has the new bytes."""
    known = ledger(f=b"before", g=OLD.data)
    op = write("replace", NEW, Step("rename", name="g"), MORE)
    during, after = known.worlds(op, 1), known.worlds(op, 2)
    possible: list[Tree] = [
        {"f": b"before", "g": OLD.data},
        {"f": NEW.data, "g": OLD.data},
        {"g": NEW.data},
    ]
    for found in possible:
        assert difference(found, during) == []
    assert difference({"g": b"before"}, during) and difference({"g": b""}, during)
    assert difference({"g": NEW.data}, after) == []
    assert difference({"g": b"before"}, after) and difference({"g": OLD.data}, after)


def test_names_of_one_file() -> None:
    """All names of a file show the same bytes."""
    known = ledger(f=OLD.data)
    known.apply(Operation("link", "f", "g"))
    worlds = known.worlds(write("replace", NEW), 1)
    assert difference({"f": NEW.data, "g": NEW.data}, worlds) == []
    assert difference({"f": NEW.data, "g": OLD.data}, worlds)


def test_a_directory_moves_with_what_is_in_it() -> None:
    """A renamed directory takes its files along, at once."""
    known = Ledger({"d0": DIRECTORY, "d0/f": Inode(OLD.data)})
    worlds = known.worlds(Operation("rename", "d0", "d1"), 0)
    assert difference({"d1": DIRECTORY, "d1/f": OLD.data}, worlds) == []
    assert difference({"d1": DIRECTORY, "d0": DIRECTORY, "d0/f": OLD.data}, worlds)


def test_every_operation_is_drawn_and_applies() -> None:
    """Drawn operations make sense one after the other, all kinds are among them, and all done is allowed."""
    rng, known, kinds = random.Random(1), Ledger(), set()
    for _ in range(1500):
        op = draw(rng, known)
        kinds.add(op.how or op.kind)
        worlds = known.worlds(op, max(0, len(op.steps) - 1))
        known.apply(op)
        assert difference(known.tree(), worlds) == []
    assert kinds >= {"create", "exclusive", "replace", "append", "patch", "truncate", "rename", "exchange"}
    assert kinds >= {"unlink", "link", "mkdir", "rmdir", "read", "fetch"}


def test_removal_of_one_of_two_names() -> None:
    """W8: it commits what was written before it; what comes after it is not acknowledged before the close."""
    node = Inode(b"0123456789")
    known = Ledger({"d": node, "g": node})
    before, after = Piece(2, 1, 3), Piece(6, 2, 2)
    steps = (Step("write", before), Step("unlink"), Step("write", after), Step("close"))
    operation = Operation("write", "d", how="patch", steps=steps)
    committed = put(b"0123456789", before)
    assert known.worlds(operation, 2) == [{"g": committed}]
    assert known.worlds(operation, 3) == [{"g": committed}, {"g": put(committed, after)}]


def test_lines_of_a_shared_log(tmp_path: Path) -> None:
    """A line may be in a conflict copy or have been seen by who replaced it; else it must be there, whole."""
    (tmp_path / "log-0").write_bytes(line("a") + line("b"))
    (tmp_path / "log-0.conflict-x").write_bytes(line("c"))
    shared = Shared()
    for word in "abc":
        shared.appended("log-0", word)
    assert shared.check(tmp_path) == []
    assert shared.conflicts == 1
    shared.exchanged("log-0", line("a") + line("b"), "o")
    (tmp_path / "log-0").write_bytes(line("o"))
    assert shared.check(tmp_path) == []
    shared.appended("log-0", "d")
    (tmp_path / "log-0").write_bytes(line("o")[:-5])
    assert len(shared.check(tmp_path)) == 3  # it is torn, and both are gone


def test_a_line_that_broke_off(tmp_path: Path) -> None:
    """What was being appended at a kill may be there in part, and others append after it; nothing else."""
    log = tmp_path / "log-0"
    shared = Shared()
    for word in ("a", "b", "d"):
        shared.appended("log-0", word)
    log.write_bytes(line("a") + line("cut")[:368] + line("b") + line("cut-2")[:3] + line("d"))
    assert len(shared.check(tmp_path)) == 4  # two are torn, and with them the lines behind
    for word in ("b", "d"):
        shared.appended("log-0", word)
    for word in ("cut", "cut-2"):
        shared.broke_off("log-0", word)
    assert shared.check(tmp_path) == []
    for data in (line("cut")[1:368], line("cut")[:100] + bytes(8), line("b")[:368]):
        log.write_bytes(line("a") + line("b") + line("d") + data)
        assert len(shared.check(tmp_path)) == 1
    log.write_bytes(line("a") + line("b")[:-1] + line("d"))
    assert shared.check(tmp_path) != []


def test_whole_shared_files(tmp_path: Path) -> None:
    """The last replacement of some writer, all of it."""
    shared = Shared()
    shared.last["whole-0"] = {"x", "y"}
    assert shared.check(tmp_path) != []
    (tmp_path / "whole-0").write_bytes(whole("y"))
    assert shared.check(tmp_path) == []
    (tmp_path / "whole-0").write_bytes(whole("y")[:-1])
    assert shared.check(tmp_path) != []
    shared.last["whole-0"] = {"z"}
    (tmp_path / "whole-0").write_bytes(whole("y"))
    assert shared.check(tmp_path) != []
