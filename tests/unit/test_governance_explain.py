"""Why a governance job waits, runs or ended, and what comes next for its object."""

from typing import Any

import pytest

from ksana.base.instant import SECOND, format_instant
from ksana.domain.explain import Fact
from ksana.domain.governance import explain
from ksana.domain.governance.explain import ExplainReason, explain_job, explain_object, summarize
from ksana.domain.governance.records import DEFERRED_POSITION, Gate, Rules
from tests.unit.governance_ground import NOW, RULES, a_job, an_object

pytestmark = pytest.mark.spec("G14", "B1")

LATER = NOW + 90 * SECOND
CLOSED = Gate("persona", "", "closed", None, NOW)
DEGRADED = Gate("persona", "", "degraded", None, NOW)


def fact(number: int, **data: Any) -> Fact:
    return Fact(id=number, at=NOW, type="E", data=data)


def why(
    job: dict[str, Any],
    governed: Any = None,
    gates: Any = (),
    rules: Rules = RULES,
    facts: Any = (),
) -> list[tuple[str, str, dict[str, Any], int | None]]:
    found = explain_job(a_job(**{"reason": "DUE", **job}), governed, gates, rules, facts, NOW)
    return [(one.code, one.message, one.data, one.event_id) for one in found]


def test_a_job_that_is_not_due_says_when_and_a_due_one_since_when() -> None:
    at = format_instant(LATER)
    [(code, words, data, _)] = why({"run_at": LATER})
    assert (code, data["run_at"]) == ("NOT_DUE", at)
    assert words == f"the job is due at {at}, in {data['rest']}"
    [(code, words, data, _)] = why({"run_at": NOW})
    assert code == "DUE"
    assert words == (
        f"the job is due since {data['late']} and is given to the next worker that asks for it"
    )
    [(_, _, late, _)] = why({"run_at": NOW - 90 * SECOND})
    [(_, _, soon, _)] = why({"run_at": NOW + 90 * SECOND})
    assert late["late"] == soon["rest"]
    assert [one[0] for one in why({"run_at": NOW + 1})] == ["NOT_DUE"]


def test_a_deferred_job_names_the_gate_and_nothing_else() -> None:
    job = {"position": DEFERRED_POSITION, "gate_key": "persona/", "deferrals": 3}
    words = "the gate persona/ is closed for it; it was deferred 3 times"
    data = {"gate": "persona/", "deferrals": 3}
    assert why(job, an_object(risk_tier="high"), [CLOSED]) == [
        ("WAITS_FOR_GATE", words, data, None)
    ]


def test_a_gate_that_will_keep_it_or_warns_is_told_for_objects_of_high_risk() -> None:
    risky = an_object(risk_tier="high")
    [_, closed] = why({}, risky, [CLOSED])
    assert (closed[0], closed[2]) == ("GATE_WILL_DEFER", {"gate": CLOSED.key})
    [_, degraded] = why({}, risky, [DEGRADED])
    assert degraded[0] == "GATE_DEGRADED"
    assert degraded[2]["gates"]["persona"] == "degraded"
    assert len(why({}, risky, [])) == 1
    assert len(why({}, an_object(), [CLOSED])) == 1, "an object of low risk passes"


def test_a_limit_or_a_budget_that_will_end_it_is_told() -> None:
    unknowable = an_object(unknown_type="ontic_unknowable", verify_count=2)
    [_, limit] = why({}, unknowable)
    words = "the object is unknowable, verified 2 times; the limit is 2"
    assert limit == ("LIMIT_WILL_END_IT", words, {"count": 2, "limit": 2}, None)
    uncertain = an_object(epistemic_state="uncertain", auto_verify_budget=0)
    [_, spent] = why({}, uncertain)
    assert (spent[0], spent[2]) == ("BUDGET_WILL_END_IT", {})
    assert len(why({"action": "archive"}, unknowable)) == 1
    assert len(why({}, an_object(epistemic_state="uncertain", auto_verify_budget=1))) == 1


