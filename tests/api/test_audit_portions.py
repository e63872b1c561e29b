"""The audit verified through the API, a portion at a time."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ksana.engine.governance.anchoring import purge_audit, write_anchor
from ksana.service.governance import portions
from tests.api.governance_ground import SECOND, GovernanceGround, open_governance

pytestmark = pytest.mark.spec("G12")


@pytest.fixture
async def ground(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[GovernanceGround]:
    monkeypatch.setattr(portions, "PORTION", 4)
    async with open_governance(tmp_path) as ground:
        for number in range(9):
            await ground.enqueue(f"m{number}")
        await ground.store.transact(write_anchor, "tester")
        yield ground


async def verify(ground: GovernanceGround) -> list[dict[str, Any]]:
    """Every portion, as answered."""
    answers = [await ground.get("/audit/verify")]
    while (cursor := answers[-1]["next_cursor"]) is not None:
        answers.append(await ground.get(f"/audit/verify?cursor={cursor}"))
    return answers


async def alter(ground: GovernanceGround, sql: str) -> None:
    """Lay a hand on the store."""

    def write(tx: Any) -> None:
        tx.audit._session.raw(sql)
        tx.audit._session.wrote = True

    await ground.store.transact(write)


async def test_a_whole_audit_is_verified_in_portions(ground: GovernanceGround) -> None:
    answers = await verify(ground)
    assert [answer["checked"] for answer in answers] == [4, 4, 2, 0]
    assert [answer["anchors"] for answer in answers] == [0, 0, 0, 1]
    for answer in answers:
        assert answer["ok"] is True
        assert answer["restarted"] is False
        assert answer["first_fault"] is None


async def test_the_portion_with_a_fault_names_it_and_the_others_are_well(
    ground: GovernanceGround,
) -> None:
    await alter(ground, "UPDATE audit_events SET actor = 'mallory' WHERE place = 6")
    answers = await verify(ground)
    assert [answer["ok"] for answer in answers] == [True, False, True, True]
    fault = answers[1]["first_fault"]
    assert (fault["kind"], fault["chain"], fault["seq"]) == ("ALTERED", 0, 6)
    assert fault["id"] == "aud_0000000000000006"
    assert "entry 6 of chain 0" in fault["message"]


async def test_an_entry_missing_at_the_edge_of_portions_is_found(ground: GovernanceGround) -> None:
    await alter(ground, "DELETE FROM audit_events WHERE place = 5")
    faults = [answer["first_fault"] for answer in await verify(ground) if not answer["ok"]]
    assert [(fault["kind"], fault["seq"]) for fault in faults] == [("MISSING", 5)]


async def test_an_altered_anchor_is_found_even_if_it_is_no_json(ground: GovernanceGround) -> None:
    await alter(ground, "UPDATE audit_anchors SET heads_json = '[[0,'")
    answers = await verify(ground)
    assert answers[-1]["first_fault"]["kind"] == "ALTERED"
    assert answers[-1]["first_fault"]["chain"] == -1


@pytest.mark.parametrize("done", [1, 3])
async def test_what_retention_removes_between_portions_is_no_fault(
    ground: GovernanceGround, done: int
) -> None:
    """Where the entry that tells of it comes too late to be seen, the verification begins again."""
    cursor, answers = "", list[dict[str, Any]]()
    while len(answers) < 12:
        if len(answers) == done:
            await ground.store.transact(purge_audit, ground.clock.now() + SECOND, 6)
        answers.append(await ground.get(f"/audit/verify{cursor}"))
        if answers[-1]["next_cursor"] is None:
            break
        cursor = f"?cursor={answers[-1]['next_cursor']}"
    assert answers[-1]["next_cursor"] is None
    assert all(answer["ok"] and answer["first_fault"] is None for answer in answers)
    assert [answer["restarted"] for answer in answers].count(True) == (done == 3)


async def test_a_cursor_that_is_not_ours_is_refused(ground: GovernanceGround) -> None:
    good = (await ground.get("/audit/verify"))["next_cursor"]
    for bad in ("x", "0.0.1", f"{good}~", f"{good}.1", good.replace("1.0.", "1.99999999.", 1)):
        assert (await ground.get(f"/audit/verify?cursor={bad}", 400))["field"] == "cursor"
    # One from a chain's future is not believed: the chain is verified from its beginning.
    beyond = good.replace("1.0.4.", "1.0.4000.")
    assert beyond != good
    assert (await ground.get(f"/audit/verify?cursor={beyond}"))["checked"] == 4
