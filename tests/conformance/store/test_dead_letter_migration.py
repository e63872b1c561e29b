"""Governance jobs that were dead letters before there was one place for them are in it."""

import pytest

from ksana.base.clock import SystemClock
from ksana.domain.dead_letters import LetterFilter
from ksana.store.sql import open_store
from ksana.store.sql.core import migrate
from tests.conformance.store.ground import Database
from tests.ground.dead_letters import Failing


@pytest.mark.spec("X2", "B12", "X13")
async def test_older_dead_letters_of_governance_are_taken_over(
    store_url: str, database: Database
) -> None:
    store = await open_store(store_url, SystemClock())
    failing = Failing(store)
    dead = await failing.fail_governance_job("m1", "no luck")
    await failing.governing.enqueue("m2")
    await store.close()
    # As a store of the version before: without the table, and with the step not yet taken.
    [step] = [one for one in migrate.list_migrations() if one.name == "dead_letters"]
    database.ask("DROP TABLE dead_letters")
    database.ask(f"DELETE FROM schema_migrations WHERE version = {step.version}")
    store = await open_store(store_url, SystemClock())
    try:
        page = await Failing(store).letters.list_letters(["governance"], LetterFilter(), None, 10)
        [letter] = page.letters
        assert (letter.entity_id, letter.error, letter.source) == (dead, "no luck", "memory")
    finally:
        await store.close()
