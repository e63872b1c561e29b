"""From a run to the job that it is handed over to: its payload, its order, and whose it is."""

from typing import Any

import pytest

from ksana.base.instant import MINUTE, SECOND
from ksana.domain.handover import MAX_PAYLOAD, job_id_of
from ksana.domain.tasks.job_runs import is_taken_up
from ksana.domain.tasks.records import ClaimedRun, NodeSpec, QueueSpec
from ksana.engine.tasks.payloads import build_node_order, build_payload, build_queue_order
from ksana.ports.handover import NodeOrder, QueueOrder
from tests.unit.task_ground import NOW, a_claimed_run, a_run, a_task

WIDE = "\N{MUSICAL SYMBOL G CLEF}"
"""Four bytes."""


def run_of(override_body: str | None = None, **members: Any) -> ClaimedRun:
    return a_claimed_run(a_task(**members), override_body=override_body)


@pytest.mark.parametrize(
    ("members", "payload"),
    [
        ({}, "{}"),
        ({"body": '{"a":1}'}, '{"a":1}'),
        ({"body": '{"a":1}', "override_body": '{"b":2}'}, '{"b":2}'),
        ({"override_body": '{"b":2}'}, '{"b":2}'),
        ({"body": '{"run":"{{run_id}}"}'}, '{"run":"60"}'),
        ({"body": '{"run":"{{run_id}}"}', "template": False}, '{"run":"{{run_id}}"}'),
        ({"body": '{"run_id":"<filled-by-service>"}'}, '{"run_id":"<filled-by-service>"}'),
        ({"body": '{"to":"{{callback_url}}"}'}, '{"to":""}'),
    ],
)
def test_a_payload_is_the_body_with_its_placeholders_filled(
    members: dict[str, Any], payload: str
) -> None:
    assert build_payload(run_of(**members), NOW) == payload


def test_a_value_is_escaped_for_json() -> None:
    run = a_claimed_run(a_task(job_id='a"b', body='{"job":"{{job_id}}"}'))
    assert build_payload(run, NOW) == '{"job":"a\\"b"}'


@pytest.mark.parametrize(
    "body", ["x" * MAX_PAYLOAD, WIDE * (MAX_PAYLOAD // 4)], ids=["narrow", "wide"]
)
def test_a_payload_is_bounded_in_bytes(body: str) -> None:
    assert build_payload(run_of(body=body), NOW) == body
    with pytest.raises(ValueError, match=f"more than {MAX_PAYLOAD} bytes once it is filled"):
        build_payload(run_of(body=body + body[0]), NOW)


def test_a_node_job_is_ordered_as_the_task_says() -> None:
    spec = NodeSpec("echo", (("zone", "a"),), 3, MINUTE, SECOND)
    run = run_of(type="node", node=spec, body='{"n":1}')
    assert build_node_order(run, NOW) == NodeOrder(
        job_id=job_id_of(run.uid, 2),
        request_id=f"run:{run.uid}:2",
        model="echo",
        labels=(("zone", "a"),),
        priority=3,
        payload_json='{"n":1}',
        wait_us=MINUTE,
        timeout_us=SECOND,
        trace_id="t",
    )


def test_a_queue_job_is_ordered_as_the_task_says() -> None:
    spec = QueueSpec("etl", "nightly", 5, "HIGH", '{"gpu":true}', 4, "team")
    run = run_of(type="queue", queue=spec, body='{"n":1}')
    assert build_queue_order(run, NOW) == QueueOrder(
        job_id=job_id_of(run.uid, 2),
        request_id=f"run:{run.uid}:2",
        addon_id="etl",
        job_type="nightly",
        cost_units=5,
        priority="HIGH",
        constraints_json='{"gpu":true}',
        payload_json='{"n":1}',
        max_attempts=4,
        fairness_key="team",
    )


@pytest.mark.parametrize("build", [build_node_order, build_queue_order])
def test_a_task_that_is_of_another_type_by_now_has_no_such_job(build: Any) -> None:
    with pytest.raises(ValueError, match="the task is of type http since this run was made"):
        build(run_of(), NOW)


@pytest.mark.spec("C19")
@pytest.mark.parametrize(
    ("status", "attempt", "token", "is_taken"),
    [
        ("RUNNING", 2, 9, True),
        ("RETRYING", 1, 9, True),
        ("RUNNING", 2, 5, False),
        ("RUNNING", 3, 9, False),
        ("RETRYING", 2, 9, False),
        ("CANCELED", 2, 9, False),
        ("SUCCESS", 2, 9, False),
    ],
    ids=["held", "about to be", "ours", "next attempt", "attempt lost", "cancelled", "over"],
)
def test_a_job_is_taken_up_by_who_holds_the_same_attempt(
    status: str, attempt: int, token: int, is_taken: bool
) -> None:
    run = a_run(status=status, attempt=attempt, token=token, held_by="two")
    assert is_taken_up(run, a_claimed_run()) is is_taken
