"""Exports of Delta tables without Spark: which rows, in which files, published how, and what is refused.

They need the extra `heavy`.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from volfs_client import TableError, export_table, table_to_pandas, tables, temporary

pytestmark = pytest.mark.long


@pytest.fixture
def table(tmp_path: Path) -> str:
    """A partitioned table of two versions: 1,000 rows, then 1,500."""
    import deltalake

    path = str(tmp_path / "table")
    deltalake.write_deltalake(path, rows(0, 1000), partition_by=["part"])
    deltalake.write_deltalake(path, rows(1000, 1500), mode="append")
    return path


def rows(first: int, end: int) -> Any:
    """Rows that are all different."""
    import pyarrow

    numbers = list(range(first, end))
    return pyarrow.table(
        {
            "id": pyarrow.array(numbers, pyarrow.int64()),
            "text": [None if n % 7 == 0 else f"text {n}" for n in numbers],
            "part": [n % 3 for n in numbers],
        }
    )


def read(path: Path | str) -> Any:
    """All rows of an export, sorted."""
    from pyarrow import parquet

    return parquet.read_table(path).sort_by("id")


def test_all_rows_in_files_of_the_size_that_was_asked_for(table: str, tmp_path: Path) -> None:
    """C26: Every file but the last has so many rows; what is returned is what is there."""
    from pyarrow import parquet

    done = export_table(table, tmp_path / "out", rows_per_file=400)

    assert [parquet.read_metadata(file).num_rows for file in done.files] == [400, 400, 400, 300]
    assert done.rows == 1500
    assert done.bytes == sum(os.path.getsize(file) for file in done.files)
    assert sorted(os.listdir(tmp_path / "out")) == [os.path.basename(file) for file in done.files]
    assert read(tmp_path / "out").select(["id", "text", "part"]).equals(rows(0, 1500))
    assert sorted(os.listdir(tmp_path)) == ["out", "table"]


def test_files_of_about_so_many_bytes(table: str, tmp_path: Path) -> None:
    """Without a number of rows the size of the files decides."""
    done = export_table(table, tmp_path / "out", target_file_bytes=6000)
    assert len(done.files) > 1
    assert all(3000 < os.path.getsize(file) < 12_000 for file in done.files[:-1])


def test_a_part_of_a_table(table: str, tmp_path: Path) -> None:
    """C26: Columns in their order, a condition, an earlier version, nothing at all: as asked."""
    done = export_table(
        table, tmp_path / "some", columns=["text", "id"], where="part = 1 AND id < 500 -- even this"
    )
    some = read(tmp_path / "some")
    assert some.column_names == ["text", "id"]
    assert some["id"].to_pylist() == [n for n in range(500) if n % 3 == 1]
    assert str(some.schema.field("text").type) == "string"
    assert done.rows == 167
    assert export_table(table, tmp_path / "old", version=0).rows == 1000
    assert export_table(table, tmp_path / "none", where="id < 0").rows == 0
    assert read(tmp_path / "none").column_names == ["id", "text", "part"]


def test_a_small_table_in_memory(table: str) -> None:
    """As pandas, unless there are more rows than that is meant for."""
    frame = table_to_pandas(table, columns=["id"], where="id >= 1490")
    assert sorted(frame["id"]) == list(range(1490, 1500))
    with pytest.raises(TableError, match="more than 1499 rows"):
        table_to_pandas(table, max_rows=1499)
    assert len(table_to_pandas(table, max_rows=1500)) == 1500


def test_nothing_is_replaced_unless_asked(table: str, tmp_path: Path) -> None:
    """C25: EEXIST where something is; with overwrite the new files are alone there."""
    export_table(table, tmp_path / "out", rows_per_file=10)
    with pytest.raises(FileExistsError):
        export_table(table, tmp_path / "out")
    done = export_table(table, tmp_path / "out", version=0, overwrite=True)
    assert os.listdir(tmp_path / "out") == [os.path.basename(file) for file in done.files]
    assert export_table(table, tmp_path / "new", overwrite=True).rows == 1500
    assert sorted(os.listdir(tmp_path)) == ["new", "out", "table"]


def test_an_export_that_fails_publishes_nothing(
    table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C25: An error at any step: the old export is there as it was, and nothing beside it."""
    from pyarrow import parquet

    export_table(table, tmp_path / "out", version=0)
    before = read(tmp_path / "out")

    def full(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for owner, name in ((parquet.ParquetWriter, "write_table"), (os, "fsync"), (os, "mkdir")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, full)
            with pytest.raises(OSError) as caught:
                export_table(table, tmp_path / "out", overwrite=True)
        assert caught.value.errno == errno.ENOSPC
        assert read(tmp_path / "out").equals(before)
        assert sorted(os.listdir(tmp_path)) == ["out", "table"]
    with monkeypatch.context() as patch:
        patch.setattr(tables.DeltaRows, "batches", lambda self: iter([rows(0, 5).to_batches()[0]] * 2))
        patch.setattr(parquet.ParquetWriter, "write_table", lambda *given, **options: None)
        with pytest.raises(TableError, match="0 of 10 rows"):
            export_table(table, tmp_path / "out", overwrite=True)
    assert read(tmp_path / "out").equals(before)


def test_what_killed_exports_left_is_removed(table: str, tmp_path: Path) -> None:
    """C25: A temporary directory of a dead process goes; one of a live process stays."""
    mine = temporary.name()
    dead = mine.replace(f"-{os.getpid()}-", f"-{2**22 + 1}-")
    for name in (mine, dead):
        (tmp_path / name).mkdir()
        (tmp_path / name / "part").touch()
    export_table(table, tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == [mine, "out", "table"]


def test_what_would_be_ignored_is_refused(table: str, tmp_path: Path) -> None:
    """C26: Deletion vectors, column mapping by either protocol, and what is not known: no export.

    Of a table with column mapping by the older protocol, delta-rs's own scan gives rows of nulls.
    """
    log = Path(table) / "_delta_log"
    first = (log / f"{0:020}.json").read_text().splitlines()
    meta = next(json.loads(line) for line in first if line.startswith('{"metaData"'))
    schema = json.loads(meta["metaData"]["schemaString"])
    for number, field in enumerate(schema["fields"]):
        field["metadata"] = {
            "delta.columnMapping.id": number,
            "delta.columnMapping.physicalName": field["name"],
        }
        field["name"] += " renamed"
    ignored = "which would be ignored without Spark"
    for features, mapped, text in (
        ([], True, f"uses columnMapping, {ignored}"),
        (["columnMapping"], True, f"uses columnMapping, {ignored}"),
        (["deletionVectors"], False, f"uses deletionVectors, {ignored}"),
        (["typeWidening"], False, f"uses typeWidening, {ignored}"),
        (["fromTheFuture"], False, "fromTheFuture"),
    ):
        protocol: dict[str, Any] = {"minReaderVersion": 2, "minWriterVersion": 5}
        if features:
            protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
            protocol |= {"readerFeatures": features, "writerFeatures": features}
        changed = json.loads(json.dumps(meta))
        if mapped:
            changed["metaData"]["configuration"] = {"delta.columnMapping.mode": "name"}
            changed["metaData"]["schemaString"] = json.dumps(schema)
            changed["metaData"]["partitionColumns"] = ["part renamed"]
        lines = [json.dumps({"protocol": protocol}), json.dumps(changed)]
        (log / f"{2:020}.json").write_text("\n".join(lines) + "\n")
        for where in (None, "true"):
            with pytest.raises(TableError, match=text):
                export_table(table, tmp_path / "out", where=where)
        with pytest.raises(TableError, match=text):
            table_to_pandas(table)
    assert sorted(os.listdir(tmp_path)) == ["table"]


def test_errors_say_what_is_wrong(table: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No such table, version, column or condition; no delta-rs."""
    for arguments, text in (
        ({"table": str(tmp_path / "none")}, "cannot read .*none"),
        ({"version": 9}, "cannot read"),
        ({"columns": ["id", "nope"]}, "has no column nope; it has id, text, part"),
        ({"where": "nope > 1"}, "nope"),
        ({"where": "id >"}, "cannot read"),
    ):
        with pytest.raises(TableError, match=text):
            export_table(**{"table": table, "path": tmp_path / "out", **arguments})  # type: ignore[arg-type]
    for wrong in ({"rows_per_file": 0}, {"target_file_bytes": 0}):
        with pytest.raises(ValueError, match="at least 1"):
            export_table(table, tmp_path / "out", **wrong)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(TableError, match=r"volfs-client\[tables\]"):
        export_table(table, tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["table"]


def test_hugging_face_reads_an_export(table: str, tmp_path: Path) -> None:
    """C27: load_dataset has the rows, in their files' order."""
    import datasets

    done = export_table(table, tmp_path / "out", rows_per_file=400)
    loaded = datasets.load_dataset(
        "parquet", data_files=list(done.files), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert sorted(loaded["id"]) == list(range(1500))
    assert loaded.num_rows == done.rows
