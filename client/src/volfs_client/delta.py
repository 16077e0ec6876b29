"""The rows of a Delta table by delta-rs, and what of a table is refused because it would not be honored.

A condition is answered by delta-rs's SQL engine, everything else by a plain scan, which keeps the
order of the files.

*Invariants:* either all rows of the version, as they were written, or a TableError.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from volfs_client.errors import TableError

__all__ = ["DeltaRows", "first_line"]

#: Of a table's reader features, those that change neither which rows there are nor under which names.
_HONORED: Final = frozenset({"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"})

_ADVICE: Final = "read it with a Spark session (spark=...)"


class DeltaRows:
    """See the module. `where`: an SQL condition. Raises TableError, also from each method."""

    def __init__(
        self,
        table: str,
        columns: Sequence[str] | None,
        where: str | None,
        version: int | None,
        storage_options: dict[str, str] | None,
    ) -> None:
        try:
            import deltalake
            import pyarrow
            from deltalake.exceptions import DeltaError
        except ImportError as error:
            raise TableError(
                "reading a Delta table without Spark needs delta-rs: pip install 'volfs-client[tables]'"
            ) from error
        self._errors = (DeltaError, pyarrow.ArrowException, OSError, ValueError)
        self._name = table
        self._where = where
        try:
            self._table: Any = deltalake.DeltaTable(table, version=version, storage_options=storage_options)
            _refuse(self._table, table)
            self._dataset: Any = self._table.to_pyarrow_dataset()
        except self._errors as error:
            raise self._refused(error) from error
        names = self._dataset.schema.names
        missing = [name for name in columns or () if name not in names]
        if missing:
            raise TableError(f"{table} has no column {', '.join(missing)}; it has {', '.join(names)}")
        self._columns = list(names if columns is None else columns)
        self.schema: Any = pyarrow.schema([self._dataset.schema.field(name) for name in self._columns])

    def head(self, count: int) -> Any:
        """The first rows, as an Arrow table."""
        import pyarrow

        if self._where is None:
            try:
                return self._dataset.scanner(columns=self._columns).head(count)
            except self._errors as error:
                raise self._refused(error) from error
        return pyarrow.Table.from_batches(self._query(f" LIMIT {count}"), self.schema)

    def batches(self) -> Iterator[Any]:
        """All rows, as Arrow record batches."""
        if self._where is not None:
            yield from self._query("")
            return
        try:
            yield from self._dataset.scanner(columns=self._columns).to_batches()
        except self._errors as error:
            raise self._refused(error) from error

    def _query(self, end: str) -> Iterator[Any]:
        import deltalake
        import pyarrow

        columns = ", ".join('"' + name.replace('"', '""') + '"' for name in self._columns)
        # A line of its own: it may end in a comment.
        query = f"SELECT {columns} FROM exported WHERE (\n{self._where}\n){end}"
        try:
            found = deltalake.QueryBuilder().register("exported", self._table).execute(query)
            for batch in pyarrow.RecordBatchReader.from_stream(found):
                # The engine has types of its own for strings.
                yield batch.cast(self.schema)
        except self._errors as error:
            raise self._refused(error) from error

    def _refused(self, error: BaseException) -> TableError:
        return TableError(f"delta-rs cannot read {self._name}: {first_line(error)}")


def _refuse(table: Any, name: str) -> None:
    protocol = table.protocol()
    features = set(protocol.reader_features or ())
    # Before version 3 of the protocol it is not among the features, and a plain scan finds no such column.
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        features.add("columnMapping")
    unknown = sorted(features - _HONORED)
    if unknown or protocol.min_reader_version > 3:
        what = ", ".join(unknown) or f"version {protocol.min_reader_version} of the protocol"
        raise TableError(f"{name} uses {what}, which would be ignored without Spark: {_ADVICE}")


def first_line(error: BaseException) -> str:
    """What an engine says, without its plans and stack traces."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
