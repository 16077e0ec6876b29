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


def test_the_refused_thread_gets_what_its_last_lookup_found(tree: Tree) -> None:
    """Two lookups come between; the second one counts."""
    tries = SecondTries()
    first = bound(tree, 11)
    tries.refuse(7, list(first.names))
    second, third = bound(tree, 12), bound(tree, 13)
    tries.looked_up(7, tree.root.number, b"f", second)
    tries.looked_up(7, tree.root.number, b"f", third)
    assert tries.take(7, third)
    assert not tries.take(7, third), "once only"


def test_nobody_else_is_let_through(tree: Tree) -> None:
    """Another thread, another file, or an open without a refusal before it."""
    tries = SecondTries()
    node = bound(tree, 11)
    tries.looked_up(7, tree.root.number, b"f", node)
    assert not tries.take(7, node)
    tries.refuse(7, list(node.names))
    tries.looked_up(8, tree.root.number, b"f", node)
    tries.looked_up(7, tree.root.number, b"g", node)
    assert not tries.take(8, node)
    assert not tries.take(7, node)


def test_what_killed_threads_leave_is_bounded(tree: Tree) -> None:
    """A hundred thousand refusals without a second try."""
    tries = SecondTries()
    node = bound(tree, 11)
    for thread in range(100_000):
        tries.refuse(thread, list(node.names))
    assert len(tries._refused) <= 10_001
