"""What can go wrong in the client itself. Errors of the file system stay what they are: OSError.

    ClientError
      NoFiles             ValueError too: nothing matches
      TooFewFiles         ValueError too: fewer files than a step needs
      FilesChanged        the files are not those that a saved position is of
      StateMismatch       ValueError too: a saved position does not belong to this data set
      RankUnknown         the launcher and the process group say different things
      AlreadySharded      another library would shard once more, and data would be lost
      CheckpointError
        CheckpointExists    FileExistsError too
        CheckpointMissing   FileNotFoundError too
        CheckpointDamaged   a file is missing or has another size
        CheckpointFailed    a rank could not save or load its part; it names each
      CopyFailed          some files could not be copied; it names each
      TableError          an export cannot be made

Each message says what to do.
"""

from __future__ import annotations

__all__ = [
    "AlreadySharded",
    "CheckpointDamaged",
    "CheckpointError",
    "CheckpointExists",
    "CheckpointFailed",
    "CheckpointMissing",
    "ClientError",
    "CopyFailed",
    "FilesChanged",
    "NoFiles",
    "RankUnknown",
    "StateMismatch",
    "TableError",
    "TooFewFiles",
]


class ClientError(Exception):
    """Any of these."""


class NoFiles(ClientError, ValueError):
    """No file matches."""


class TooFewFiles(ClientError, ValueError):
    """There are fewer files than one step of all ranks needs."""


class FilesChanged(ClientError):
    """Files came, went or changed since the position was saved."""


class StateMismatch(ClientError, ValueError):
    """A saved position that does not belong here, or comes too late."""


class RankUnknown(ClientError):
    """It cannot be told which rank this process is."""


class AlreadySharded(ClientError):
    """Two parties would shard the same data."""


class CheckpointError(ClientError):
    """A checkpoint cannot be saved or loaded."""


class CheckpointExists(CheckpointError, FileExistsError):
    """There is a checkpoint already, and it is not to be overwritten."""


class CheckpointMissing(CheckpointError, FileNotFoundError):
    """There is no complete checkpoint."""


class CheckpointDamaged(CheckpointError):
    """A file of the checkpoint is missing, or shorter than it was."""


class CheckpointFailed(CheckpointError):
    """Ranks could not save or load their part. `failures`: the error of each such rank.

    `errno` is that of the first error of the file system among them, None if there is none.
    """

    def __init__(self, message: str, failures: dict[int, BaseException]) -> None:
        super().__init__(message, failures)
        self.failures = failures
        numbers = [one.errno for one in failures.values() if isinstance(one, OSError)]
        self.errno = numbers[0] if numbers else None

    def __str__(self) -> str:
        return str(self.args[0])


class CopyFailed(ClientError):
    """Some files could not be copied. `failed`: (path, error) of each; `stopped`: the rest was not tried."""

    def __init__(self, message: str, failed: list[tuple[str, OSError]], *, stopped: bool = False) -> None:
        super().__init__(message)
        self.failed = failed
        self.stopped = stopped


class TableError(ClientError):
    """A table cannot be exported."""
