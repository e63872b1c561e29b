"""Bounds of small rules: ports, hosts, keys, dates, words, gates, hand-outs."""

from typing import Any

import pytest

from ksana.base.errors import InvalidError
from ksana.base.instant import MILLISECOND, SECOND
from ksana.domain.dead_letters import LetterRecord
from ksana.domain.explain import span_words
from ksana.domain.governance.gates import check_scope, list_opened, read_gates
from ksana.domain.governance.hand_out import GovernanceLease, decide_hand_out
from ksana.domain.governance.records import Gate
from ksana.domain.nodes.records import ENDED, NodeJob
from ksana.domain.tasks import signing
from ksana.domain.tasks.headers import find_url_fault, split_url
from ksana.domain.tasks.outcome import parse_retry_after
from ksana.domain.tasks.records import target_of
from tests.unit.governance_ground import NOW, RULES, a_job, an_object
from tests.unit.task_ground import a_definition


@pytest.mark.spec("X2")
@pytest.mark.parametrize(
    ("port", "is_right"),
    [
        (":1", True),
        (":65535", True),
        (":65536", False),
        (":0", False),
        (":00080", True),
        (":000080", False),
        (":", True),
        ("", True),
    ],
)
def test_a_port_lies_between_1_and_65535_and_has_five_digits_at_most(
    port: str, is_right: bool
) -> None:
    assert (find_url_fault(f"http://host{port}/") is None) is is_right


@pytest.mark.spec("X2")
@pytest.mark.parametrize(
    ("host", "is_right"),
    [
        (".".join(["a" * 49] * 5) + ".abc", True),
        (".".join(["a" * 49] * 5) + ".abc.", True),
        (".".join(["a" * 49] * 5) + ".abcd.", False),
        ("...", False),
        ("~", True),
        ("bücher.example", True),
    ],
)
def test_a_host_is_a_possible_name(host: str, is_right: bool) -> None:
    assert (find_url_fault(f"http://{host}/") is None) is is_right
    if host.startswith("b"):
        assert split_url(f"http://{host}/").host == "xn--bcher-kva.example"


@pytest.mark.spec("X2")
def test_a_signing_secret_is_base64_of_bounded_length() -> None:
    longest = "whsec_" + "A" * (signing.MAX_SECRET - 6 - (signing.MAX_SECRET - 6) % 4)
    assert signing.read_key(longest)
    exact = "A" * (signing.MAX_SECRET - signing.MAX_SECRET % 4)
    assert len(exact) == signing.MAX_SECRET
    assert signing.read_key(exact)
    for wrong in (exact + "AAAA", "AA AA", "whsec_", "é", "AAAA\n"):
        with pytest.raises(InvalidError):
            signing.check_secret(wrong)


@pytest.mark.spec("C8")
@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        ("1", 1),
        ("0", None),
        ("Thursday, 01-Jan-70 00:00:30 GMT", 20),
        ("Thursday, 01-Jan-21 00:00:30 GMT", None),
        ("Thu Jan  1 00:00:11 1970", 1),
        ("Thu Jan  1 00:00:10 1970", None),
        ("Thu, 01 Jan 0100 00:00:30 GMT", None),
    ],
)
def test_a_target_may_say_when_by_seconds_or_by_a_date(said: str, seconds: int | None) -> None:
    wait = parse_retry_after(said, 10 * SECOND)
    assert wait == (None if seconds is None else seconds * SECOND)
    assert parse_retry_after("Thu Jan  1 00:00:11 1970", 11 * SECOND - 1) == 1


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://user:key@host:8443/a/b?key=1#end", "POST host:8443/a/b"),
        ("https://host/a#end", "POST host/a"),
        ("https://host", "POST host"),
        ("https://host/" + "a" * 188, "POST host/" + "a" * 188),
        ("https://host/" + "a" * 190, "POST host/" + "a" * 190),
        ("https://host/" + "a" * 191, "POST host/" + "a" * 190),
    ],
)
def test_a_target_is_told_without_what_may_be_secret(url: str, target: str) -> None:
    assert target_of(a_definition(target_url=url, http_method="POST")) == target


@pytest.mark.spec("C8")
def test_a_date_in_two_digits_is_of_the_nearer_century() -> None:
    in_2099 = 4_070_908_800 * SECOND  # 2099-01-01
    assert parse_retry_after("Thursday, 01-Jan-99 00:00:30 GMT", in_2099) == 30 * SECOND
    assert parse_retry_after("Wednesday, 01-Jan-49 00:00:30 GMT", in_2099) is None
    in_2100 = 4_102_444_800 * SECOND  # 2100-01-01
    assert parse_retry_after("Thursday, 31-Dec-99 00:00:30 GMT", in_2100) is None


@pytest.mark.parametrize(
    ("span", "words"),
    [(10 * SECOND, span_words(10 * SECOND)), (10 * SECOND - MILLISECOND, "9.999s")],
)
def test_a_span_of_ten_seconds_is_told_without_fractions(span: int, words: str) -> None:
    assert ("." in span_words(10 * SECOND + 5 * MILLISECOND)) is False
    assert span_words(span) == words


