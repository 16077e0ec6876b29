"""A daemon whose requests and background tasks fail on demand: the command line with wrapped methods.

`VOLFS_TEST_FAULTS` names a directory. A file `METHOD` in it that holds the name of an exception makes the
next call
of that method raise it; the file is taken away first, so that a fault happens once.
"""

from __future__ import annotations

import builtins
import functools
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from volfs.cli import main
from volfs.fs.changes import Changes
from volfs.fs.files import Files
from volfs.fs.vfs import Vfs
from volfs.kernel.notify import KernelNotifier

__all__: list[str] = []

_FAULTS = Path(os.environ["VOLFS_TEST_FAULTS"])


def _exception(name: str) -> Exception:
    kind = getattr(builtins, name)
    if name == "ExceptionGroup":
        return ExceptionGroup("injected", [ValueError("one"), KeyError("two")])
    if name == "UnicodeDecodeError":
        return UnicodeDecodeError("utf-8", b"\xff", 0, 1, "injected")
    if name == "OSError":
        return OSError(5, "injected")
    raised: Exception = kind("injected")
    return raised


def _fail_on_demand(name: str) -> None:
    try:
        text = (_FAULTS / name).read_text().strip()
    except FileNotFoundError:
        return
    (_FAULTS / name).unlink()
    raise _exception(text)


def _wrap(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(method)
    async def later(*args: Any, **kwargs: Any) -> Any:
        _fail_on_demand(name)
        return await method(*args, **kwargs)

    @functools.wraps(method)
    def at_once(*args: Any, **kwargs: Any) -> Any:
        _fail_on_demand(name)
        return method(*args, **kwargs)

    return later if inspect.iscoroutinefunction(method) else at_once


def _break(kind: type, prefix: str) -> None:
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(kind, name, _wrap(method, f"{prefix}.{name}"))


if __name__ == "__main__":
    for _kind, _prefix in (
        (Vfs, "vfs"),
        (Changes, "changes"),
        (Files, "files"),
        (KernelNotifier, "notifier"),
    ):
        _break(_kind, _prefix)
    sys.exit(main())