@pytest.mark.parametrize(
    ("until", "code"), [(NOW + 1, "HELD"), (NOW, "LEASE_OVER"), (None, "HELD")]
)
def test_a_running_job_says_who_holds_it(until: int | None, code: str) -> None:
    job = {"status": "running", "worker_id": "w", "lease_expires_at": until}
    [(found, words, data, _)] = why(job, an_object(risk_tier="high"), [CLOSED])
    assert (found, data["worker"]) == (code, "w")
    assert words == explain.MESSAGES[code].format(**data)
    assert data["until"] == explain.show(until)


def test_the_decision_that_led_there_comes_last_with_its_newest_event() -> None:
    facts = [fact(1, reason="ACKED"), fact(2, reason="ACKED", x=1), fact(3, reason="OTHER")]
    ended = {"status": "succeeded", "reason": "ACKED"}
    words = "its worker acknowledged it"
    assert why(ended, facts=facts) == [("ACKED", words, {"reason": "ACKED", "x": 1}, 2)]
    assert why(ended) == [("ACKED", words, {}, None)]
    assert why({"status": "succeeded", "reason": "NO_WORDS_FOR_IT"}) == []
    assert why({"status": "succeeded", "reason": None}) == []
    assert [one[0] for one in why({"reason": "ENQUEUED"})] == ["DUE", "ENQUEUED"]


def about(governed: Any, *jobs: Any, **members: Any) -> list[ExplainReason]:
    given: dict[str, Any] = {"gates": (), "rules": RULES, "facts": (), "now": NOW}
    return explain_object(governed, jobs, **given | members)


def test_an_object_says_what_comes_next() -> None:
    assert [one.code for one in about(None)] == ["NOT_REGISTERED"]
    assert [one.code for one in about(an_object())] == ["NO_ACTION_PLANNED"]
    planned = an_object(next_action="verify", next_action_at=LATER)
    at = format_instant(LATER)
    [lost] = about(planned)
    assert lost == ExplainReason(
        "ACTION_WITHOUT_JOB",
        f"verify was planned for {at}, and no job is left of it",
        {"action": "verify", "at": at},
    )
    for status in ("queued", "running"):
        assert about(planned, a_job(status=status))[0].code == "ACTION_PLANNED"
    assert about(planned, a_job(status="succeeded"))[0].code == "ACTION_WITHOUT_JOB"
    both = about(planned, a_job(status="succeeded"), a_job(status="queued"))
    assert both[0].message == f"verify is planned for {at}"


def test_an_object_tells_of_its_budget_and_its_limit() -> None:
    [_, left] = about(an_object(epistemic_state="uncertain", auto_verify_budget=1))
    assert (left.code, left.data) == ("BUDGET_LEFT", {"budget": 1})
    assert left.message == "1 verifications are left in its budget"
    [_, limit] = about(an_object(unknown_type="ontic_unknowable", verify_count=2))
    assert (limit.code, limit.data) == ("LIMIT_WILL_END_IT", {"count": 2, "limit": 2})
    assert len(about(an_object(unknown_type="ontic_unknowable", verify_count=1))) == 1


def test_the_jobs_of_an_object_are_explained_with_it() -> None:
    job = a_job(status="succeeded", reason="ACKED")
    [_, reason] = about(an_object(), job, facts=[fact(5, reason="ACKED")])
    assert reason == ExplainReason(
        "ACKED",
        "verify (succeeded): its worker acknowledged it",
        {"reason": "ACKED", "job_id": job.job_id, "action": "verify", "status": "succeeded"},
        5,
    )


def test_reasons_are_summed_up_as_sentences() -> None:
    reasons = [ExplainReason("A", "first one", {}), ExplainReason("B", "second", {})]
    assert summarize(reasons) == "First one. Second."
    assert summarize([]) == ""
