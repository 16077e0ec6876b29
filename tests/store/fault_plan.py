"""The plan of a `FaultStore`: which call of which operation gets which fault.

It owns the kinds of faults and the counting of calls. It does not know stores: a
call is something to be awaited, whole, or in half where the operation moves bytes.

An operation is named after the method: `stat`, `rename`, `upload`; of a reader
`reader.read`, of a listing `directory.names`, of an upload `upload.show`
(`OPERATIONS` has them all). A fault meets the calls that its `where` accepts, from
the `nth` of them on, `times` of them.

*Concurrency:* the plan belongs to the trio thread; a call is counted, and gets
its fault, before its first await.

*Invariants:* a call has at most one fault, the first planned that meets it.
`calls` counts every call, `met` the calls that had a fault.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypedDict, TypeVar, Unpack

import trio

from volfs.errors import StoreError, from_os_error

__all__ = [
    "OPERATIONS",
    "Break",
    "Call",
    "Delay",
    "Fail",
    "Fault",
    "Faults",
    "Hang",
    "Lose",
    "Tear",
    "Which",
]

T = TypeVar("T")

#: Decides by the path in the store whether a fault meets a call; b"" where the call knows none. A rename and
#: a link are called by the new path.
Where = Callable[[bytes], bool]

OPERATIONS: Final = frozenset(
    (
        *(
            "stat",
            "open",
            "fetch",
            "scan",
            "readlink",
            "mkdir",
            "mknod",
            "symlink",
            "link",
            "unlink",
            "rmdir",
        ),
        *("rename", "change", "getxattr", "setxattr", "removexattr", "listxattr", "capacity"),
        *(
            "sync_directory",
            "upload",
            "upload.show",
            "upload.discard",
            "overwrite",
            "keep_left",
            "clear_left",
        ),
        *("reader.read", "reader.read_into", "reader.stat", "reader.change", "reader.copy_to"),
        *("reader.overwrite", "reader.sync"),
        *("directory.names", "directory.stats"),
        *("begin", "transfer.bring", "transfer.finish", "transfer.discard"),
    )
)

#: What they answer holds something open, which nobody would close if the answer were lost.
_ANSWERS_HOLD: Final = frozenset(("open", "scan", "upload", "begin", "transfer.finish"))


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One call that is to be made, whole; or torn, where the operation moves bytes."""

    operation: str
    whole: Callable[[], Awaitable[T]]
    torn: Callable[[], Awaitable[T]] | None = None
    #: Moves half of the bytes and then raises what it is given.
    broken: Callable[[OSError], Awaitable[T]] | None = None


class Fault(Protocol):
    """What becomes of a call."""

    async def around(self, call: Call[T]) -> T: ...


def _error(number: int) -> StoreError:
    return from_os_error(OSError(number, f"{os.strerror(number)} (planned)"))


@dataclass(frozen=True, slots=True)
class Fail:
    """The call is not made: an errno."""

    number: int

    async def around(self, call: Call[T]) -> T:
        raise _error(self.number)


@dataclass(frozen=True, slots=True)
class Lose:
    """The call is made, and its reply is lost: an errno, though it was done."""

    number: int

    async def around(self, call: Call[T]) -> T:
        await call.whole()
        raise _error(self.number)


@dataclass(frozen=True, slots=True)
class Delay:
    """The call is made a while later."""

    seconds: float

    async def around(self, call: Call[T]) -> T:
        await trio.sleep(self.seconds)
        return await call.whole()


@dataclass(frozen=True, slots=True)
class Hang:
    """The call is made once it is released, and never before."""

    released: trio.Event

    async def around(self, call: Call[T]) -> T:
        await self.released.wait()
        return await call.whole()


@dataclass(frozen=True, slots=True)
class Tear:
    """The call moves half of the bytes and says that all is well."""

    async def around(self, call: Call[T]) -> T:
        if call.torn is None:
            raise ValueError(f"{call.operation} cannot be torn")
        return await call.torn()


@dataclass(frozen=True, slots=True)
class Break:
    """The call moves half of the bytes and then fails."""

    number: int

    async def around(self, call: Call[T]) -> T:
        if call.broken is None:
            raise ValueError(f"{call.operation} cannot break half-way")
        return await call.broken(OSError(self.number, f"{os.strerror(self.number)} (planned, half-way)"))


def _anywhere(path: bytes) -> bool:
    return True


@dataclass(slots=True)
class _Rule:
    operation: str
    fault: Fault
    skip: int
    left: int | None  # None: for ever
    where: Where


class Which(TypedDict, total=False):
    """The calls that a fault meets. `times` None: until `clear`."""

    nth: int
    times: int | None
    where: Where


@dataclass(slots=True)
class Faults:
    """The plan, and what became of it."""

    calls: Counter[str] = field(default_factory=Counter)
    met: Counter[str] = field(default_factory=Counter)
    _rules: list[_Rule] = field(default_factory=list)
    _released: trio.Event = field(default_factory=trio.Event)

    def plan(self, operation: str, fault: Fault, **which: Unpack[Which]) -> None:
        """Without more, the next call of the operation gets the fault."""
        nth, times = which.get("nth", 1), which.get("times", 1)
        if operation not in OPERATIONS:
            raise ValueError(f"no store has an operation {operation!r}")
        if isinstance(fault, Lose) and operation in _ANSWERS_HOLD:
            raise ValueError(f"the answer of {operation} cannot be lost")
        if nth < 1 or (times is not None and times < 1):
            raise ValueError("calls are counted from 1")
        self._rules.append(_Rule(operation, fault, nth - 1, times, which.get("where", _anywhere)))

    def fail(self, operation: str, number: int, **which: Unpack[Which]) -> None:
        """An errno, and nothing is done."""
        self.plan(operation, Fail(number), **which)

    def lose(self, operation: str, number: int, **which: Unpack[Which]) -> None:
        """It is done, and yet an errno is the answer."""
        self.plan(operation, Lose(number), **which)

    def delay(self, operation: str, seconds: float, **which: Unpack[Which]) -> None:
        """It is done later."""
        self.plan(operation, Delay(seconds), **which)

    def hang(self, operation: str, **which: Unpack[Which]) -> None:
        """It is done after `release`."""
        self.plan(operation, Hang(self._released), **which)

    def tear(self, operation: str, **which: Unpack[Which]) -> None:
        """Half of the bytes, and no word about it."""
        self.plan(operation, Tear(), **which)

    def break_off(self, operation: str, number: int, **which: Unpack[Which]) -> None:
        """Half of the bytes, and then an errno."""
        self.plan(operation, Break(number), **which)

    def release(self) -> None:
        """What hangs goes on, and nothing more is made to hang."""
        self._rules = [rule for rule in self._rules if not isinstance(rule.fault, Hang)]
        self._released.set()
        self._released = trio.Event()

    def clear(self) -> None:
        """No further faults; what hangs goes on."""
        self.release()
        self._rules.clear()

    def take(self, operation: str, path: bytes) -> Fault | None:
        """Count one call; the fault that it gets."""
        self.calls[operation] += 1
        for rule in self._rules:
            if rule.operation != operation or rule.left == 0 or not rule.where(path):
                continue
            if rule.skip:
                rule.skip -= 1
                continue
            if rule.left is not None:
                rule.left -= 1
            self.met[operation] += 1
            return rule.fault
        return None
