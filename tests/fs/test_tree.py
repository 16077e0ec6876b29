"""The tree of nodes: names, identities that file systems use again, lookup counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from volfs.core.versions import Version
from volfs.fs.tree import ROOT, Node, Tree
from volfs.store.base import Stat

DIRECTORY, FILE = 0o040755, 0o100644


def stat_of(number: int, mode: int = FILE, *, size: int = 1, mtime: int = 1, nlink: int = 1) -> Stat:
    """Attributes of an object with this inode number."""
    token = b"%d" % number
    return Stat(mode, nlink, 0, 0, size, 0, 0, mtime, 0, 0, number, token, Version(token))


@pytest.fixture
def released() -> list[Node]:
    """Nodes that the tree gave up."""
    return []


@pytest.fixture
def tree(released: list[Node]) -> Tree:
    """A tree with its root only."""
    return Tree(stat_of(2, DIRECTORY), released.append)


def test_a_node_goes_when_nobody_knows_it(tree: Tree, released: list[Node]) -> None:
    """FORGET of a file gives up its directories too, once they were forgotten."""
    d = tree.bind(tree.root, b"d", stat_of(10, DIRECTORY))
    f = tree.bind(d, b"f", stat_of(11))
    d.lookups, f.lookups = 1, 2
    tree.forget(d.number, 1)
    assert released == []  # its child stands on it
    tree.forget(f.number, 1)
    assert released == []
    tree.forget(f.number, 1)
    assert released == [f, d]
    assert list(tree.by_number) == [ROOT]
    tree.check()


def test_unused_nodes_are_remembered(released: list[Node]) -> None:
    """The last ones stay, with what is known of them and their directories; who has no name goes at once."""
    tree = Tree(stat_of(2, DIRECTORY), released.append, remembers=2)
    d = tree.bind(tree.root, b"d", stat_of(10, DIRECTORY))
    nodes = [tree.bind(d, b"%d" % k, stat_of(11 + k)) for k in range(4)]
    for node in nodes:
        node.lookups = 1
        tree.forget(node.number, 1)
    assert released == nodes[:2]
    assert tree.bind(d, b"3", stat_of(14)) is nodes[3]
    nodes[3].lookups = 1  # used again
    tree.unbind(d, b"2")
    assert released == nodes[:3]
    tree.forget(nodes[3].number, 1)
    tree.unbind(d, b"3")
    assert released == nodes
    assert tree.known(b"d") is d
    tree.unbind(tree.root, b"d")
    assert list(tree.by_number) == [ROOT]
    tree.check()


def test_a_lookup_count_below_zero_is_a_bug(tree: Tree) -> None:
    """It raises instead of going on with a wrong table."""
    f = tree.bind(tree.root, b"f", stat_of(11))
    f.lookups = 1
    with pytest.raises(AssertionError, match="lookup count"):
        tree.forget(f.number, 2)


def test_a_rename_by_others_is_the_same_node(tree: Tree) -> None:
    """Same object, same size and mtime, a new name: the old name goes."""
    f = tree.bind(tree.root, b"f", stat_of(11))
    f.lookups = 1
    assert tree.bind(tree.root, b"g", stat_of(11)) is f
    assert list(f.names) == [(tree.root, b"g")]
    tree.check()


def test_a_number_that_is_used_again_is_another_file(tree: Tree) -> None:
    """A removed file's number on a new name with other content: the old node keeps its own life."""
    f = tree.bind(tree.root, b"f", stat_of(11))
    f.lookups = 1
    g = tree.bind(tree.root, b"g", stat_of(11, size=99, mtime=99))
    assert g is not f
    assert g.number != f.number
    tree.check()


def test_what_we_just_made_is_never_a_known_node(tree: Tree) -> None:
    """Even if it looks the same: two empty files made within one tick of the clock."""
    f = tree.bind(tree.root, b"f", stat_of(11, size=0))
    f.lookups = 1
    g = tree.bind_new(tree.root, b"g", stat_of(11, size=0))
    assert g is not f
    assert tree.by_identity[b"11"] is g
    tree.check()


def test_hard_links_are_one_node(tree: Tree) -> None:
    """Two names, one number; the path is the first that is left."""
    f = tree.bind(tree.root, b"f", stat_of(11, nlink=2))
    f.lookups = 1
    assert tree.bind(tree.root, b"g", stat_of(11, nlink=2)) is f
    assert tree.path(f) == b"f"
    tree.unbind(tree.root, b"f")
    assert tree.path(f) == b"g"
    tree.check()


def test_a_replaced_name_takes_the_name_away(tree: Tree) -> None:
    """The node that had it lives on without."""
    f = tree.bind(tree.root, b"f", stat_of(11))
    f.lookups = 1
    g = tree.bind(tree.root, b"f", stat_of(12))
    assert tree.path(f) is None
    assert tree.path(g) == b"f"
    tree.check()


