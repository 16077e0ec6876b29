"""Which way to the kernel a configuration, the rights of the process and the kernel lead to."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from volfs.config import MountConfig
from volfs.errors import SetupError
from volfs.fs.vfs import Vfs
from volfs.kernel import mounting, preflight

_VFS = cast(Vfs, None)


class Played:
    """A transport that mounts, or does not."""

    def __init__(self, name: str, refuses: str = "") -> None:
        self.name = name
        self.refuses = refuses

    def __call__(self, config: MountConfig) -> Played:
        return self

    def mount(self, vfs: Vfs) -> None:
        if self.refuses:
            raise SetupError(self.refuses)


def _config(base: Path, transport: str) -> MountConfig:
    places: dict[str, Any] = dict.fromkeys(("backing", "mountpoint", "cache_dir"), base)
    return MountConfig.model_validate({**places, "transport": transport})


@pytest.mark.parametrize(
    ("wanted", "privileged", "refuses", "name", "reason"),
    [
        ("auto", True, "", "direct", "this process may mount"),
        ("auto", True, "too old", "pyfuse3", "too old"),
        ("auto", False, "", "pyfuse3", "without CAP_SYS_ADMIN fusermount3 has to mount"),
        ("direct", True, "", "direct", "--transport"),
        ("pyfuse3", True, "", "pyfuse3", "--transport"),
        ("pyfuse3", False, "", "pyfuse3", "--transport"),
    ],
)
def test_choice(
    wanted: str,
    privileged: bool,
    refuses: str,
    name: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By itself it is the direct one where that can be, else libfuse; what was asked for is used."""
    monkeypatch.setattr(mounting, "may_mount", lambda: privileged)
    monkeypatch.setattr(mounting, "Direct", Played("direct", refuses))
    monkeypatch.setattr(mounting, "Pyfuse", Played("pyfuse3"))
    chosen, why = mounting.mount(_config(tmp_path, wanted), _VFS)
    assert (chosen.name, why) == (name, reason)


@pytest.mark.parametrize("wanted", ["auto", "direct"])
def test_no_way(wanted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing mounts, the error is that of the direct way, which says what to do; asked for, it is the
    only one.
    """
    monkeypatch.setattr(mounting, "may_mount", lambda: True)
    monkeypatch.setattr(mounting, "Direct", Played("direct", "what to do"))
    monkeypatch.setattr(mounting, "Pyfuse", Played("pyfuse3", "see the log" if wanted == "auto" else ""))
    with pytest.raises(SetupError, match="what to do"):
        mounting.mount(_config(tmp_path, wanted), _VFS)


def test_direct_without_the_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for without the right to mount, it is refused before anything is touched, with what to do."""
    monkeypatch.setattr(preflight, "may_mount", lambda: False)
    with pytest.raises(SetupError, match="CAP_SYS_ADMIN: run as root, or leave it to --transport auto"):
        preflight.check(_config(tmp_path, "direct"))
