"""Asynchronous runs on the virtual clock: the first call, the callback, its deadline, and
everything that crosses."""

from typing import Any

import msgspec
import pytest

from ksana.base.errors import ConflictError, InvalidError, MethodError, NotFoundError
from ksana.base.instant import HOUR, MINUTE, SECOND
from ksana.domain.tasks.records import Options, RetryPolicy, Task
from ksana.service.tasks.callbacks import CallbackBody, Received
from tests.engine.tasks_world import World, answer, every, once, task_of


async def fire_async(world: World, **members: Any) -> tuple[Task, str]:
    """Make an async task, let it fire once, answer it and its callback token."""
    definition = task_of(
        once(world.clock.now() + SECOND), exec_type="ASYNC", http_method="POST", **members
    )
    task = await world.add(definition)
    await world.clock.advance(SECOND)
    return task, world.caller.sent[-1].header("X-Callback-Token")


async def status_of(world: World, task: Task) -> str:
    return (await world.all_runs(task))[-1].status


@pytest.mark.spec("C15")
async def test_the_first_call_carries_what_the_target_needs_to_call_back(world: World) -> None:
    task, token = await fire_async(world)
    sent = world.caller.sent[0]
    assert sent.header("X-Callback-Url") == f"http://ksana/api/v1/callbacks/{token}"
    assert len(token) == 32
    facts = msgspec.json.decode(sent.request.body or b"")
    assert (facts["task_id"], facts["callback_token"], facts["attempt"]) == (task.id, token, 1)
    run = (await world.all_runs(task))[0]
    assert run.status == "CALLBACK_PENDING"
    assert run.callback_deadline == world.clock.now() + 300 * SECOND
    assert token not in (run.request_body or "")
    assert token not in (run.request_headers or "")


@pytest.mark.spec("C16", "C17")
async def test_a_callback_ends_the_run_and_a_repeat_is_ignored(world: World) -> None:
    task, token = await fire_async(world)
    first = await world.call_back(token, "SUCCESS", data={"rows": 7})
    again = await world.call_back(token, "FAILED")
    assert (first.final_status, again.final_status) == ("SUCCESS", "SUCCESS")
    run = (await world.all_runs(task))[0]
    assert (run.status, run.callback_data) == ("CALLBACK_SUCCESS", '{"rows":7}')
    view = await world.runs.get(run.id)
    assert [callback[3] for callback in view.callbacks] == ["RECEIVED", "IGNORED"]


@pytest.mark.spec("C16")
async def test_a_failed_callback_is_final(world: World) -> None:
    task, token = await fire_async(world, retry=RetryPolicy(max_retries=3))
    assert (
        await world.call_back(token, "FAILED", error_message="no disk")
    ).final_status == "FAILED"
    run = (await world.all_runs(task))[0]
    assert (run.status, run.error_message) == ("FAILED", "no disk")
    await world.clock.advance(HOUR)
    assert len(world.caller.sent) == 1


@pytest.mark.spec("C18")
async def test_no_callback_by_the_deadline_is_a_failed_timeout(world: World) -> None:
    task, token = await fire_async(world, callback_timeout_us=20 * SECOND)
    await world.clock.advance(19 * SECOND)
    assert await status_of(world, task) == "CALLBACK_PENDING"
    await world.clock.advance(2 * SECOND)
    assert await status_of(world, task) == "FAILED_TIMEOUT"
    assert (await world.call_back(token, "SUCCESS")).final_status == "FAILED_TIMEOUT"


@pytest.mark.spec("C18")
async def test_a_failed_or_missing_callback_is_retried_if_the_task_says_so(world: World) -> None:
    options, retry = (
        Options(retry_on_callback_failure=True),
        RetryPolicy(max_retries=2, initial_delay_us=SECOND),
    )
    task, token = await fire_async(
        world, options=options, retry=retry, callback_timeout_us=20 * SECOND
    )
    await world.call_back(token, "FAILED")
    assert await status_of(world, task) == "RETRYING"
    await world.clock.advance(2 * SECOND)
    await world.clock.advance(25 * SECOND)
    assert len(world.caller.sent) == 3
    await world.call_back(token, "SUCCESS")
    assert await status_of(world, task) == "CALLBACK_SUCCESS"


@pytest.mark.spec("C16")
async def test_a_callback_before_the_first_call_returned_is_taken(world: World) -> None:
    world.caller.scripts["http://target/hook"] = lambda request: None
    task, token = await fire_async(world)
    assert await status_of(world, task) == "RUNNING"
    assert (await world.call_back(token, "SUCCESS")).final_status == "SUCCESS"
    await world.clock.advance(MINUTE)
    assert await status_of(world, task) == "CALLBACK_SUCCESS"
    assert world.caller.open == 0


