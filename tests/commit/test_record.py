"""`mount.json`: whose a cache directory is, and mounts that would take its files for lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from volfs.commit.record import MountRecord, claim, read, staging_path
from volfs.errors import SetupError


@pytest.fixture
def record(tmp_path: Path) -> MountRecord:
    """A mount whose staged files lie in the backing."""
    (tmp_path / "mount-id").write_text("me\n")
    (tmp_path / "backing/.volfs/me").mkdir(parents=True)
    return MountRecord(
        tmp_path / "backing", tmp_path / "a \udcff", cached=False, commit="close", read_only=False
    )


def test_what_is_written_is_read(tmp_path: Path, record: MountRecord) -> None:
    """Names that are no UTF-8 included; a later mount that owes nothing may be any."""
    claim(tmp_path, record, owes=False)
    assert read(tmp_path) == record
    assert staging_path(tmp_path) == tmp_path / "backing/.volfs/me"
    other = replace(record, backing=tmp_path / "other", cached=True)
    claim(tmp_path, other, owes=False)
    assert read(tmp_path) == other
    assert staging_path(tmp_path) == tmp_path / "staging"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backing", "mount-id", "mount.json"]


def test_the_same_mount_again(tmp_path: Path, record: MountRecord) -> None:
    """What it owes is where it looks; so it is for the first daemon that writes a record at all."""
    claim(tmp_path, record, owes=True)
    claim(tmp_path, record, owes=True)
    claim(tmp_path, replace(record, mountpoint=tmp_path / "moved", commit="background"), owes=True)


def test_the_same_mount_on_a_full_disk(
    tmp_path: Path, record: MountRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing new is to be written, so the mount that would free the disk can start."""
    claim(tmp_path, record, owes=False)

    def full(*args: object, **more: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    claim(tmp_path, record, owes=True)
    with pytest.raises(SetupError, match="No space left"):
        claim(tmp_path, replace(record, commit="background"), owes=True)


def test_a_read_only_mount_in_between(tmp_path: Path, record: MountRecord) -> None:
    """It looks for no staged file, so it may be any; and what is known of them stays known."""
    claim(tmp_path, record, owes=False)
    claim(tmp_path, replace(record, cached=True, read_only=True), owes=True)
    assert read(tmp_path) == record


@pytest.mark.parametrize("kind", ["backing", "cache", "not mounted"])
def test_files_that_would_be_taken_for_lost(tmp_path: Path, record: MountRecord, kind: str) -> None:
    """Another store, the other staging directory, an empty mount point: refused, and the record stays."""
    claim(tmp_path, record, owes=False)
    now = record
    if kind == "backing":
        now, message = replace(record, backing=tmp_path / "other"), "to be committed to"
    elif kind == "cache":
        now, message = replace(record, cached=True), "mount once more with --cache off"
    else:
        (tmp_path / "backing/.volfs").rename(tmp_path / "away")
        message = "is the file system of .* mounted"
    with pytest.raises(SetupError, match=message):
        claim(tmp_path, now, owes=True)
    assert read(tmp_path) == record


@pytest.mark.parametrize("content", [None, "", "{}", "[]", '{"backing": 1, "mountpoint": "x", "mode": {}}'])
def test_no_record(tmp_path: Path, content: str | None) -> None:
    """A record that is not there, or none, says what to do."""
    if content is not None:
        (tmp_path / "mount.json").write_text(content)
    with pytest.raises(SetupError, match="mount it once more"):
        read(tmp_path)
