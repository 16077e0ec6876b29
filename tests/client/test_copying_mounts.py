"""Copies into a mount and out of another one of the same backing, and into one whose daemon dies."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import volfs_client
from volfs_client import exchange, mount, temporary

from tests.client.test_copying import make_tree, shown
from tests.conftest import Area
from tests.mount.volume import Volume


@pytest.mark.modes("cached")
def test_into_a_mount_and_out_of_another(area: Area, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is copied in is in the backing as it was, comes out so on another node, and is not copied again.

    The order of what is read is said to the mount, without what is there already.
    """
    source = make_tree(tmp_path / "a")
    into = volfs_client.copy_tree(source, area.here / "in")
    assert (into.files, into.failed) == (47, 0)
    assert shown(area.back / "in") == shown(source)
    assert volfs_client.copy_tree(source, area.here / "in").unchanged == 47
    assert shown(area.back / "in") == shown(source)

    hinted: list[str] = []
    prefetch = mount.prefetch

    def recorded(directory: str, paths: Iterable[str]) -> bool:
        names = list(paths)
        hinted.extend(os.path.join(directory, name) for name in names)
        return prefetch(directory, names)

    monkeypatch.setattr(mount, "prefetch", recorded)
    volfs_client.copy_tree(area.there / "in/deep/07.bin", tmp_path / "b/deep/07.bin")
    hinted.clear()
    out = volfs_client.copy_tree(area.there / "in", tmp_path / "b")
    assert (out.files, out.unchanged) == (46, 1)
    assert shown(tmp_path / "b") == shown(source)
    files = {str(p) for p in (area.there / "in").rglob("*") if p.is_file() and not p.is_symlink()}
    assert set(hinted) == files - {str(area.there / "in/deep/07.bin")}
    assert len(hinted) == len(files) - 1


@pytest.mark.modes("cached")
def test_a_directory_takes_another_ones_place_on_a_mount(area: Area) -> None:
    """C25: In one step, for the backing too."""
    for name, text in (("old", "old"), ("new", "new")):
        (area.here / name).mkdir()
        (area.here / name / "file").write_text(text)
    exchange.publish(str(area.here / "new"), str(area.here / "old"), replace=True)
    assert os.listdir(area.back) == ["old"]
    assert (area.back / "old/file").read_text() == "new"


@pytest.mark.long
def test_a_daemon_that_dies_ends_the_copy(
    make_volume: Callable[..., Volume], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C22: One error for all that is left, not one for each; after the next mount it goes on."""
    source = tmp_path / "a"
    source.mkdir()
    for number in range(300):
        (source / str(number)).write_bytes(b"x" * 1000)
    volume = make_volume(mode="cached").mount()
    monkeypatch.setattr("volfs_client.copying.tree._REPORT_S", 0.0)

    def report(counts: volfs_client.CopyCounts) -> None:
        if counts.files >= 20 and volume.is_running():
            volume.kill()

    with pytest.raises(volfs_client.CopyFailed) as caught:
        volfs_client.copy_tree(source, volume.mountpoint / "in", jobs=4, progress=report)
    assert caught.value.stopped
    assert len(caught.value.failed) <= 8
    assert errno.ENOTCONN in {error.errno for _, error in caught.value.failed}

    volume.remount()
    counts = volfs_client.copy_tree(source, volume.mountpoint / "in")
    assert counts.files + counts.unchanged == 300
    assert counts.unchanged >= 10
    assert shown(volume.backing / "in") == shown(source)
    assert not [name for name in os.listdir(volume.backing / "in") if temporary.is_ours(name)]
    target = str(volume.mountpoint)
    # What was being written when the daemon died is kept for who wants it: nobody.
    for kept in json.loads(volume.volfs("recover", "list", target, "--json").stdout)["kept"]:
        name = os.path.basename(kept["path"])
        assert temporary.is_ours(name) or (source / name).exists()
        volume.volfs("recover", "discard", target, kept["id"], "--yes")