@pytest.mark.spec("C12", "C16")
async def test_a_callback_between_retries_is_taken(world: World) -> None:
    world.caller.scripts["http://target/hook"] = lambda request: answer(502)
    task, token = await fire_async(world, retry=RetryPolicy(max_retries=3, initial_delay_us=MINUTE))
    assert await status_of(world, task) == "RETRYING"
    await world.call_back(token, "SUCCESS")
    await world.clock.advance(5 * MINUTE)
    assert await status_of(world, task) == "CALLBACK_SUCCESS"
    assert len(world.caller.sent) == 1


@pytest.mark.spec("C12", "C16")
async def test_a_callback_that_says_failed_between_retries_ends_the_run(world: World) -> None:
    world.caller.scripts["http://target/hook"] = lambda request: answer(502)
    task, token = await fire_async(world, retry=RetryPolicy(max_retries=3, initial_delay_us=MINUTE))
    assert await status_of(world, task) == "RETRYING"
    assert (await world.call_back(token, "FAILED")).final_status == "FAILED"
    await world.clock.advance(5 * MINUTE)
    assert await status_of(world, task) == "FAILED"
    assert len(world.caller.sent) == 1


@pytest.mark.spec("C16")
async def test_a_pending_run_may_ask_for_more_time(world: World) -> None:
    task, token = await fire_async(world, callback_timeout_us=20 * SECOND)
    told = await world.call_back(token, "RUNNING", progress=0.4, extend_sec=60)
    assert (told.final_status, told.callback_deadline) == (None, world.clock.now() + 60 * SECOND)
    await world.clock.advance(50 * SECOND)
    assert await status_of(world, task) == "CALLBACK_PENDING"
    await world.clock.advance(15 * SECOND)
    assert await status_of(world, task) == "FAILED_TIMEOUT"


@pytest.mark.spec("C16")
async def test_wrong_callbacks_are_refused(world: World) -> None:
    task, token = await fire_async(world)
    with pytest.raises(NotFoundError):
        await world.call_back("0" * 32, "SUCCESS")
    with pytest.raises(InvalidError):
        await world.call_back(token, "MAYBE")
    with pytest.raises(MethodError):
        await world.callbacks.take_by_token(
            token, Received(CallbackBody("SUCCESS"), "{}", "{}", "PUT")
        )
    run = (await world.all_runs(task))[0]
    with pytest.raises(NotFoundError):
        await world.callbacks.take_by_identity(
            task.id + 1, run.id, Received(CallbackBody("SUCCESS"), "{}", "{}", "POST")
        )
    sync = await world.add(task_of(every(world, 3600), name="sync"))
    started = await world.tasks.trigger(sync.id)
    with pytest.raises(ConflictError):
        await world.callbacks.take_by_identity(
            sync.id, started.run_id, Received(CallbackBody("SUCCESS"), "{}", "{}", "POST")
        )


@pytest.mark.spec("C16")
async def test_a_token_dies_an_hour_after_its_run(world: World) -> None:
    _, token = await fire_async(world)
    await world.call_back(token, "SUCCESS")
    await world.clock.advance(HOUR - SECOND)
    assert (await world.call_back(token, "SUCCESS")).final_status == "SUCCESS"
    await world.clock.advance(2 * SECOND)
    with pytest.raises(NotFoundError):
        await world.call_back(token, "SUCCESS")


@pytest.mark.spec("C6")
async def test_a_pending_run_can_be_cancelled(world: World) -> None:
    task, token = await fire_async(world)
    await world.runs.cancel((await world.all_runs(task))[0].id)
    assert (await world.call_back(token, "SUCCESS")).final_status == "CANCELED"


@pytest.mark.spec("C4")
async def test_force_async_makes_one_run_of_a_sync_task_wait_for_its_callback(world: World) -> None:
    task = await world.add(task_of(every(world, 3600), http_method="POST"))
    await world.tasks.trigger(task.id, force_async=True, override_body='{"t":"{{callback_token}}"}')
    await world.clock.settle()
    token = world.caller.sent[0].header("X-Callback-Token")
    assert world.caller.sent[0].request.body == f'{{"t":"{token}"}}'.encode()
    assert (await world.call_back(token, "SUCCESS")).final_status == "SUCCESS"
