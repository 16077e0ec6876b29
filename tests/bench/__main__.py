"""`python -m tests.bench`: runs the suite, prints the table, writes JSON and a plot.

Environment variables choose (`settings.Settings`). Ends with 0 if no target was missed, else 1; 2 if it
cannot run. Ctrl-C and SIGTERM unmount and remove everything first.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from tests.bench.daemon import DaemonError
from tests.bench.machine import machine
from tests.bench.plot import plot
from tests.bench.results import Entry, as_json, summarize
from tests.bench.runner import Runner, chosen, needed_bytes
from tests.bench.scenarios import SCENARIOS
from tests.bench.settings import LATENCY_S, STREAM_MBPS, TOTAL_MBPS, Settings
from tests.bench.table import table, verdicts
from tests.mount import mounts

__all__ = ["main"]


def _say(line: str) -> None:
    print(line, flush=True)


def _terminated(number: int, _: FrameType | None) -> None:
    raise KeyboardInterrupt(f"signal {number}")


def _write(settings: Settings, about: dict[str, str], entries: list[Entry], interrupted: bool) -> bool:
    """Print and write what there is; whether no target was missed."""
    summaries = summarize(entries)
    rows = [row for scenario in SCENARIOS for row in scenario.rows]
    scaled = settings.scale != 1
    print("\n" + table(rows, summaries, scaled=scaled) + "\n")
    said = verdicts(rows, summaries)
    settings.output.mkdir(parents=True, exist_ok=True)
    document = {
        "machine": about,
        "rounds": settings.rounds,
        "scale": settings.scale,
        "interrupted": interrupted,
        "verdicts": {key: {"passed": one.passed, "reason": one.reason} for key, one in said.items()},
        "measurements": as_json(entries),
    }
    (settings.output / "results.json").write_text(json.dumps(document, indent=2) + "\n")
    written = "results.json"
    try:
        title = f"volfs and peers, medians of {settings.rounds}, scale {settings.scale:g}"
        plot(rows, summaries, settings.output / "medians.png", title)
        written += " and medians.png"
    except ImportError:
        print("no plot: matplotlib is not installed")
    print(f"{written} in {settings.output}")
    return not any(one.passed is False for one in said.values())


def main() -> int:
    """Run what the environment says."""
    try:
        settings = Settings.from_environment(os.environ)
        scenarios = chosen(SCENARIOS, settings.only)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if os.geteuid() != 0:
        print("the benchmark drops the kernel's caches: run it as root", file=sys.stderr)
        return 2
    need, free = needed_bytes(settings), shutil.disk_usage(settings.directory).free
    if free < need:
        room = f"{need / 2**30:.1f} GiB, and {settings.directory} has {free / 2**30:.1f}"
        print(f"the data sets and caches need up to {room}; BENCH_DIR names another place", file=sys.stderr)
        return 2
    about = machine(settings.directory)
    print("\n".join(f"{key}: {value}" for key, value in about.items()))
    rates = f"{STREAM_MBPS} MB/s a stream, {TOTAL_MBPS} MB/s in all"
    print(f"slow store: {LATENCY_S * 1000:g} ms a request, {rates}")
    _say(f"{settings.rounds} rounds, scale {settings.scale:g}, data below {settings.directory}\n")
    signal.signal(signal.SIGTERM, _terminated)
    entries: list[Entry] = []
    interrupted = False
    with tempfile.TemporaryDirectory(
        prefix="volfs-bench-", dir=settings.directory, ignore_cleanup_errors=True
    ) as name:
        base = Path(name).resolve()
        base.chmod(0o711)  # daemons of other users pass through
        try:
            runner = Runner(settings, base, _say)
            for peer, hint in runner.missing.items():
                _say(f"{peer} is not installed, and left out ({hint})")
            for entry in runner.run(scenarios):
                entries.append(entry)
        except (ValueError, DaemonError) as error:
            print(error, file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            interrupted = True
            _say("interrupted: what was measured until now")
        finally:
            for point in mounts.beneath(base):
                mounts.abort(point)
                mounts.detach(point)
    passed = _write(settings, about, entries, interrupted)
    return 130 if interrupted else 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
