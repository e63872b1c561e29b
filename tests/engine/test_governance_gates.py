"""Gates at the service of governance: set, recorded, and what they wake; and explain."""

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import NotFoundError
from ksana.domain.explain import Fact
from ksana.domain.governance import explain as words
from ksana.domain.governance.records import Gate, GovernanceJob, Rules
from ksana.ports.governance.tables import AuditFilter
from ksana.service.governance import transactions
from ksana.service.governance.explain import Explained, GovernanceExplainer
from tests.engine.governance_services import Watched, open_governing
from tests.ground.governance import ME


@pytest.fixture
async def governing(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Watched]:
    async with open_governing(tmp_path, clock) as governing:
        yield governing


@pytest.mark.spec("G9", "G12")
@pytest.mark.parametrize(("scope", "shown"), [("", None), ("memory", "memory")])
async def test_a_gate_that_is_set_is_recorded_with_what_it_was(
    governing: Watched, scope: str, shown: str | None
) -> None:
    said: list[str] = []
    governing.service.on_gate = lambda: said.append("gate")
    setting, woken = await governing.service.set_gate("persona", scope, "closed", "upset", ME)
    gate = Gate("persona", scope, "closed", "upset", governing.clock.now(), "tester")
    assert (setting, woken, said) == (gate, 0, ["gate"])
    assert gate in await governing.service.list_gates()
    await governing.service.set_gate("persona", scope, "degraded", None, ME)
    assert not governing.take_told()
    place = {"gate": "persona", "scope": shown}
    assert await governing.facts("GATE_CHANGED") == [
        ("GATE", gate.key, {**place, "from": "open", "state": "closed", "reason": "upset"}),
        ("GATE", gate.key, {**place, "from": "closed", "state": "degraded", "reason": None}),
    ]
    second, first = (await governing.audit.list_entries(AuditFilter(), None, 10)).entries
    told = [
        (one.event_type, one.actor, msgspec.json.decode(one.before or ""), one.reason)
        for one in (first, second)
    ]
    assert told == [
        ("gate.change", "tester", {**place, "state": "open"}, "upset"),
        ("gate.change", "tester", {**place, "state": "closed"}, None),
    ]
    assert msgspec.json.decode(second.after or "") == {**place, "state": "degraded"}
    assert first.correlation_id == "req-1"


@pytest.mark.spec("G9")
async def test_gates_are_listed_each_with_its_own_setting_first(governing: Watched) -> None:
    for gate, scope in (("cognition", ""), ("persona", "memory"), ("persona", "")):
        await governing.close_gate(gate, scope)
    shown = [(one.gate, one.scope) for one in await governing.service.list_gates()]
    assert shown == [("persona", ""), ("persona", "memory"), ("cognition", "")]


async def defer(governing: Watched, number: int) -> list[GovernanceJob]:
    """Jobs that wait for the gate of the persona."""
    await governing.close_gate()
    jobs = []
    for at in range(number):
        await governing.put(f"m{at}", risk_tier="high")
        jobs.append(await governing.enqueue(f"m{at}"))
    assert await governing.pull(number) == []
    governing.take_told()
    return jobs


@pytest.mark.spec("G9")
@pytest.mark.parametrize(("state", "woken"), [("open", 2), ("degraded", 2), ("closed", 0)])
async def test_a_gate_that_is_not_closed_any_more_wakes_what_waited(
    governing: Watched, state: str, woken: int
) -> None:
    jobs = await defer(governing, 2)
    _, count = await governing.service.set_gate("persona", "", state, None, ME)
    assert (count, governing.take_told()) == (woken, woken > 0)
    assert [(await governing.job(job)).gate_key is None for job in jobs] == [woken > 0] * 2


@pytest.mark.spec("G9")
async def test_closing_a_gate_wakes_nothing_not_even_what_another_left(
    governing: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "WAKE_AT_ONCE", 1)
    await defer(governing, 2)
    assert await governing.open_gate() == 1
    assert (await governing.service.set_gate("cognition", "", "closed", None, ME))[1] == 0


@pytest.mark.spec("G9")
async def test_what_one_transaction_should_not_wake_the_sweep_does_at_once(
    governing: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "WAKE_AT_ONCE", 1)
    jobs = await defer(governing, 3)
    async with governing.beside(governing.service.sweep.pump.run):
        assert await governing.open_gate() == 1
        await governing.virtual.settle()
        assert [(await governing.job(job)).reason for job in jobs] == ["GATE_OPENED"] * 3


# Explained


@pytest.mark.spec("B1", "G9")
async def test_a_job_and_its_object_are_explained_by_what_is_recorded_of_them(
    governing: Watched,
) -> None:
    [job] = await defer(governing, 1)
    await governing.enqueue("other")
    events = await governing.store.read(
        lambda tx: tx.events.list_after(0, 100, "GOV_JOB", job.job_id)
    )
    facts = [Fact(one.id, one.ts, one.type, msgspec.json.decode(one.data)) for one in events]
    assert len(facts) == 2
    stored, governed = await governing.job(job), await governing.object("m0")
    gates, now, rules = await governing.service.list_gates(), governing.clock.now(), Rules()
    explainer = GovernanceExplainer(governing.store, rules)
    reasons = words.explain_job(stored, governed, gates, rules, facts, now)
    assert await explainer.explain_job(job.job_id) == Explained(words.summarize(reasons), reasons)
    assert any(reason.code == "GATE_CLOSED" for reason in reasons)
    reasons = words.explain_object(governed, [stored], gates, rules, facts, now)
    found = await explainer.explain_object("memory", "m0")
    assert found == Explained(words.summarize(reasons), reasons)
    with pytest.raises(NotFoundError):
        await explainer.explain_job("job_nobody")
