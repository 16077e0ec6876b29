"""`python -m tests.bench.local`: calls on a mount of a local directory beside calls on the directory.

It shows what the daemon itself costs where no store is slow, runs no peers and has no targets.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from tests.bench.machine import machine
from tests.bench.measure import Row, measure
from tests.mount.volume import MODES, Volume

__all__ = ["main"]


def _table(mode: str, rows: list[Row]) -> str:
    lines = [f"{mode:<44}{'mount':>12}{'backing':>12}{'ratio':>8}"]
    lines += [f"  {r.name:<32}{r.unit:<10}{r.mount:>12,.0f}{r.backing:>12,.0f}{r.ratio:>8.3f}" for r in rows]
    return "\n".join(lines)


def main() -> int:
    """Measure each mode on a mount of its own; 0 unless a mount did not come or go cleanly."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.local", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--directory", type=Path, help="where the backing directory is made")
    parser.add_argument("--modes", nargs="+", choices=sorted(MODES), default=["local", "cached"])
    parser.add_argument("--rounds", type=int, default=5, help="the median of so many (default 5)")
    chosen = parser.parse_args()
    about = machine(chosen.directory or Path(tempfile.gettempdir()))
    figures: dict[str, list[Row]] = {}
    print("\n".join(f"{key}: {value}" for key, value in about.items()), flush=True)
    print(f"median of {chosen.rounds} interleaved rounds; ratio = mount / backing\n", flush=True)
    for mode in chosen.modes:
        with tempfile.TemporaryDirectory(prefix="volfs-bench-", dir=chosen.directory) as base:
            volume = Volume(Path(base).resolve(), MODES[mode])
            try:
                volume.mount()
                figures[mode] = measure(volume.mountpoint, volume.backing, chosen.rounds)
                volume.unmount()
            finally:
                volume.discard()
        print(_table(mode, figures[mode]), flush=True)
    if chosen.json:
        data = {"machine": about, "modes": {m: [r._asdict() for r in rows] for m, rows in figures.items()}}
        chosen.json.write_text(json.dumps(data, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
