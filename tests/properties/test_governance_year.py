"""A year of governance on the virtual clock: objects that fall due again and again, workers that
fail, vanish and come back too late, gates that close and open, an instance that dies between any
two statements and right after a COMMIT. No object is forgotten, no budget overspent, no job held
twice, and the audit verifies.

The loops are the real ones, but their polls, nets under signals that are not lost here, are far
apart: at ten seconds a year would be three million of them.
"""

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from ksana.base.clock import VirtualClock
from tests.ground.killing import killing
from tests.properties.governance_faults import FAULTS
from tests.properties.governance_life import Life

MEMORY: Final = Path("/dev/shm")


@pytest.fixture
def life_of(clock: VirtualClock) -> Iterator[Callable[[int, int], Life]]:
    # In memory where there is such a folder: nothing here is about the disk.
    with (
        tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as folder,
        killing() as killer,
    ):
        yield lambda seed, objects: Life(Path(folder), clock, killer, seed, objects)


async def live_through(life: Life, days: int) -> None:
    await life.start()
    await life.register()
    await life.live(days)
    await life.stop()


def check_that_much_happened(life: Life, days: int) -> None:
    """A quiet year would prove nothing."""
    counts = life.feed.counts
    assert counts["job.ack ACKED"] > life.objects * days // 60
    assert life.deaths > days // 10
    assert life.too_late > 0
    for kind in (
        "job.expire LEASE_EXPIRED",
        "job.fail ATTEMPT_FAILED",
        "job.fail ATTEMPTS_USED_UP",
        "job.requeue REQUEUED",
        "job.fail BUDGET_SPENT",
        "job.fail VERIFY_LIMIT",
        "job.defer GATE_CLOSED",
        "job.wake GATE_OPENED",
        "job.move FOLLOW_UP_MOVED",
    ):
        assert counts[kind] > 0, kind


@pytest.mark.spec("G2", "G3", "G5", "G8", "G9", "G10", "G11", "G12", "G13")
@pytest.mark.parametrize("seed", range(2))
async def test_a_season_passes_and_nothing_is_forgotten_overspent_or_held_twice(
    life_of: Callable[[int, int], Life], seed: int
) -> None:
    life = life_of(seed, 300)
    await live_through(life, 120)
    check_that_much_happened(life, 120)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.spec("G2", "G3", "G5", "G8", "G9", "G10", "G11", "G12", "G13")
async def test_a_year_of_ten_thousand_objects(life_of: Callable[[int, int], Life]) -> None:
    began = time.process_time()
    life = life_of(2026, 10_000)
    await live_through(life, 365)
    check_that_much_happened(life, 365)
    assert time.process_time() - began < 120  # by the processor: the machine may be busy
    assert life.feed.counts["audit.purge RETENTION"] > 0


@pytest.mark.parametrize(
    "fault",
    [
        "believe any token",
        "count an attempt twice on expiry",
        "double follow ups",
        "forget follow ups",
        "gate nobody",
        "take a budget twice",
    ],
)
async def test_a_season_with_a_fault_put_in_on_purpose_is_not_got_through(
    life_of: Callable[[int, int], Life], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    FAULTS[fault](monkeypatch)
    life = life_of(0, 100)
    with pytest.raises(Exception):  # a store that breaks has found it too
        await live_through(life, 60)
    await life.governing.store.close()
