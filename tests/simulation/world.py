"""Two hosts, a backing, the outside, and the operations of a simulation.

It drives; what is right is said by `oracle` (always) and `exact` (for one operation alone, while nothing
waits).
Every operation may be impossible where it comes: then it does nothing.

*Invariants:* between two steps each host is alive; one that died in a step was mounted again.
"""

from __future__ import annotations

import errno
import itertools
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path as RealPath
from typing import cast

import trio

from tests.simulation.exact import KNOWN, Answer, Exact
from tests.simulation.host import Host, Mode
from tests.simulation.kernel import Kernel, Path
from tests.simulation.life import Died
from tests.simulation.oracle import CONFLICT, Oracle, Seen
from tests.simulation.outside import Outside
from tests.simulation.programs import Programs

__all__ = ["Operation", "World"]

Operation = tuple[str, tuple[object, ...]]

#: Operations that change nothing, or only when it reaches the backing.
_HARMLESS = ("read", "list", "commit", "evict", "refresh", "wait", "settle", "restart", "crash")

#: What a program may get while others do things to the same names, and nothing fails.
_RACES = {
    errno.ENOENT,
    errno.EEXIST,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENOTEMPTY,
    errno.EINVAL,
    errno.ESTALE,
}

#: Longer than the longest back-off, so that each round of settling tries everything again.
_BACKOFF_S = 31.0
_ROUNDS = 10

#: Of the simulated clock. Whoever waits longer waits for ever: nothing in here takes time.
_STUCK_S = 600.0


