"""The tree of nodes that the kernel knows: numbers, names, lookup counts, last known attributes.

It owns identity: which node stands behind a name, and which number users see.
It does not talk to the store and holds no file content (`fs.file` does).

*Invariants* (`check` verifies them):
- `by_number` holds every node exactly once; the root is number 1.
- A node in `by_identity` has that identity; a pending node (created here, not in the store yet) has none.
- `child.names` and `parent.children` mirror each other; a directory has at most one name.
- A node stays while the kernel holds lookups, handles are open, content is dirty, or children stay; after
  that, the last `remembers` of those that have a name.
- Lookup counts never fall below zero.

*Concurrency:* the trio thread only, and no method awaits.
"""

from __future__ import annotations

import stat as _stat
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from volfs.errors import VersionChanged
from volfs.store.base import Stat

if TYPE_CHECKING:
    from volfs.fs.file import File

__all__ = ["KNOWN_AHEAD", "REMEMBERED", "ROOT", "Node", "Tree", "join"]

ROOT = 1

#: As many nodes as one would want to know of while the store is away, in some 50 MB.
REMEMBERED = 50_000

#: As many nodes of a remote store as are ever fetched ahead: they are to be known until they are opened,
#: though the kernel never heard of them.
KNOWN_AHEAD = 4096

#: Numbers of nodes whose own number is taken start here, far above what file systems hand out.
_FIRST_OWN = 1 << 62

#: The identity of a node whose object is not in the store any more.
_GONE = b"gone"


def join(directory: bytes, name: bytes) -> bytes:
    """A store path from a directory's path and a name."""
    return directory + b"/" + name if directory else name


class Node:
    """One file, directory or other object, for as long as anyone knows its number."""

    __slots__ = (
        "checked_s",
        "children",
        "epoch",
        "file",
        "found",
        "handles",
        "home",
        "identity",
        "lookups",
        "names",
        "number",
        "outdated_s",
        "stale_names",
        "stale_pages",
        "stat",
        "touched_ns",
        "watched",
    )

    def __init__(self, number: int, stat: Stat, identity: bytes | None) -> None:
        self.number = number
        self.stat = stat
        self.identity = identity
        self.names: dict[tuple[Node, bytes], None] = {}
        #: Where its bytes belong although others took its last name away (W7); None: it has names, or we did.
        self.home: bytes | None = None
        self.children: dict[bytes, Node] = {}
        self.lookups = 0
        self.handles = 0
        self.file: File | None = None
        #: Counts our own changes to this node: what the store said before one is not applied after it.
        self.epoch = 0
        #: When the store was last asked (monotonic seconds).
        self.checked_s = float("-inf")
        #: When a change of ours last gave it attributes that only the store knows: older answers are none.
        self.outdated_s = float("-inf")
        #: The last lookup that found it: its ordinal, and the directory's number and name (see fs.retries).
        self.found: tuple[int, tuple[int, bytes]] | None = None
        #: The kernel may hold pages of an older version.
        self.stale_pages = False
        #: The kernel may still resolve a name that others took away, while further ones are right.
        self.stale_names = False
        #: A directory's time of the last change that the store has not seen yet (0: none).
        self.touched_ns = 0
        self.watched = False

    @property
    def is_dir(self) -> bool:
        return _stat.S_ISDIR(self.stat.mode)

    @property
    def is_file(self) -> bool:
        return _stat.S_ISREG(self.stat.mode)

    @property
    def dirty(self) -> bool:
        """It has content that the store does not have: what this mount knows is the truth."""
        return self.file is not None and self.file.staged is not None

    @property
    def pending(self) -> bool:
        """Created here and not in the store yet."""
        return self.identity is None

    def __repr__(self) -> str:
        return f"<Node {self.number} {[name for _, name in self.names]!r}>"


