"""Dead letters on the JSON store: in memory, through the same SQL."""

from pathlib import Path

import pytest

from ksana.base.clock import SystemClock
from ksana.domain.dead_letters import LetterFilter
from ksana.store import jsonfile
from tests.ground.dead_letters import ME, Failing


@pytest.mark.spec("T22", "B12")
async def test_dead_letters_are_listed_and_replayed_beside_a_json_file(tmp_path: Path) -> None:
    store = await jsonfile.open_store(
        f"json:///{tmp_path / 'jobs.json'}", SystemClock(), serve=True
    )
    failing = Failing(store)
    task_id = await failing.add_task()
    await failing.fail_run(task_id)
    await failing.fail_job()
    await failing.fail_governance_job()
    page = await failing.letters.list_letters(failing.surfaces, LetterFilter(), None, 10)
    assert [letter.surface for letter in page.letters] == ["governance", "queue", "tasks"]
    ids = [letter.id for letter in page.letters]
    settled = await failing.letters.settle_some(failing.surfaces, ids, ME, replays=True)
    assert [one.error for one in settled] == [None, None, None]
    await store.close()
