"""Which way to the kernel a configuration and the rights of the process lead to."""

from __future__ import annotations

from pathlib import Path

import pytest

from volfs.config import MountConfig
from volfs.errors import SetupError
from volfs.kernel import preflight, transport


@pytest.mark.parametrize(
    ("wanted", "privileged", "name", "reason"),
    [
        ("auto", True, "direct", "this process may mount"),
        ("auto", False, "pyfuse3", "without CAP_SYS_ADMIN fusermount3 has to mount"),
        ("direct", True, "direct", "--transport"),
        ("pyfuse3", True, "pyfuse3", "--transport"),
        ("pyfuse3", False, "pyfuse3", "--transport"),
    ],
)
def test_choice(
    wanted: str, privileged: bool, name: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By itself it is the direct one where the process may mount; what was asked for is used."""
    monkeypatch.setattr(transport, "may_mount", lambda: privileged)
    config = MountConfig.model_validate(
        {"backing": tmp_path, "mountpoint": tmp_path, "cache_dir": tmp_path, "transport": wanted}
    )
    chosen, why = transport.choose(config)
    assert (chosen.name, why) == (name, reason)


def test_direct_without_the_right(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for without the right to mount, it is refused before anything is touched, with what to do."""
    monkeypatch.setattr(preflight, "may_mount", lambda: False)
    config = MountConfig(backing=tmp_path, mountpoint=tmp_path, cache_dir=tmp_path, transport="direct")
    with pytest.raises(SetupError, match="CAP_SYS_ADMIN: run as root, or leave it to --transport auto"):
        preflight.check(config)
