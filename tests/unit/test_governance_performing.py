"""What a webhook or a function is told of a job, and what its answers mean."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from ksana.base.clock import VirtualClock
from ksana.base.instant import HOUR, SECOND, format_instant
from ksana.domain.governance.objects import ObjectFields
from ksana.engine.governance.performing import Performed, read_answer, tell
from ksana.engine.governance.webhook import perform_by_webhook, read_reply
from ksana.ports.caller import MaySend, Reply, ReplyKind, Request, Timing, always
from tests.unit.governance_ground import NOW, a_job, an_object

JOB = a_job(attempt=2)
TOLD_JOB = {
    "job_id": JOB.job_id,
    "object_type": "memory",
    "object_id": "m1",
    "action": "verify",
    "attempt": 2,
    "run_at": format_instant(NOW),
    "object": None,
}
OBJECT = an_object(
    status="active",
    epistemic_state="uncertain",
    unknown_type="multipath",
    risk_tier="high",
    impact_tier="medium",
    auto_verify_budget=5,
    verify_count=3,
    weight=0.25,
    evidence_refs='["doc:1"]',
    data='{"text":"x"}',
)
TOLD_OBJECT = {
    "status": "active",
    "epistemic_state": "uncertain",
    "unknown_type": "multipath",
    "risk_tier": "high",
    "impact_tier": "medium",
    "auto_verify_budget": 5,
    "verify_count": 3,
    "weight": 0.25,
    "evidence_refs": ["doc:1"],
    "data": {"text": "x"},
}


def told(*args: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(tell(*args)))


@pytest.mark.spec("G13")
def test_a_job_is_told_with_its_object_or_without_one() -> None:
    assert told(JOB, None) == TOLD_JOB
    assert told(JOB, OBJECT) == {**TOLD_JOB, "object": TOLD_OBJECT}


@pytest.mark.spec("G13")
@pytest.mark.parametrize(
    ("said", "performed"),
    [
        ({}, Performed()),
        ({"result": "succeeded"}, Performed()),
        ({"result": "succeeded", "error": "ignored"}, Performed()),
        ({"result": "no"}, Performed(error="no")),
        ({"result": "no", "error": None}, Performed(error="no")),
        ({"result": "no", "error": ""}, Performed(error="no")),
        ({"result": "no", "error": "not found"}, Performed(error="not found")),
        ({"result": "no", "error": 7}, Performed(error="7")),
        ({"object": None}, Performed()),
        ({"object": {}}, Performed()),
        ({"object": {"status": None}}, Performed()),
        (
            {"object": {"status": "stale", "weight": 0.5, "unknown_type": None}},
            Performed(fields=ObjectFields(status="stale", weight=0.5)),
        ),
        ({"next_action": "decay"}, Performed(next_action="decay")),
        ({"next_action_at": None}, Performed(next_action_at=None)),
        ({"next_action_at": format_instant(NOW)}, Performed(next_action_at=NOW)),
        (
            {"next_action_at": datetime.fromtimestamp(NOW // SECOND, UTC)},
            Performed(next_action_at=NOW),
        ),
        ({"colour": "red"}, Performed()),
    ],
)
def test_an_answer_is_read_member_by_member(said: Any, performed: Performed) -> None:
    assert read_answer(said) == performed


def test_a_time_that_was_not_answered_is_not_the_same_as_none() -> None:
    assert read_answer({}).next_action_at is UNSET
    assert read_answer({"next_action_at": None}).next_action_at is None


@pytest.mark.spec("G13")
@pytest.mark.parametrize(
    ("given", "why"),
    [
        (datetime(2030, 1, 1), "next_action_at has no time zone"),
        (7, "next_action_at is a int, not a time"),
        (["2030"], "next_action_at is a list, not a time"),
    ],
)
def test_a_time_that_cannot_be_read_is_refused(given: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_answer({"next_action_at": given})


def reply(kind: ReplyKind = "answered", **members: Any) -> Reply:
    return Reply(kind=kind, timing=Timing(), **members)


@pytest.mark.spec("G13")
@pytest.mark.parametrize(
    ("got", "performed"),
    [
        (reply(status=200), Performed()),
        (reply(status=204), Performed()),
        (reply(status=299), Performed()),
        (reply(status=199), Performed(error="the webhook answered 199")),
        (reply(status=300), Performed(error="the webhook answered 300")),
        (reply(status=500, body=b"{}"), Performed(error="the webhook answered 500")),
        (reply(status=200, body=b'{"result":"no"}'), Performed(error="no")),
        (reply(status=200, body=b'{"next_action":"decay"}'), Performed(next_action="decay")),
        (reply("timeout", error="too slow"), Performed(error="too slow")),
        (reply("timeout", status=200), Performed(error="timeout")),
        (reply("aborted"), Performed(error="aborted")),
        (reply(error="no status"), Performed(error="no status")),
    ],
)
def test_a_reply_is_a_success_only_if_it_says_so(got: Reply, performed: Performed) -> None:
    assert read_reply(got) == performed


class OneCall:
    """A Caller that keeps the call it was given."""

    is_resolving = False

    def __init__(self) -> None:
        self.request: Request | None = None
        self.done: Callable[[Reply], None] = lambda _: None
        self.may_send: MaySend = always
        self.aborts = 0

    def call(
        self, request: Request, done: Callable[[Reply], None], may_send: MaySend = always
    ) -> "OneCall":
        self.request, self.done, self.may_send = request, done, may_send
        return self

    def abort(self) -> None:
        self.aborts += 1

    def close(self) -> None: ...


@pytest.mark.spec("G13")
async def test_a_webhook_is_one_post_that_may_leave_while_there_is_time(
    clock: VirtualClock,
) -> None:
    await clock.advance(HOUR)
    caller = OneCall()
    perform = perform_by_webhook("http://hook/", lambda: caller, clock, 10 * SECOND)
    performing = asyncio.ensure_future(perform(JOB, OBJECT))
    await clock.settle()
    sent = caller.request
    assert sent is not None
    assert sent == Request(
        method="POST",
        url="http://hook/",
        headers=(
            ("Content-Type", "application/json"),
            ("X-Ksana-Job-Id", JOB.job_id),
            ("X-Ksana-Attempt", "3"),
        ),
        body=sent.body,
        timeout_us=10 * SECOND,
        may_resend=False,
    )
    assert msgspec.json.decode(sent.body or b"") == {**TOLD_JOB, "object": TOLD_OBJECT}
    await clock.advance(10 * SECOND - 1)
    assert caller.may_send()
    await clock.advance(1)
    assert not caller.may_send()
    caller.done(reply(status=200, body=b'{"result":"no"}'))
    caller.done(reply("aborted"))
    assert await performing == Performed(error="no")
    assert caller.aborts == 1


async def test_a_webhook_that_nobody_waits_for_any_more_is_aborted(clock: VirtualClock) -> None:
    caller = OneCall()
    perform = perform_by_webhook("http://hook/", lambda: caller, clock, SECOND)
    performing = asyncio.ensure_future(perform(JOB, None))
    await clock.settle()
    performing.cancel()
    await asyncio.gather(performing, return_exceptions=True)
    assert caller.aborts == 1
    caller.done(reply("aborted"))
