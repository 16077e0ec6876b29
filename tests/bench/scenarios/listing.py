"""`ls -l` of one large directory, cold and again."""

from __future__ import annotations

from tests.bench.scenario import Scenario
from tests.bench.targets import Row, at_most
from tests.bench.trial import Trial, WrongBytes

__all__ = ["SCENARIO"]


def _work(trial: Trial) -> None:
    for row in ("ls-cold", "ls-warm"):
        with trial.measure(row):
            said, _ = trial.run(["ls", "-l", trial.files])
        entries = said.count("\n") - 1  # the first line is the total
        if entries != trial.sizes.entries:
            raise WrongBytes(f"{entries} entries listed, of {trial.sizes.entries}")


SCENARIO = Scenario(
    name="ls",
    rows=(
        Row(
            key="ls-cold",
            title="ls -l of 10,000 entries, cold",
            unit="s",
            target="3 s or less",
            conditions=(at_most("ls-cold", 3),),
            higher_is_better=False,
        ),
        Row(
            key="ls-warm",
            title="ls -l of 10,000 entries, warm",
            unit="s",
            target="0.2 s or less",
            conditions=(at_most("ls-warm", 0.2),),
            higher_is_better=False,
        ),
    ),
    # Not directly: ls asks for two attributes of each entry, and who passes them on needs ten minutes.
    systems=("volfs", "rclone", "juicefs"),
    work=_work,
    data="listing",
)