def test_a_commit_gives_the_node_another_object(tree: Tree) -> None:
    """The number that users see stays (case 74)."""
    f = tree.create(tree.root, b"f", stat_of(50))
    assert f.pending
    tree.identify(f, stat_of(60))
    assert f.number == 50
    assert tree.by_identity[b"60"] is f
    tree.check()


def test_paths_follow_a_renamed_directory(tree: Tree) -> None:
    """Files below need no bookkeeping."""
    d = tree.bind(tree.root, b"d", stat_of(10, DIRECTORY))
    f = tree.bind(d, b"f", stat_of(11))
    e = tree.bind(tree.root, b"e", stat_of(12, DIRECTORY))
    tree.move(d, tree.root, b"d", e, b"dd")
    assert tree.path(f) == b"e/dd/f"
    tree.check()


def test_who_has_a_file_open_remembers_where_it_was(tree: Tree) -> None:
    """W7: another object has its name: what is written to it later belongs there; our own rename is told."""
    d = tree.bind(tree.root, b"d", stat_of(10, DIRECTORY))
    f, g = tree.bind(d, b"f", stat_of(11)), tree.bind(d, b"g", stat_of(12))
    f.handles = g.handles = 1
    tree.bind(d, b"f", stat_of(13))
    assert (f.names, f.home) == ({}, b"d/f")
    tree.unbind(d, b"g")
    assert g.home is None
    tree.check()


def test_a_node_that_nobody_uses_may_turn_up_elsewhere(tree: Tree, released: list[Node]) -> None:
    """It is the caller's from then on: it must not be given up because its old name goes."""
    d = tree.bind(tree.root, b"d", stat_of(10, DIRECTORY))
    assert tree.bind(tree.root, b"e", stat_of(10, DIRECTORY)) is d
    assert (tree.known(b"e"), tree.known(b"d"), released) == (d, None, [])
    tree.check()


def test_a_rename_that_was_seen_before_it_was_told(tree: Tree) -> None:
    """Between the store's rename and ours somebody looks: the old name is gone, the new one there, or all."""
    for seen_old in (False, True):
        for seen_new in (False, True):
            d = tree.bind(tree.root, b"d", stat_of(10, DIRECTORY))
            f, other = tree.bind(d, b"f", stat_of(11)), tree.bind(tree.root, b"g", stat_of(12))
            f.lookups += 1
            if seen_old:
                tree.unbind(d, b"f")
            if seen_new:
                assert tree.bind(tree.root, b"g", stat_of(11)) is f
            tree.move(f, d, b"f", tree.root, b"g")
            assert (tree.known(b"g"), tree.known(b"d/f"), other.names) == (f, None, {})
            tree.check()


def test_an_exchange_that_was_seen_before_it_was_told(tree: Tree) -> None:
    """As for a rename."""
    one, two = (
        tree.bind(tree.root, b"1", stat_of(11, size=1)),
        tree.bind(tree.root, b"2", stat_of(12, size=2)),
    )
    one.lookups = two.lookups = 1
    assert tree.bind(tree.root, b"2", stat_of(11, size=1)) is one
    tree.exchange(one, tree.root, b"1", two, tree.root, b"2")
    assert (tree.known(b"1"), tree.known(b"2")) == (two, one)
    tree.check()


@given(st.data())
def test_invariants_hold_after_any_sequence(data: st.DataObject) -> None:
    """Binds, unbinds, moves, commits and forgets in any order keep the tree's own rules."""
    tree = Tree(stat_of(2, DIRECTORY), lambda node: None, remembers=data.draw(st.integers(0, 3)))
    names = [b"a", b"b", b"c"]
    directories = [tree.root, tree.bind(tree.root, b"d", stat_of(10, DIRECTORY))]
    directories[1].lookups = 1
    nodes: list[Node] = []
    for _ in range(data.draw(st.integers(1, 30))):
        parent = data.draw(st.sampled_from(directories))
        name = data.draw(st.sampled_from(names))
        match data.draw(st.integers(0, 4)):
            case 0:
                number = data.draw(st.integers(20, 25))
                node = tree.bind(parent, name, replace(stat_of(number), size=data.draw(st.integers(1, 2))))
                node.lookups += 1
                nodes.append(node)
            case 1:
                tree.unbind(parent, name)
            case 2:
                other = data.draw(st.sampled_from(directories))
                if name in parent.children and (parent, name) != (other, b"b"):
                    tree.move(parent.children[name], parent, name, other, b"b")
            case 3:
                if name in parent.children:
                    tree.identify(parent.children[name], stat_of(data.draw(st.integers(20, 25))))
            case _:
                if nodes:
                    node = nodes.pop()
                    tree.forget(node.number, 1)
        tree.check()
