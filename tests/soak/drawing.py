"""Drawing operations: what a worker does next, given what its directory holds. Pure but for its generator."""

from __future__ import annotations

import random
from typing import Final

from tests.soak.ledger import Ledger, Operation, Piece, Step

__all__ = ["draw"]

_DIRECTORIES: Final = ("", "d0", "d1", "d2")
_NAMES: Final = tuple("abcdefg")

#: Often what metadata and small files are made of, sometimes several blocks, seldom more than one request.
_SIZES: Final = ((45, 1, 3_000), (35, 3_000, 100_000), (18, 100_000, 700_000), (2, 700_000, 2_500_000))

#: Beyond this nothing is appended: a file that grows for ever makes rounds of comparing, not of killing.
_LARGE: Final = 1_500_000

_WEIGHTS: Final = {
    "create": 16,
    "exclusive": 8,
    "replace": 22,
    "append": 18,
    "patch": 10,
    "truncate": 4,
    "rename": 12,
    "exchange": 2,
    "unlink": 12,
    "link": 4,
    "mkdir": 4,
    "rmdir": 4,
    "move directory": 3,
    "read": 8,
    "fetch": 6,
}


def draw(rng: random.Random, ledger: Ledger) -> Operation:
    """The next operation; one that makes no sense now is drawn again."""
    while True:
        (kind,) = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        drawn = _draw(kind, rng, ledger)
        if drawn is not None:
            return drawn


def _draw(kind: str, rng: random.Random, ledger: Ledger) -> Operation | None:
    files, directories = list(ledger.files()), ledger.directories()
    free = [n for n in _places(directories) if n not in ledger.names]
    if kind == "fetch":
        return Operation("fetch", size=rng.getrandbits(30))
    if kind in ("create", "exclusive"):
        return _write(rng, kind, rng.choice(free), 0, [*free, *files]) if free else None
    if kind == "mkdir":
        missing = [d for d in _DIRECTORIES[1:] if d not in directories]
        return Operation("mkdir", rng.choice(missing)) if missing else None
    if kind in ("rmdir", "move directory"):
        return _directory(kind, rng, ledger, directories)
    if not files:
        return None
    name = rng.choice(files)
    node = ledger.files()[name]
    if kind in ("replace", "append", "patch"):
        if (kind == "patch" and not node.data) or (kind == "append" and len(node.data) > _LARGE):
            return None
        others = [n for n in files if ledger.names[n] is not node]
        return _write(rng, kind, name, len(node.data), [*free, *others])
    if kind == "truncate":
        return Operation("truncate", name, size=rng.randint(0, len(node.data) * 5 // 4))
    if kind in ("unlink", "read"):
        return Operation(kind, name)
    if kind == "link":
        return Operation("link", name, rng.choice(free)) if free and len(ledger.links(name)) < 3 else None
    other = rng.choice(files if kind == "exchange" or not free or rng.random() < 0.5 else free)
    if ledger.names.get(other) is node:
        return None
    return Operation(kind, name, other)


def _places(directories: list[str]) -> list[str]:
    return [f"{d}/{n}" if d else n for d in ("", *directories) for n in _NAMES]


def _directory(kind: str, rng: random.Random, ledger: Ledger, directories: list[str]) -> Operation | None:
    missing = [d for d in _DIRECTORIES[1:] if d not in directories]
    if kind == "rmdir":
        empty = [d for d in directories if not ledger.below(d)]
        return Operation("rmdir", rng.choice(empty)) if empty else None
    if not directories or not missing:
        return None
    return Operation("rename", rng.choice(directories), rng.choice(missing))


def _write(rng: random.Random, how: str, name: str, size: int, targets: list[str]) -> Operation:
    steps: list[Step] = []
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        piece = _piece(rng, size if how == "patch" else None)
        steps.append(Step("write", piece))
        if rng.random() < 0.15:
            steps.append(Step("fsync"))
    others = [n for n in targets if n != name]
    if rng.random() < 0.06 and others:
        target = rng.choice(others)
        steps.insert(rng.randint(1, len(steps)), Step("rename", name=target))
    elif rng.random() < 0.03:
        steps.insert(rng.randint(1, len(steps)), Step("unlink"))
    return Operation("write", name, how=how, steps=(*steps, Step("close")))


def _piece(rng: random.Random, within: int | None) -> Piece:
    """`within`: a piece inside of so many bytes; else one at the end."""
    _, least, most = rng.choices(_SIZES, [weight for weight, _, _ in _SIZES])[0]
    size = rng.randint(least, most)
    seed = rng.getrandbits(48)
    if within is None:
        return Piece(None, seed, size)
    size = min(size, within)
    return Piece(rng.randint(0, within - size), seed, size)
