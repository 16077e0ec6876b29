"""The command line: verbs that parse, call and print. What they do is in the layers below."""

from __future__ import annotations

import click

from volfs import __version__
from volfs.cli import commit, cp, evict, fsck, mount, recover, status, umount, warm

__all__ = ["main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="volfs")
def main() -> None:
    """Shared storage at a path: cached, committed, kept fresh."""


for _verb in (
    mount.mount,
    umount.umount,
    status.status,
    warm.warm,
    cp.cp,
    evict.evict,
    commit.commit,
    recover.recover,
    fsck.fsck,
):
    main.add_command(_verb)
