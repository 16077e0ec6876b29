"""Tables as Parquet files in a volume, for loaders that read files.

With a Spark session the session reads and writes; without one, delta-rs reads a Delta table by its
path. Either way the files are written into a temporary directory beside the target, checked,
made durable, and published by one rename.

It does not interpret values: what the engine gives is what is written.

*Invariants:* the target is the old export or the whole new one, also for readers on other nodes.
A feature of a table that the reader would not honor is refused: it would give wrong rows.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from volfs_client import temporary
from volfs_client.delta import DeltaRows, first_line
from volfs_client.durable import sync_directory, sync_file
from volfs_client.errors import TableError
from volfs_client.exchange import publish

if TYPE_CHECKING:
    import pandas

__all__ = ["ExportedTable", "export_table", "table_to_pandas"]

AnyPath = str | os.PathLike[str]

#: What a loader reads at once without waiting long for the first row.
_FILE_BYTES: Final = 128 << 20

#: Rows whose size stands for that of all.
_SAMPLE_ROWS: Final = 10_000

#: A row group is held in memory while it is written, and by whoever reads it.
_GROUP_ROWS: Final = 1 << 17
_GROUP_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class ExportedTable:
    """What was written."""

    files: tuple[str, ...]  #: paths, in the order of the rows
    rows: int
    bytes: int


def export_table(
    table: AnyPath,
    path: AnyPath,
    *,
    spark: Any = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    version: int | None = None,
    rows_per_file: int | None = None,
    target_file_bytes: int = _FILE_BYTES,
    overwrite: bool = False,
    storage_options: dict[str, str] | None = None,
) -> ExportedTable:
    """Write a table, or a part of it, as Parquet files into the directory `path`, which appears when whole.

    spark: a session, also of Spark Connect; `table` is a name in its catalogs then, and `path` must be
    the same directory for its executors. None: `table` is the path or URL of a Delta table, which
    delta-rs reads (`pip install volfs-client[tables]`), with `storage_options`.
    columns, where: which columns, in which order; an SQL condition. version: an earlier one of a Delta
    table.
    rows_per_file: at most so many. None: as many as make about `target_file_bytes`, going by the first rows.
    Spark starts a new file for each partition of its own besides.
    overwrite: what is at `path` stays until the new files take its place. Else: FileExistsError.

    Raises TableError if the table cannot be read, or has features that would be ignored (deletion vectors
    and column mapping, without Spark): nothing is published then. OSError of the target directory.
    """
    if (rows_per_file is not None and rows_per_file < 1) or target_file_bytes < 1:
        raise ValueError("rows_per_file and target_file_bytes: at least 1")
    target = os.path.abspath(path)
    if not overwrite and os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, "overwrite=True replaces what is there", target)
    os.makedirs(os.path.dirname(target), exist_ok=True)
    _sweep(os.path.dirname(target))
    made = os.path.join(os.path.dirname(target), temporary.name())
    os.mkdir(made)
    try:
        if spark is not None:
            frame = _frame(spark, os.fspath(table), columns, where, version)
            _write_by_spark(frame, made, rows_per_file, target_file_bytes)
            expected = None
        else:
            rows = DeltaRows(os.fspath(table), columns, where, version, storage_options)
            expected = _write(
                rows, made, rows_per_file or _rows_per_file(rows.head(_SAMPLE_ROWS), target_file_bytes)
            )
        exported = _check(made, target, expected)
        _sync(made)
        publish(made, target, replace=overwrite)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    finally:
        temporary.done(os.path.basename(made))
    return exported


def table_to_pandas(
    table: AnyPath,
    *,
    spark: Any = None,
    columns: Sequence[str] | None = None,
    where: str | None = None,
    version: int | None = None,
    max_rows: int = 1_000_000,
    storage_options: dict[str, str] | None = None,
) -> pandas.DataFrame:
    """A small table, or a part of one, in memory. Arguments as of `export_table`.

    Raises TableError if there are more than `max_rows`, before they are fetched.
    """
    if spark is not None:
        frame = _frame(spark, os.fspath(table), columns, where, version).limit(max_rows + 1)
        found = frame.toPandas()
    else:
        rows = DeltaRows(os.fspath(table), columns, where, version, storage_options)
        found = rows.head(max_rows + 1).to_pandas()
    if len(found) > max_rows:
        raise TableError(
            f"{os.fspath(table)} has more than {max_rows} rows: export_table, or a higher max_rows"
        )
    return found


def _frame(
    spark: Any, table: str, columns: Sequence[str] | None, where: str | None, version: int | None
) -> Any:
    try:
        frame = (
            spark.table(table) if version is None else spark.read.option("versionAsOf", version).table(table)
        )
        if where is not None:
            frame = frame.where(where)
        frame = frame if columns is None else frame.select(*columns)
        _ = frame.schema  # Connect resolves names only when it is asked
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "pyspark":
            raise
        raise TableError(f"Spark cannot read {table}: {first_line(error)}") from error
    return frame


def _write_by_spark(frame: Any, made: str, rows_per_file: int | None, target_file_bytes: int) -> None:
    if rows_per_file is None:
        rows_per_file = _rows_per_file(frame.limit(_SAMPLE_ROWS).toArrow(), target_file_bytes)
    writer = frame.write.mode("overwrite").option("maxRecordsPerFile", rows_per_file)
    try:
        # With the scheme: the session's default file system may be another one.
        writer.parquet(Path(made).as_uri())
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "pyspark":
            raise
        raise TableError(f"Spark cannot write the table: {first_line(error)}") from error
    if not os.path.exists(os.path.join(made, "_SUCCESS")):
        raise TableError(
            f"Spark wrote, but not into {made} as it is seen here: its executors must see the same directory"
        )
    for name in os.listdir(made):
        # Marks and checksums of Spark's own, for a directory that is not published yet.
        if name.startswith(("_", ".")):
            os.unlink(os.path.join(made, name))
    if not os.listdir(made):
        from pyarrow import parquet

        parquet.write_table(frame.limit(0).toArrow(), os.path.join(made, "part-00000.parquet"))


# -- files --------------------------------------------------------------------------


def _rows_per_file(sample: Any, target_file_bytes: int) -> int:
    """How many rows make a file of this size, if all are like the sample."""
    import pyarrow
    from pyarrow import parquet

    sink = pyarrow.BufferOutputStream()
    parquet.write_table(sample, sink)
    size = int(sink.getvalue().size)
    return max(1, math.floor(target_file_bytes * max(1, int(sample.num_rows)) / size))


def _write(rows: DeltaRows, made: str, rows_per_file: int) -> int:
    """Write all rows, in order, so many a file; how many there were."""
    import pyarrow
    from pyarrow import parquet

    schema = rows.schema
    group_rows = min(_GROUP_ROWS, rows_per_file)
    total = in_file = files = 0
    held: list[Any] = []
    writer: Any = None

    def flush() -> None:
        if held and writer is not None:
            writer.write_table(pyarrow.Table.from_batches(held, schema))
            held.clear()

    for batch in rows.batches():
        total += batch.num_rows
        while batch.num_rows:
            if writer is None:
                writer, in_file = parquet.ParquetWriter(_part(made, files), schema), 0
                files += 1
            held_rows = sum(each.num_rows for each in held)
            part = batch.slice(0, min(rows_per_file - in_file, group_rows - held_rows))
            batch = batch.slice(part.num_rows)
            held.append(part)
            in_file += part.num_rows
            if held_rows + part.num_rows == group_rows or sum(each.nbytes for each in held) >= _GROUP_BYTES:
                flush()
            if in_file == rows_per_file:
                flush()
                writer.close()
                writer = None
    flush()
    if writer is not None:
        writer.close()
    if not files:
        parquet.write_table(schema.empty_table(), _part(made, 0))
    return total


def _part(made: str, number: int) -> str:
    return os.path.join(made, f"part-{number:05}.parquet")


def _check(made: str, target: str, expected: int | None) -> ExportedTable:
    """What was written, by the ends of the files."""
    from pyarrow import parquet

    rows = size = 0
    names = sorted(os.listdir(made))
    for name in names:
        path = os.path.join(made, name)
        rows += parquet.read_metadata(path).num_rows
        size += os.path.getsize(path)
    if expected is not None and rows != expected:
        raise TableError(f"{rows} of {expected} rows arrived in {made}: nothing was published")
    return ExportedTable(tuple(os.path.join(target, name) for name in names), rows, size)


def _sync(made: str) -> None:
    """All files, then the directory: on a mount this is when other nodes can have them."""
    for name in os.listdir(made):
        sync_file(os.path.join(made, name))
    sync_directory(made)


def _sweep(directory: str) -> None:
    """Remove what killed exports left beside the target."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if not temporary.is_ours(entry.name):
                continue
            try:
                abandoned = temporary.is_abandoned(entry.name, entry.stat(follow_symlinks=False))
            except OSError:
                continue  # somebody else was faster
            if abandoned and entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, ignore_errors=True)
