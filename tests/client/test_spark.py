"""Exports by Spark Connect into a mount: what a loader reads there, and what other nodes see.

They need the extra `heavy`, and Java 17.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from volfs_client import TableError, export_table, table_to_pandas, temporary

from tests.mount.volume import Volume

# Spark takes half a minute to start on a busy machine.
pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """A session of Spark Connect with a server of its own, and a table `numbers` of 1,000 rows."""
    from pyspark import sql

    with pytest.MonkeyPatch.context() as patch:
        # The port is the server's choice: another may run.
        patch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        session = sql.SparkSession.builder.remote("local[2]").getOrCreate()
        session.range(1000).selectExpr("id", "id % 3 AS part").createOrReplaceTempView("numbers")
        yield session
        session.stop()


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning")
def test_spark_exports_into_a_mount(spark: Any, make_volume: Callable[..., Volume]) -> None:
    """C25: The rows are in the backing when the call returns, in files of the size asked for, and alone."""
    from pyarrow import parquet

    volume = make_volume(mode="cached").mount()
    path = volume.mountpoint / "sets/numbers"
    done = export_table(
        "numbers", path, spark=spark, rows_per_file=200, columns=["part", "id"], where="id >= 100"
    )

    back = volume.backing / "sets/numbers"
    assert done.rows == 900
    assert sorted(os.listdir(back)) == [os.path.basename(file) for file in done.files]
    assert all(parquet.read_metadata(file).num_rows <= 200 for file in back.iterdir())
    found = parquet.read_table(back)
    assert found.column_names == ["part", "id"]
    assert sorted(found["id"].to_pylist()) == list(range(100, 1000))
    assert os.listdir(volume.backing / "sets") == ["numbers"]

    with pytest.raises(FileExistsError):
        export_table("numbers", path, spark=spark)
    again = export_table("numbers", path, spark=spark, where="id < 10", overwrite=True)
    assert again.rows == 10
    assert sorted(parquet.read_table(back)["id"].to_pylist()) == list(range(10))
    assert export_table("numbers", volume.mountpoint / "none", spark=spark, where="id < 0").rows == 0
    assert parquet.read_table(volume.backing / "none").column_names == ["id", "part"]
    assert not [name for name in os.listdir(volume.mountpoint) if temporary.is_ours(name)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning")
def test_spark_in_memory_and_errors(spark: Any, tmp_path: Path) -> None:
    """A small table as pandas; what Spark cannot read is a TableError that says why, and leaves nothing."""
    assert sorted(table_to_pandas("numbers", spark=spark, where="id < 5")["id"]) == list(range(5))
    with pytest.raises(TableError, match="more than 10 rows"):
        table_to_pandas("numbers", spark=spark, max_rows=10)
    for arguments, text in (
        ({"table": "nowhere"}, "nowhere"),
        ({"table": "numbers", "columns": ["nope"]}, "nope"),
        ({"table": "numbers", "where": "id >"}, "Spark cannot"),
    ):
        with pytest.raises(TableError, match=text):
            export_table(path=tmp_path / "out", spark=spark, **arguments)
    assert os.listdir(tmp_path) == []


def test_delta_exports_into_a_mount(make_volume: Callable[..., Volume], tmp_path: Path) -> None:
    """C25: Without Spark: a Delta table that lies on the mount, exported into it and over the export."""
    import deltalake
    import pyarrow
    from pyarrow import parquet

    volume = make_volume(mode="cached").mount()
    table = volume.mountpoint / "table"
    deltalake.write_deltalake(str(table), pyarrow.table({"id": list(range(100))}))
    for count in (100, 200):
        done = export_table(table, volume.mountpoint / "out", rows_per_file=60, overwrite=True)
        assert done.rows == count
        assert parquet.read_table(volume.backing / "out")["id"].to_pylist().__len__() == count
        deltalake.write_deltalake(str(table), pyarrow.table({"id": list(range(100))}), mode="append")
    assert sorted(name for name in os.listdir(volume.backing) if name != ".volfs") == ["out", "table"]
