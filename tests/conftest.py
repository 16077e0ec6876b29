"""What every test on a mount shares: volumes by mode, areas in them, the watchdog, the check of what is left.

A mount is shared by a module and mode; each test gets a directory of its own in it (`area`). A test that
needs
a daemon of its own asks for `make_volume`. `@pytest.mark.modes(...)` says which modes a test runs in.

*Invariants:* no test leaves a mount, a daemon or a staged file: whatever had to be taken away by force fails
the run.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mount import mounts
from tests.mount.errno_table import ErrnoTable, ErrnoTables
from tests.mount.volume import MODES, PLAIN, Volume, is_staged
from tests.mount.watchdog import Watchdog

#: Longer than pytest-timeout waits: the test is interrupted first, and freed if it hangs where no signal
#: reaches it.
_GRACE_S = 5.0
_DEFAULT_MODES = ("local", "cached")
_log_tails = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.pluginmanager.register(ErrnoTables(), "errno-tables")
    config.addinivalue_line("markers", "modes(*names): the daemon modes that a test on a mount runs in")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Give `volume`, and all that stands on it, one parameter a mode."""
    if "volume" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("modes")
        modes = marker.args if marker else _DEFAULT_MODES
        metafunc.parametrize("volume", modes[:1] if PLAIN else modes, indirect=True, scope="module")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put the ends of the daemons' logs under a failed test."""
    report = yield
    if report.failed:
        for volume in _volumes_of(item):
            for one in (volume, *volume.others):
                report.sections.append((f"daemon {one.name}", one.log_tail()))
    return report


def _volumes_of(item: pytest.Item) -> list[Volume]:
    arguments = getattr(item, "funcargs", {})
    made = getattr(arguments.get("make_volume"), "made", [])
    return [v for v in (arguments.get("volume"), *made) if isinstance(v, Volume)]


@pytest.fixture(scope="session")
def volumes_base() -> Iterator[Path]:
    """Where all volumes of the session live. Other users may pass through it, which pytest's own directories
    forbid.
    """
    base = Path(tempfile.mkdtemp(prefix="volfs-test-")).resolve()
    base.chmod(0o711)
    yield base
    shutil.rmtree(base)


@pytest.fixture(scope="session")
def watchdog(volumes_base: Path) -> Iterator[Watchdog]:
    """The process that frees tests from wedged mounts; at its end nothing may be left."""
    with Watchdog(volumes_base) as running:
        yield running
        left = [f"mount {point}" for point in mounts.beneath(volumes_base)]
        left += [f"process {line}" for line in mounts.processes(volumes_base)]
        for point in mounts.beneath(volumes_base):
            mounts.abort(point)
            mounts.detach(point)
        for pattern in ("*/backing/.volfs/**/*", "*/cache-*/staging/**/*"):
            left += [f"staged {p}" for p in volumes_base.glob(pattern) if is_staged(p)]
        assert left == [], "the session left something behind"


@pytest.fixture(scope="session")
def errno_table(request: pytest.FixtureRequest) -> ErrnoTable:
    """The table of this run, which is shown at its end."""
    plugin = request.config.pluginmanager.get_plugin("errno-tables")
    assert isinstance(plugin, ErrnoTables)
    return plugin.table


@pytest.fixture
def guarded(request: pytest.FixtureRequest, watchdog: Watchdog) -> Iterator[None]:
    """Arm the watchdog for the length of the test."""
    marker = request.node.get_closest_marker("timeout")
    limit = marker.args[0] if marker else float(request.config.getini("timeout") or 120)
    watchdog.arm(limit + _GRACE_S)
    yield
    watchdog.rest()


_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def volume(request: pytest.FixtureRequest, volumes_base: Path, watchdog: Watchdog) -> Iterator[Volume]:
    """The module's mount in one mode. It must unmount cleanly at the end."""
    base = volumes_base / f"{next(_numbers)}-{request.param}"
    made = Volume(base, MODES[request.param])
    watchdog.arm(100)
    made.mount()
    yield made
    watchdog.arm(100)
    try:
        made.unmount()
    finally:
        forced = made.discard()
        watchdog.rest()
    shutil.rmtree(base)
    assert forced == []


@dataclass
class Area:
    """One test's directory in a shared volume, by three roads."""

    volume: Volume
    name: str

    @property
    def here(self) -> Path:
        """Through the mount."""
        return self.volume.mountpoint / self.name

    @property
    def back(self) -> Path:
        """In the backing directory, by hand."""
        return self.volume.backing / self.name

    @property
    def there(self) -> Path:
        """Through a second mount of the same backing, made at first use."""
        if not self.volume.others:
            self.volume.second()
        return self.volume.others[0].mountpoint / self.name

    def settle(self) -> None:
        """Wait until nothing is left to commit."""
        self.volume.settle()


@pytest.fixture
def area(volume: Volume, guarded: None) -> Iterator[Area]:
    """A fresh directory in the module's mount; a daemon that did not survive the test fails it."""
    for one in (volume, *volume.others):
        if not one.is_alive():
            one.discard()
            one.remount()
    made = Area(volume, f"t{next(_numbers)}")
    made.here.mkdir()
    yield made
    dead = [one.name for one in (volume, *volume.others) if not one.is_alive()]
    assert dead == [], "the test ended these mounts"


class VolumeFactory:
    """Makes volumes for one test and takes them away."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self.made: list[Volume] = []

    def __call__(
        self, *options: str, mode: str = "local", environment: dict[str, str] | None = None
    ) -> Volume:
        """A volume that is not mounted yet."""
        base = self._base / f"{next(_numbers)}-own"
        made = Volume(base, (*MODES[mode], *options), environment=environment or {})
        self.made.append(made)
        return made

    def finish(self) -> list[str]:
        """Unmount what still is mounted; answer what had to be forced."""
        forced: list[str] = []
        for made in self.made:
            try:
                if not PLAIN and mounts.is_mounted(made.mountpoint):
                    made.unmount()
            finally:
                forced += made.discard()
                shutil.rmtree(made.base)
        return forced


@pytest.fixture
def make_volume(volumes_base: Path, guarded: None) -> Iterator[Callable[..., Volume]]:
    """A factory of volumes of the test's own; each is unmounted after it, and must allow it."""
    factory = VolumeFactory(volumes_base)
    yield factory
    assert factory.finish() == []
