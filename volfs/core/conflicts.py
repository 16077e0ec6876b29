"""Names of conflict copies. This module is pure."""

from __future__ import annotations

from datetime import UTC, datetime

__all__ = ["conflict_name"]

_NAME_MAX = 255


def conflict_name(path: bytes, host: str, when_s: float, attempt: int = 0) -> bytes:
    """`NAME.conflict-HOST-TIME` beside `path`, never longer than a name may be."""
    directory, slash, name = path.rpartition(b"/")
    stamp = datetime.fromtimestamp(when_s, UTC).strftime("%Y%m%dT%H%M%S")
    suffix = f".conflict-{host}-{stamp}".encode("utf-8", "replace").replace(b"/", b"_")[:200]
    if attempt:
        suffix += b".%d" % attempt
    return directory + slash + name[: _NAME_MAX - len(suffix)] + suffix