@dataclass(eq=False, slots=True)
class World(Programs):
    """See the module."""

    base: RealPath
    mode: Mode
    nursery: trio.Nursery
    outsider: Outside = field(init=False)
    planned: set[int] = field(default_factory=set)  # errnos of failures that were asked for
    failing: bool = False
    crashed: bool = False
    actor: object = None  # the host that did the last step; None: somebody else, or several
    exact: Exact | None = None  # None: not known for sure

    def __post_init__(self) -> None:
        backing = self.base / "backing"
        backing.mkdir()
        self.oracle = Oracle(backing)
        (backing / "d").mkdir()
        self.outsider = Outside(self.oracle)
        self.outsider.write(("a",), "xb")
        self.hosts = [self._host(name, backing) for name in "AB"]

    def _host(self, name: str, backing: RealPath) -> Host:
        return Host(name, self.base / name, backing, self.mode, partial(self.oracle.changed, name))

    async def start(self) -> None:
        for host in self.hosts:
            await host.boot(self.nursery)
        self.kernels = [Kernel(host) for host in self.hosts]

    # -- the frame of a step -------------------------------------------------------

    async def step(self, operation: Operation) -> None:
        """One operation, or several at once, and what must hold after it."""
        name, arguments = operation
        actor = arguments[0] if name in KNOWN else None
        if actor is None or actor != self.actor:
            await self._let_age()
        self.actor = actor
        with trio.fail_after(_STUCK_S):
            if name == "together":
                self.exact = None
                async with trio.open_nursery() as nursery:
                    for one in cast("tuple[Operation, ...]", arguments):
                        nursery.start_soon(self._one, one)
            else:
                await self._alone(name, *arguments)
            await self._after()

    async def _let_age(self) -> None:
        """Wait until nobody believes any more what it was told before (R1)."""
        if self.mode.freshness_s:
            await trio.sleep(self.mode.freshness_s * 1.01)

    async def _one(self, operation: Operation) -> Answer:
        name, arguments = operation
        try:
            return 0, await getattr(self, name)(*arguments)
        except Died:
            return errno.ENOTCONN, None
        except OSError as error:
            refused = error
        number = refused.errno or 0
        assert number in _RACES | self.planned, f"{name}{arguments}: {refused!r}"
        return number, None

    async def _alone(self, name: str, *arguments: object) -> None:
        """If one host does everything and nothing fails, the model knows the answer and what comes of it."""
        if self.exact is None and self._quiescent():
            self.exact = Exact(self.oracle.seen)
        exact = self.exact
        if exact is None or name not in KNOWN or not self._is_known(arguments[0]):
            if name not in _HARMLESS:
                self.exact = None
            await self._one((name, arguments))
            return
        expected = exact.answer(name, len(self.oracle.writings) + 1, *arguments)
        answer = await self._one((name, arguments))
        if answer[0] == errno.ENOTCONN or answer[0] in self.planned:
            self.exact = None
        else:
            assert answer == expected, f"{name}{arguments}"

    def _is_known(self, host: object) -> bool:
        """Whether nobody else has anything open or to commit."""
        return not self.failing and not any(
            number != host and (each.owed() or any(key[0] == number for key in self.slots))
            for number, each in enumerate(self.hosts)
        )

    def _quiescent(self) -> bool:
        return not self.slots and not self.pending and self._is_known(None)

    async def _after(self) -> None:
        for number, host in enumerate(self.hosts):
            if not host.alive:
                await self._again(number)
            tree = self.hosts[number].volume.tree
            tree.check()
            for key in [key for key in self.since if key[0] == number]:
                node = tree.by_number.get(key[1])
                if node is None or not node.dirty:
                    del self.since[key]
            self.oracle.owes(host.name, (row.path for row in host.owed()))

    async def _again(self, number: int, dies_after: int | None = None) -> None:
        """Mount again after a crash. A second crash may come while the journal is replayed."""
        host = self.hosts[number]
        await host.crash()
        self.crashed = True
        if self.exact is not None and not self.exact.survives(number):
            self.exact = None
        self.slots = {key: file for key, file in self.slots.items() if key[0] != number}
        self.pending = {key: some for key, some in self.pending.items() if key[0] != number}
        await host.boot(self.nursery, dies_after)
        if not host.alive:
            await host.crash()
            await host.boot(self.nursery)
        self.kernels[number] = Kernel(host)

    async def outside(self, what: str, path: Path) -> None:
        self.outsider.do(what, path)

    # -- hosts -----------------------------------------------------------------------

    async def fail(self, host: int, operation: str, number: int, nth: int, times: int, how: str) -> None:
        """The store will fail. `how`: "fail", or "lose" if it is done and only the reply is lost."""
        # In background mode a failing upload holds commits up, and no program hears of it.
        self.failing |= operation != "upload" or self.mode.commit_at_close
        self.planned.add(number)
        plan = getattr(self.hosts[host].faults, how)
        plan(operation, number, nth=nth, times=times)

    async def crash(self, host: int, after: int, dies_after: int | None) -> None:
        """Die after so many effects, now if 0; and again after so many of the next life."""
        if after:
            self.hosts[host].life.left = after
        else:
            await self._again(host, dies_after)

    async def commit(self, host: int) -> None:
        await self.hosts[host].settle()

    async def evict(self, host: int) -> None:
        cache = self.hosts[host].cache
        if cache is not None:
            await self._run(host, cache.evict_all)

    async def refresh(self, host: int) -> None:
        """As when inotify lost events."""
        await self._run(host, self.hosts[host].vfs.changes.everything)

    async def wait(self, seconds: float) -> None:
        await trio.sleep(seconds)

    async def restart(self, host: int) -> None:
        """A clean end with nothing open, and the next mount."""
        await self._leave(host)
        await self.hosts[host].shut_down()
        await self.hosts[host].boot(self.nursery)
        self.kernels[host] = Kernel(self.hosts[host])

    async def _leave(self, host: int) -> None:
        """Programs end, which closes what they have open. Raises the first error after all were closed."""
        failed: list[OSError] = []
        for key in [key for key in self.slots if key[0] == host]:
            exact, self.exact = self.exact, None  # not known for sure if the host dies of it
            try:
                await self.close(*key)
            except OSError as error:
                failed.append(error)
                continue
            self.exact = exact
            if exact is not None:
                exact.close(0, *key)
        if failed:
            raise failed[0]

    async def settle(self) -> None:
        """The store works again: everything gets committed, and everybody sees the same."""
        for host in self.hosts:
            host.life.left = None  # first: one might die while the other one is mounted again
        await self._after()
        self.failing = False
        for host in self.hosts:
            host.faults.clear()
        for _ in range(_ROUNDS):
            for host in self.hosts:
                await host.settle()
            if not any(host.owed() for host in self.hosts):
                break
            self._make_way()
            await trio.sleep(_BACKOFF_S)
        else:
            raise AssertionError(f"never committed: {[host.owed() for host in self.hosts]}")
        await self._after()
        for key in list(self.pending):
            if not any(
                file.host == key[0] and file.descriptor.number == key[1] for file in self.slots.values()
            ):
                del self.pending[key]
        assert self.oracle.look() == self.oracle.seen
        if self.exact is not None:
            assert self.oracle.seen == self.exact.seen()
        self.oracle.settled(open_files=bool(self.slots))
        await self._let_age()
        for number in range(len(self.hosts)):
            await self._compare(number)

    def _make_way(self) -> None:
        """A file where a directory was that an uncommitted file belongs to: only a user can say which."""
        for row in (row for host in self.hosts for row in host.owed()):
            parts = row.path.decode().split("/")[:-1]
            for depth in range(1, len(parts) + 1):
                if self.oracle.seen.get("/".join(parts[:depth])) is not None:
                    self.outsider.do("delete", tuple(parts[:depth]))

    async def _compare(self, number: int) -> None:
        """What programs on a host see is what the backing has."""
        shown: Seen = {}
        todo: list[Path] = [()]
        for path in todo:
            for name in await self.list(number, path):
                at = (*path, name)
                try:
                    shown["/".join(at)] = await self.read(number, at)
                except IsADirectoryError:
                    shown["/".join(at)] = None
                    todo.append(at)
        assert shown == self.oracle.seen, f"what {self.hosts[number].name} shows is not what the backing has"

    async def finish(self) -> None:
        """The end of a list: all is closed, committed and left, and nothing else remains."""
        with trio.fail_after(_STUCK_S * _ROUNDS):
            for host in range(len(self.hosts)):
                with suppress(OSError, Died):
                    await self._leave(host)
            await self.settle()
            left = [await host.shut_down() for host in self.hosts]
        assert self.crashed or not any(left), f"left in the journals: {left}"
        reserved = self.oracle.backing / ".volfs"
        staged = [path for path in self.base.rglob("staging/*") if not path.is_dir()]
        staged += [
            p for p in reserved.rglob("*") if not p.is_dir() and p.parent.name not in ("owners", "locks")
        ]
        kept = {row.name for row in itertools.chain(*left)}
        assert {path.name for path in staged} == kept, "staged files and the journal do not agree"
        assert kept or not reserved.exists(), f"left in the store: {list(reserved.rglob('*'))}"
        if not self.crashed:
            counted = sum(host.conflicts for host in self.hosts)
            assert len(self.oracle.conflicts) <= counted, "a conflict that was not counted"
        assert all(CONFLICT in name for name in self.oracle.conflicts)