class Tree:
    """See the module. `released` is called with each node that is given up.

    `taken` is called with each name that turned out to be gone because its node has another one now.
    `remembers`: how many nodes stay that nobody uses any more, for what is known of them: where old answers
    may be given, the kernel's memory pressure shall not decide which.
    """

    def __init__(
        self,
        root: Stat,
        released: Callable[[Node], None],
        taken: Callable[[Node, bytes, Node], None] = lambda parent, name, node: None,
        remembers: int = 0,
    ) -> None:
        self.root = Node(ROOT, root, root.identity)
        self.by_number = {ROOT: self.root}
        self.by_identity = {root.identity: self.root}
        self._released = released
        self.taken = taken
        self._remembers = remembers
        self._unused: OrderedDict[int, Node] = OrderedDict()  # or used again since: the longest unused first
        self._own = _FIRST_OWN

    def __len__(self) -> int:
        return len(self.by_number)

    def get(self, number: int) -> Node:
        try:
            return self.by_number[number]
        except KeyError:
            raise VersionChanged(f"inode {number} is not known any more") from None

    def path(self, node: Node) -> bytes | None:
        """The path of the node's first name; None if it, or a directory above, has no name any more."""
        parts: list[bytes] = []
        while node.number != ROOT:
            if not node.names:
                return None
            node, name = next(iter(node.names))
            parts.append(name)
        parts.reverse()
        return b"/".join(parts)

    def home(self, node: Node) -> bytes | None:
        """Where the node's bytes are committed: at its name, or where others took that away (W7).

        None if we took it away ourselves: they go with the last handle.
        """
        return self.path(node) if node.names else node.home

    def known(self, path: bytes) -> Node | None:
        """The node at a path, if all names on the way are known."""
        node = self.root
        for name in path.split(b"/") if path else ():
            child = node.children.get(name)
            if child is None:
                return None
            node = child
        return node

    def directory_path(self, node: Node) -> bytes:
        """The path of a directory; ENOENT's cousin ESTALE if it was removed."""
        path = self.path(node)
        if path is None:
            raise VersionChanged("the directory was removed", errno=2)
        return path

    # -- binding ---------------------------------------------------------------

    def bind(self, parent: Node, name: bytes, st: Stat) -> Node:
        """The node behind a name of which the store just said `st`; another node there loses the name.

        File systems give the number of a removed object to the next new one, so an
        identity under a new name proves nothing by itself (see `_is_same`).
        """
        node = self.by_identity.get(st.identity)
        if (node is not None and (parent, name) not in node.names and not self._is_same(node, st)) or (
            node is not None and _stat.S_IFMT(node.stat.mode) != _stat.S_IFMT(st.mode)
        ):
            self._disown(node)
            node = None
        if node is None:
            node = Node(self._allot(st.number), st, st.identity)
            self.by_number[node.number] = node
            self.by_identity[st.identity] = node
        self._name(parent, name, node)
        if len(node.names) > 1 and (node.is_dir or st.nlink == 1):
            for other in [key for key in node.names if key != (parent, name)]:
                self._leave(node, *other)  # not `unbind`: even if nobody uses the node yet, the caller will
                self.taken(*other, node)
        return node

    def bind_new(self, parent: Node, name: bytes, st: Stat) -> Node:
        """As bind, for an object that we just made: whoever is known by its identity is gone."""
        stale = self.by_identity.get(st.identity)
        if stale is not None:
            self._disown(stale)
        return self.bind(parent, name, st)

    def _is_same(self, node: Node, st: Stat) -> bool:
        """Whether a known node turned up under a further name, rather than its number on a new object.

        Directories and second names do turn up. Otherwise it is a rename, which keeps
        size and mtime; and a file with uncommitted bytes stays where it is.
        """
        if _stat.S_IFMT(node.stat.mode) != _stat.S_IFMT(st.mode):
            return False
        if node.is_dir:
            return True
        if node.dirty:
            return st.nlink > 1
        return st.nlink > 1 or (st.size, st.mtime_ns) == (node.stat.size, node.stat.mtime_ns)

    def _disown(self, node: Node) -> None:
        """The node's object is gone from the store."""
        if node.identity is not None and self.by_identity.get(node.identity) is node:
            del self.by_identity[node.identity]
        node.identity = _GONE

    def create(self, parent: Node, name: bytes, st: Stat) -> Node:
        """A pending node: its name is known here only."""
        node = Node(self._allot(st.number), st, None)
        self.by_number[node.number] = node
        self._name(parent, name, node)
        return node

    def identify(self, node: Node, st: Stat) -> None:
        """The node's content is a new object in the store now (a commit)."""
        self._disown(node)
        other = self.by_identity.get(st.identity)
        if other is not None:
            self._disown(other)
        node.identity = st.identity
        node.stat = st
        self.by_identity[st.identity] = node

    def unbind(self, parent: Node, name: bytes) -> None:
        """The name is gone."""
        node = parent.children.pop(name, None)
        if node is not None:
            del node.names[parent, name]
            node.epoch += 1
            self.drop(node)

    def move(self, node: Node, parent: Node, name: bytes, new_parent: Node, new_name: bytes) -> None:
        """A rename that we made: what had the new name loses it.

        Whoever looked at the store meanwhile may have seen it, and bound and unbound names by it.
        """
        self._leave(node, parent, name)
        self._name(new_parent, new_name, node)

    def exchange(
        self, one: Node, parent: Node, name: bytes, two: Node, other_parent: Node, other_name: bytes
    ) -> None:
        """As `move`, of two nodes that take each other's name."""
        self._leave(one, parent, name)
        self._leave(two, other_parent, other_name)
        self._name(other_parent, other_name, one)
        self._name(parent, name, two)

    def _leave(self, node: Node, parent: Node, name: bytes) -> None:
        if parent.children.get(name) is node:
            del parent.children[name]
            del node.names[parent, name]
        node.epoch += 1

    def _name(self, parent: Node, name: bytes, node: Node) -> None:
        present = parent.children.get(name)
        if present is node:
            return
        if present is not None:
            self.remember_home(present)
            self.unbind(parent, name)
        parent.children[name] = node
        node.names[parent, name] = None
        node.home = None

    def remember_home(self, node: Node) -> None:
        """Others take the last name: whoever has the file open may yet write, and that belongs there (W7)."""
        if node.is_file and node.handles and len(node.names) == 1:
            node.home = self.path(node)

    def _allot(self, wanted: int) -> int:
        """The store's own number where it is free: it is then the same after a remount."""
        if wanted > ROOT and wanted not in self.by_number:
            return wanted
        self._own += 1
        return self._own

    # -- lifetime --------------------------------------------------------------

    def forget(self, number: int, count: int) -> None:
        """The kernel gave back `count` lookups."""
        node = self.by_number.get(number)
        if node is None:
            return
        node.lookups -= count
        if node.lookups < 0:
            raise AssertionError(f"lookup count of {node} fell to {node.lookups}")
        self.drop(node)

    def drop(self, node: Node) -> None:
        """Give the node up if nobody knows it any more, and then its directory likewise."""
        if self._is_unused(node):
            if self._remembers and node.names:
                self._remember(node)
            else:
                self._give_up(node)

    @staticmethod
    def _is_unused(node: Node) -> bool:
        return node.number != ROOT and not (node.lookups or node.handles or node.file or node.children)

    def _remember(self, node: Node) -> None:
        """Keep an unused node, and give up the one that is unused for longest if there are too many."""
        self._unused[node.number] = node
        self._unused.move_to_end(node.number)
        while len(self._unused) > self._remembers:
            _, oldest = self._unused.popitem(last=False)
            if self._is_unused(oldest):
                self._give_up(oldest)

    def _give_up(self, node: Node) -> None:
        if self.by_number.pop(node.number, None) is None:
            return
        self._unused.pop(node.number, None)
        if node.identity is not None and self.by_identity.get(node.identity) is node:
            del self.by_identity[node.identity]
        self._released(node)
        parents = [parent for parent, _ in node.names]
        for parent, name in node.names:
            del parent.children[name]
        node.names.clear()
        for parent in parents:
            self.drop(parent)

    def below(self, node: Node) -> Iterator[Node]:
        """The node and every known one below it."""
        yield node
        for child in list(node.children.values()):
            yield from self.below(child)

    def check(self) -> None:
        """Raise AssertionError if an invariant does not hold. For tests."""
        for number, node in self.by_number.items():
            assert node.number == number and node.lookups >= 0
            assert not node.is_dir or len(node.names) <= 1
            for parent, name in node.names:
                assert parent.children[name] is node
                assert self.by_number[parent.number] is parent
            for name, child in node.children.items():
                assert (node, name) in child.names
        for identity, node in self.by_identity.items():
            assert node.identity == identity
            assert self.by_number[node.number] is node
