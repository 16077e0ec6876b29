"""A daemon that mounts an empty volume and behaves as FAKE_DAEMON (JSON in the environment) says.

start:  "ok" | "setup" | "crash" | "die" | "silent"      how the start goes
commit: errno of a commit, or "never" to leave it unanswered
status: changes to the status document
exit:   the code that `run` returns
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from collections.abc import Callable
from typing import Any

import pyfuse3
import trio

from volfs.config import MountConfig
from volfs.errors import SetupError


class _Empty(pyfuse3.Operations):
    def __init__(self, config: MountConfig, behavior: dict[str, Any]) -> None:
        super().__init__()
        self._config = config
        self._behavior = behavior

    async def getattr(self, inode: int, ctx: pyfuse3.RequestContext | None = None) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_mode = stat.S_IFDIR | 0o755
        entry.st_ino = inode
        entry.st_nlink = 2
        return entry

    async def opendir(self, inode: int, ctx: pyfuse3.RequestContext) -> int:
        return inode

    async def readdir(self, fh: int, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        return

    async def statfs(self, ctx: pyfuse3.RequestContext) -> pyfuse3.StatvfsData:
        return pyfuse3.StatvfsData()

    async def getxattr(self, inode: int, name: bytes, ctx: pyfuse3.RequestContext) -> bytes:
        if name != b"user.volfs.status":
            raise pyfuse3.FUSEError(errno.ENODATA)
        document = {
            "version": "0",
            "pid": os.getpid(),
            "backing": str(self._config.backing),
            "cache_dir": str(self._config.cache_dir),
            "mode": {"read_only": self._config.read_only},
        }
        return json.dumps({**document, **self._behavior.get("status", {})}).encode()

    async def setxattr(self, inode: int, name: bytes, value: bytes, ctx: pyfuse3.RequestContext) -> None:
        failure = self._behavior.get("commit", 0)
        if failure == "never":
            await trio.sleep_forever()
        if failure:
            raise pyfuse3.FUSEError(failure)


def run(config: MountConfig, ready: Callable[[], None]) -> int:
    behavior = json.loads(os.environ.get("FAKE_DAEMON", "{}"))
    start = behavior.get("start", "ok")
    if start == "setup":
        raise SetupError("no luck today:\ntry tomorrow")
    if start == "crash":
        raise ZeroDivisionError("a bug")
    if start == "die":
        print("last words", file=sys.stderr, flush=True)
        os._exit(7)
    options = {*pyfuse3.default_options, "fsname=fake", "subtype=volfs"}
    pyfuse3.init(_Empty(config, behavior), str(config.mountpoint), options)

    async def serve() -> None:
        if start == "ok":
            ready()
        await pyfuse3.main()

    try:
        trio.run(serve)
    finally:
        pyfuse3.close(unmount=True)
    return int(behavior.get("exit", 0))
