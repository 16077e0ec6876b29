"""One open of a file, and what the kernel is told of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

from volfs.fs.file import File
from volfs.fs.tree import Node

__all__ = ["Handle", "Opened"]


@dataclass(slots=True)
class Handle:
    """One open of a file."""

    number: int
    node: Node
    file: File
    flags: int
    emptied: bool = False  # it took bytes away by O_TRUNC, and has not written yet
    wrote: bool = False
    flushed: bool = False  # after a write
    shared: bool = False  # its descriptor was duplicated: it wrote after a flush

    @property
    def writes(self) -> bool:
        return self.flags & os.O_ACCMODE != os.O_RDONLY


class Opened(NamedTuple):
    """A new handle, and whether the pages that the kernel has of the file are still right."""

    handle: int
    keep_cache: bool
