"""Second tries of an open: granted to the thread that was refused, once, for what its lookup found."""

from __future__ import annotations

import pytest

from tests.fs.test_tree import DIRECTORY, stat_of
from volfs.fs.retries import SecondTries
from volfs.fs.tree import Node, Tree


@pytest.fixture
def tree() -> Tree:
    """A tree with its root only."""
    return Tree(stat_of(2, DIRECTORY), lambda node: None)


def bound(tree: Tree, number: int) -> Node:
    """The file `f` as this object."""
    return tree.bind(tree.root, b"f", stat_of(number, size=number))


def test_what_a_lookup_found_since_is_let_through_once(tree: Tree) -> None:
    """Also if another thread's lookup found it; the first object that was found, and the last."""
    tries = SecondTries()
    first = bound(tree, 11)
    tries.found(tree.root.number, b"f", first)
    tries.refuse(7, list(first.names))
    second = bound(tree, 12)
    tries.found(tree.root.number, b"f", second)
    assert tries.take(7, second)
    assert not tries.take(7, second), "once only"


def test_what_was_found_before_is_refused(tree: Tree) -> None:
    """The kernel came by a name that it remembers."""
    tries = SecondTries()
    node = bound(tree, 11)
    tries.found(tree.root.number, b"f", node)
    tries.refuse(7, list(node.names))
    assert not tries.take(7, node)


def test_nobody_else_is_let_through(tree: Tree) -> None:
    """Another thread, another name, or a thread whose open ended with a missing name."""
    tries = SecondTries()
    node = bound(tree, 11)
    tries.refuse(7, list(node.names))
    tries.found(tree.root.number, b"f", node)
    assert not tries.take(8, node)
    tries.found(tree.root.number, b"g", node)
    assert not tries.take(7, node)
    tries.refuse(7, list(node.names))
    tries.missed(7)
    tries.found(tree.root.number, b"f", node)
    assert not tries.take(7, node)


def test_what_killed_threads_leave_is_bounded(tree: Tree) -> None:
    """A hundred thousand refusals without a second try."""
    tries = SecondTries()
    node = bound(tree, 11)
    for thread in range(100_000):
        tries.refuse(thread, list(node.names))
    assert len(tries._refused) <= 10_000
