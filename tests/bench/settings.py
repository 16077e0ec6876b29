"""What a run of the suite is told, by environment variables, and how large its work is.

It does not know the scenarios; unknown names in BENCH_ONLY are refused where they are known.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["KIB", "LATENCY_S", "MIB", "REPOSITORY", "STREAM_MBPS", "TOTAL_MBPS", "Settings", "Sizes"]

REPOSITORY: Final = Path(__file__).resolve().parents[2]
KIB: Final = 1 << 10
MIB: Final = 1 << 20

#: The slow store: an object store or NFS server in the same region, at its usual best.
LATENCY_S: Final = 0.010
STREAM_MBPS: Final = 100
TOTAL_MBPS: Final = 1000


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much work each scenario is. `scaled` makes it less, for a quick look; block sizes stay."""

    directories: int = 15
    files_each: int = 1025  #: 15,375 files in all, as in the figure that the reference product publishes
    file_bytes: int = 150 * KIB
    large_bytes: int = 2048 * MIB
    random_reads: int = 1000
    shuffled_files: int = 2048
    shuffled_bytes: int = 256 * KIB
    entries: int = 10_000
    checkpoint_bytes: int = 1024 * MIB
    created_files: int = 2000
    unet3d_files: int = 128  #: of 8 MiB
    resnet50_files: int = 2048  #: of 112 KiB

    @classmethod
    def scaled(cls, scale: float) -> Sizes:
        """A `scale` of 1 is the size that the targets are for."""

        def part(whole: int, least: int = 1, unit: int = 1) -> int:
            return max(least, round(whole * scale / unit)) * unit

        whole = cls()
        return cls(
            directories=part(whole.directories, 2),
            files_each=whole.files_each if scale >= 1 else part(whole.files_each, 20),
            large_bytes=part(whole.large_bytes, 12, MIB),
            random_reads=part(whole.random_reads, 20),
            shuffled_files=part(whole.shuffled_files, 64),
            entries=part(whole.entries, 100),
            checkpoint_bytes=part(whole.checkpoint_bytes, 8, MIB),
            created_files=part(whole.created_files, 50),
            unet3d_files=part(whole.unet3d_files, 16),
            resnet50_files=part(whole.resnet50_files, 128),
        )

    @property
    def files(self) -> int:
        return self.directories * self.files_each


@dataclass(frozen=True)
class Settings:
    """One run. `only` and `peers` are empty for all."""

    rounds: int = 5
    scale: float = 1.0
    only: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    output: Path = REPOSITORY / "build" / "bench"
    directory: Path = Path(tempfile.gettempdir())

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Settings:
        """BENCH_ROUNDS, _SCALE, _ONLY, _PEERS, _OUTPUT, _DIR; ValueError if unfit."""

        def names(key: str) -> tuple[str, ...]:
            return tuple(name.strip() for name in environment.get(key, "").split(",") if name.strip())

        rounds = int(environment.get("BENCH_ROUNDS", cls.rounds))
        scale = float(environment.get("BENCH_SCALE", cls.scale))
        if rounds < 1 or not 0 < scale <= 1:
            raise ValueError("BENCH_ROUNDS is 1 or more, BENCH_SCALE above 0 and at most 1")
        return cls(
            rounds=rounds,
            scale=scale,
            only=names("BENCH_ONLY"),
            peers=names("BENCH_PEERS"),
            output=Path(environment.get("BENCH_OUTPUT") or cls.output).resolve(),
            directory=Path(environment.get("BENCH_DIR") or cls.directory).resolve(),
        )

    @property
    def sizes(self) -> Sizes:
        return Sizes.scaled(self.scale)
