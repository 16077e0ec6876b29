"""The scenarios, in the order in which they run: quick ones first."""

from __future__ import annotations

from typing import Final

from tests.bench.scenario import Scenario
from tests.bench.scenarios.checkpoint import SCENARIO as CHECKPOINT
from tests.bench.scenarios.checkpointing import SCENARIO as CHECKPOINTING
from tests.bench.scenarios.copying import SCENARIO as COPYING
from tests.bench.scenarios.creating import SCENARIO as CREATING
from tests.bench.scenarios.dlio import SCENARIO as DLIO
from tests.bench.scenarios.epochs import SCENARIO as EPOCHS
from tests.bench.scenarios.first_byte import SCENARIO as FIRST_BYTE
from tests.bench.scenarios.handoff import SCENARIO as HANDOFF
from tests.bench.scenarios.listing import SCENARIO as LISTING
from tests.bench.scenarios.loading import SCENARIO as LOADING
from tests.bench.scenarios.random_reads import SCENARIO as RANDOM_READS
from tests.bench.scenarios.shuffled import SCENARIO as SHUFFLED
from tests.bench.scenarios.streams import SCENARIO as STREAMS

__all__ = ["SCENARIOS"]

SCENARIOS: Final[tuple[Scenario, ...]] = (
    FIRST_BYTE,
    LISTING,
    EPOCHS,
    STREAMS,
    RANDOM_READS,
    HANDOFF,
    SHUFFLED,
    COPYING,
    CREATING,
    CHECKPOINT,
    LOADING,
    CHECKPOINTING,
    DLIO,
)
