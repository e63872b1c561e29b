"""What a run shows of its calls over HTTP is what was sent and what came of it (C5, C12)."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ksana.base.instant import SECOND, format_instant
from ksana.domain.tasks.changes import make_ready
from ksana.domain.tasks.records import ClaimedRun
from ksana.engine.tasks.claimed_run import AttemptOver
from ksana.engine.tasks.claimer import claim_ready
from ksana.engine.tasks.recorder import record_outcomes
from ksana.engine.tasks.requests import Built, build_request
from ksana.ports.caller import Reply, Timing
from tests.api.tasks_ground import Ground, open_tasks

RUNS = "/api/v1/runs"
ME = "i1"
HOLE = "{{run_uid}}"
OWN = {"X-Team": 'the "ops" team', "X-Path": "a\\b,[{}]", "X-Run": HOLE, "Accept": "text/csv"}
SIGNING = "whsec_" + "QUFB" * 11


@pytest.fixture
async def ground(tmp_path: Path) -> AsyncIterator[Ground]:
    async with open_tasks(tmp_path) as ground:
        yield ground


async def claim(ground: Ground) -> ClaimedRun:
    """Take the one run that is ready, as an instance would."""

    def take(tx: Any) -> ClaimedRun:
        [claimed], _ = claim_ready(tx, "target.test", ME, [77], 1)
        return claimed

    return await ground.store.transact(take)


async def answer(ground: Ground, held: ClaimedRun, reply: Reply) -> tuple[Built, AttemptOver]:
    """Send the request of a run, which takes 1234.567 ms, and record what came of it."""
    started_at = ground.clock.now()
    built = build_request(held, started_at, "http://ksana/api/v1/callbacks", "ksana/9")
    await ground.clock.advance(1_234_567)
    over = AttemptOver(
        held, built.request, built.kept_headers, reply, started_at, ground.clock.now()
    )
    recorded = await ground.store.transact(record_outcomes, [over], True)
    assert [one for one, _ in recorded.statuses] == [over]
    return built, over


async def start_retry(ground: Ground) -> None:
    """The pause before the next attempt is over."""

    def wake(tx: Any) -> list[bool]:
        moved: list[bool] = tx.run_changes.move(
            [make_ready(run) for run in tx.run_due.list_wakes(tx.now, 10)]
        )
        return moved

    assert await ground.store.transact(wake) == [True]


def sent(built: Built, *masked: str) -> list[tuple[str, str]]:
    """The headers of a request in their order, these of them masked."""
    return [(name, "***" if name in masked else value) for name, value in built.request.headers]


def entry(over: AttemptOver, status: str, error: str | None, **more: Any) -> dict[str, Any]:
    """How an attempt is shown."""
    timing = over.reply.timing
    return {
        "attempt": over.held.attempt,
        "started_at": format_instant(over.started_at),
        "ended_at": format_instant(over.ended_at),
        "status": status,
        "response_code": over.reply.status,
        "error": error,
        "instance": ME,
        "timing": {
            "dns_ms": timing.dns_ms,
            "connect_ms": timing.connect_ms,
            "tls_ms": timing.tls_ms,
            "first_byte_ms": timing.first_byte_ms,
            "total_ms": timing.total_ms,
        },
        **more,
    }


def as_text(shown: list[dict[str, Any]]) -> bytes:
    """With its members in their order."""
    return msgspec.json.encode(shown)


@pytest.mark.spec("C5", "X2")
@pytest.mark.parametrize(
    ("members", "masked"),
    [
        ({}, ()),
        ({"headers": OWN}, ()),
        ({"http_method": "POST", "body_template": '{"a":1}'}, ()),
        ({"http_method": "POST", "headers": OWN, "body_template": "漢"}, ()),
        (
            {"headers": OWN | {"Authorization": "Bearer x", "X-Mine": "y"}}
            | {"secret_headers": ["X-Mine"]},
            ("Authorization", "X-Mine"),
        ),
        (
            {"http_method": "POST", "exec_type": "ASYNC", "headers": OWN},
            ("X-Callback-Url", "X-Callback-Token"),
        ),
        ({"signing_secret": SIGNING}, ("webhook-signature",)),
        (
            {"http_method": "POST", "exec_type": "ASYNC", "signing_secret": SIGNING},
            ("X-Callback-Url", "X-Callback-Token", "webhook-signature"),
        ),
    ],
    ids=["bare", "own", "body", "own, body", "secret", "async", "signed", "async, signed"],
)
async def test_a_run_shows_every_header_that_was_sent_in_its_order(
    ground: Ground, members: dict[str, Any], masked: tuple[str, ...]
) -> None:
    task = await ground.make_task(**members)
    started = await ground.ask("POST", f"/api/v1/tasks/{task['id']}/trigger", status=202)
    built, _ = await answer(ground, await claim(ground), Reply("answered", Timing(), 204))
    run = await ground.ask("GET", f"{RUNS}/{started['uid']}", status=200)
    assert list(run["request_headers"].items()) == sent(built, *masked)
    assert {"X-Ksana-Run-Id", "traceparent"} <= set(run["request_headers"])
    assert run["request_headers"]["X-Ksana-Job-Id"] == task["job_id"]
    [listed] = (await ground.ask("GET", f"/api/v1/tasks/{task['id']}/runs"))["items"]
    assert list(listed["request_headers"].items()) == sent(built, *masked)


@pytest.mark.spec("C5", "C14")
async def test_a_run_shows_each_of_its_attempts_and_the_headers_of_the_last(
    ground: Ground,
) -> None:
    task = await ground.make_task(retry_policy={"max_retries": 2, "initial_delay": "1s"})
    started = await ground.ask("POST", f"/api/v1/tasks/{task['id']}/trigger", status=202)

    async def show() -> dict[str, Any]:
        return await ground.ask("GET", f"{RUNS}/{started['run_id']}", status=200)  # type: ignore[no-any-return]

    assert (await show())["request_headers"] is None
    assert (await show())["attempts"] == []
    refused = Reply("unreachable", Timing(dns_ms=0.004), error="connection refused", sends=0)
    first, over = await answer(ground, await claim(ground), refused)
    entries = [entry(over, "RETRYING", "connection refused", sends=0)]
    await ground.clock.advance(10 * SECOND)
    await start_retry(ground)

    held = await claim(ground)
    run = await show()
    assert (run["status"], run["attempt"]) == ("RUNNING", 2)
    assert list(run["request_headers"].items()) == sent(first), "the second is under way"
    assert run["request_headers"]["X-Ksana-Attempt"] == "1"
    assert as_text(run["attempts"]) == as_text(entries)

    failed = Reply("answered", Timing(0.001, 2.0, 0.125, 3.25, 1234.567), 503, sends=2)
    second, over = await answer(ground, held, failed)
    entries.append(entry(over, "RETRYING", "HTTP 503 Service Unavailable", sends=2))
    run = await show()
    assert list(run["request_headers"].items()) == sent(second)
    assert run["request_headers"]["X-Ksana-Attempt"] == "2"
    assert dict(sent(first))["traceparent"] != dict(sent(second))["traceparent"]

    await ground.clock.advance(20 * SECOND)
    await start_retry(ground)
    well = Reply("answered", Timing(total_ms=0.5), 200, body=b"well")
    third, over = await answer(ground, await claim(ground), well)
    entries.append(entry(over, "SUCCESS", None))
    run = await show()
    assert (run["status"], run["attempt"]) == ("SUCCESS", 3)
    assert list(run["request_headers"].items()) == sent(third)
    assert as_text(run["attempts"]) == as_text(entries)