def test_a_letter_has_its_place_by_time_and_id() -> None:
    names = LetterRecord.__struct_fields__
    letter = LetterRecord(**dict.fromkeys(names) | {"id": 4, "died_at": 9})  # type: ignore[arg-type]
    assert letter.place == (9, 4)


@pytest.mark.parametrize(("state", "has_ended"), [("RUNNING", False), ("FINISHED", None)])
def test_a_node_job_knows_whether_it_ended(state: str, has_ended: bool | None) -> None:
    job = NodeJob(**dict.fromkeys(NodeJob.__struct_fields__) | {"state": state})  # type: ignore[arg-type]
    assert job.has_ended is (state in ENDED)
    ended = NodeJob(**dict.fromkeys(NodeJob.__struct_fields__) | {"state": min(ENDED)})  # type: ignore[arg-type]
    assert ended.has_ended is True


# Gates and hand-outs


def gate(name: str, state: str, scope: str = "") -> Gate:
    return Gate(name, scope, state, None, NOW)


@pytest.mark.spec("G8", "G9")
def test_gates_are_read_by_the_strictest_setting_that_covers_the_job() -> None:
    settings = [
        gate("persona", "degraded"),
        gate("persona", "open", "memory"),
        gate("cognition", "closed", "memory:verify"),
        gate("persona", "closed", "*:verify"),
        gate("persona", "closed", "experience"),
    ]
    verdict = read_gates(settings, "memory", "verify")
    assert verdict.closed_by is settings[2], "the first that keeps it"
    assert verdict.states == {"persona": "closed", "cognition": "closed"}
    assert not verdict.is_degraded
    other = read_gates(settings, "memory", "archive")
    assert (other.closed_by, other.states) == (None, {"persona": "degraded", "cognition": "open"})
    assert other.is_degraded
    assert list_opened(settings) == ["persona/", "persona/memory"]
    assert (check_scope(None), check_scope("memory:verify")) == ("", "memory:verify")
    with pytest.raises(InvalidError) as caught:
        check_scope("nonsense")
    assert caught.value.field == "scope"


LEASE = GovernanceLease(worker_id="w", token=8, expires_at=NOW + 9)


def hand_out(job: dict[str, Any], governed: Any = None, gates: Any = ()) -> Any:
    return decide_hand_out(a_job(**job), governed, gates, RULES, LEASE, NOW)


@pytest.mark.spec("G2", "G10")
def test_a_job_that_is_handed_out_says_to_whom_and_what_it_takes() -> None:
    given = hand_out({}, an_object(epistemic_state="uncertain"))
    change = given.job
    assert (change.event, change.audit, given.is_handed_out) == ("GOV_JOB_PULLED", "job.pull", True)
    assert set(change.data) == {
        "worker_id",
        "attempt",
        "lease_expires_at",
        "verify_count",
        "budget_left",
    }
    assert (change.data["verify_count"], change.data["budget_left"]) == (1, 1)
    assert given.governed.reason == "VERIFIED"
    assert set(hand_out({}).job.data) == {"worker_id", "attempt", "lease_expires_at"}


@pytest.mark.spec("G9")
@pytest.mark.parametrize(("deferrals", "is_alert"), [(8, False), (9, True), (10, False)])
def test_a_deferred_job_names_its_gate_and_the_tenth_time_alerts(
    deferrals: int, is_alert: bool
) -> None:
    risky = an_object(risk_tier="high")
    change = hand_out({"deferrals": deferrals}, risky, [gate("persona", "closed", "memory")]).job
    data = {"gate": "persona", "scope": "memory", "deferrals": deferrals + 1}
    assert (change.data, change.audit) == (data, "job.defer")
    assert change.alert == (("GATE_DEFERRED_LONG", data) if is_alert else None)
    everywhere = hand_out({}, risky, [gate("persona", "closed")]).job
    assert everywhere.data["scope"] is None


@pytest.mark.spec("G10", "G11")
def test_a_job_that_a_rule_ends_says_which_and_the_object_has_no_next_action() -> None:
    planned: dict[str, Any] = {"next_action": "verify", "next_action_at": NOW}
    unknowable = an_object(unknown_type="ontic_unknowable", verify_count=2, **planned)
    ended = hand_out({"follow_key": "k"}, unknowable)
    assert (ended.job.reason, ended.job.audit) == ("VERIFY_LIMIT", "job.fail")
    assert ended.job.data["error"] == (
        "the object is ontic_unknowable and was verified 2 times; the limit is 2"
    )
    assert (ended.governed.new.next_action_at, ended.governed.event) == (None, "OBJECT_CHANGED")
    assert hand_out({}, unknowable).governed is None, "its follow-up is another job"
    spent = an_object(epistemic_state="uncertain", auto_verify_budget=0, **planned)
    out = hand_out({"follow_key": "k"}, spent)
    assert out.job.reason == "BUDGET_SPENT"
    assert out.job.data["error"] == "the object is uncertain and its auto_verify_budget is spent"
    assert (out.governed.event, out.governed.new.next_action_at) == ("OBJECT_MOVED", None)
    kept = hand_out({}, spent)
    assert kept.governed.new.next_action_at == NOW
