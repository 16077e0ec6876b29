"""What a reader of the figures needs to know of the machine."""

from __future__ import annotations

import os
import platform
from pathlib import Path

__all__ = ["machine"]


def machine(directory: Path) -> dict[str, str]:
    """Processor, memory, kernel, Python, and the file system of a directory."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    memory = Path("/proc/meminfo").read_text().split()[1]
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    here = max((m for m in mounts if directory.resolve().is_relative_to(m[1])), key=lambda m: len(m[1]))
    return {
        "processor": f"{os.cpu_count()} x {models[0] if models else platform.machine()}",
        "memory": f"{int(memory) / 2**20:.1f} GiB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "local disk": here[2],
        "load at the start": f"{os.getloadavg()[0]:.2f}",
    }
