"""A table as Parquet files in a volume, read back by Hugging Face `datasets` if that is installed.

    python table_export.py /Volumes/main/data/rows          # makes a small Delta table and exports it
    python table_export.py /Volumes/main/data/rows --table /path/to/delta/table
    python table_export.py /Volumes/main/data/rows --table catalog.schema.name --remote sc://host:15002

Works on any directory. Without --remote delta-rs reads the table: pip install 'volfs-client[tables]'.
"""

from __future__ import annotations

import argparse
import os
import tempfile

from volfs_client import export_table


def main() -> None:
    """Export, and load what was exported."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("directory")
    parser.add_argument("--table", help="by default one is made")
    parser.add_argument("--remote", help="of Spark Connect, such as sc://host:15002 or local[2]")
    parser.add_argument("--where", help="an SQL condition")
    parser.add_argument("--rows-per-file", type=int, default=250)
    arguments = parser.parse_args()

    spark = None
    if arguments.remote:
        from pyspark.sql import SparkSession

        spark = SparkSession.builder.remote(arguments.remote).getOrCreate()
    with tempfile.TemporaryDirectory() as scratch:
        done = export_table(
            arguments.table or made_table(os.path.join(scratch, "table")),
            os.path.join(arguments.directory, "rows"),
            spark=spark,
            where=arguments.where,
            rows_per_file=arguments.rows_per_file,
            overwrite=True,
        )
        print(f"{done.rows} rows, {done.bytes} bytes in {len(done.files)} files")
        load(list(done.files), scratch)


def made_table(path: str) -> str:
    """A Delta table of 1,000 rows."""
    import pyarrow
    from deltalake import write_deltalake

    numbers = list(range(1000))
    write_deltalake(path, pyarrow.table({"id": numbers, "text": [f"row {n}" for n in numbers]}))
    return path


def load(files: list[str], cache: str) -> None:
    """As a training script would."""
    try:
        from datasets import load_dataset
    except ImportError:
        return
    rows = load_dataset("parquet", data_files=files, split="train", cache_dir=cache)
    print(f"datasets has {rows.num_rows} rows: {', '.join(rows.column_names)}")


if __name__ == "__main__":
    main()
