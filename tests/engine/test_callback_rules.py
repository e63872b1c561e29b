"""Callbacks at the service: which are taken, what is kept of them, and what of their run's secrets
is masked."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ksana.base.clock import VirtualClock
from ksana.base.errors import ConflictError, InvalidError, NotFoundError
from ksana.base.instant import HOUR, SECOND
from ksana.domain.tasks.records import NewRun, Options, Run
from ksana.engine.tasks.run_writer import write_runs
from ksana.engine.tasks.task_secrets import CLEAR, TaskSecrets
from ksana.service.tasks import callbacks as service
from ksana.service.tasks.callbacks import CallbackAnswer, CallbackBody, CallbackService, Received
from tests.engine.task_services import HOST, Box, Services, open_services
from tests.engine.tasks_world import cron, task_of

pytestmark = pytest.mark.spec("C16")

SECRET = "s3cret-value"


@pytest.fixture
async def services(tmp_path: Path, clock: VirtualClock) -> AsyncIterator[Services]:
    async with open_services(tmp_path, clock) as services:
        yield services


def token_of(run: Run, secrets: TaskSecrets = CLEAR) -> str:
    return secrets.find_token(run.uid, run.callback_hash or "")


async def pending(services: Services, **members: Any) -> Run:
    """A run that waits for its callback."""
    given = {"exec_type": "ASYNC", "http_method": "POST", **members}
    task = await services.add(task_of(cron("0 0 0 1 1 *"), **given))
    started = await services.tasks.trigger(task.id)
    run = await services.end(started.run_id, "CALLBACK_PENDING")
    services.hints.take()
    return run


def said(status: str, raw: str = "{}", headers: str = "{}", **members: Any) -> Received:
    return Received(CallbackBody(status, **members), raw, headers, "POST")


def a_new_run(**members: Any) -> NewRun:
    """A run that waits for its callback, before it is stored."""
    given: dict[str, Any] = {
        "uid": "f" * 32,
        "slot_at": None,
        "scheduled_time": 0,
        "status": "SCHEDULED",
        "trigger": "manual",
        "exec_type": "ASYNC",
        "is_counted": False,
        "host": HOST,
        "is_ready": True,
        "held_by": None,
        "token": 1,
        "reason": "RUN_NOW",
        "trace_id": "t",
    }
    return NewRun(**given | members)


async def list_kept(services: Services) -> list[tuple[str, str, str]]:
    """(headers, body, status) of the callbacks that are kept."""
    rows = "SELECT headers_json AS h, body AS b, status AS s FROM async_callbacks ORDER BY id"
    one_text = f"SELECT json_group_array(json_array(h, b, s)) FROM ({rows})"
    [found] = await services.store.read(lambda tx: tx.runs._session.raw(one_text))
    return msgspec.json.decode(found, type=list[tuple[str, str, str]])


async def send(services: Services, run: Run, received: Received) -> CallbackAnswer:
    return await services.callbacks.take_by_token(token_of(run), received)


# Tokens


async def test_a_token_is_good_until_an_hour_after_the_end_and_no_longer(
    services: Services,
) -> None:
    run = await pending(services)
    await send(services, run, said("SUCCESS"))
    await services.clock.advance(HOUR)
    assert await send(services, run, said("SUCCESS")) == CallbackAnswer(run.id, "SUCCESS")
    await services.clock.advance(1)
    with pytest.raises(NotFoundError):
        await send(services, run, said("SUCCESS"))


async def test_a_stored_hash_is_no_token_and_a_token_from_before_hashes_is_one(
    services: Services,
) -> None:
    run = await pending(services)
    with pytest.raises(NotFoundError):
        await services.callbacks.take_by_token(run.callback_hash or "", said("SUCCESS"))
    old = "0123456789abcdef" * 2
    [run_id] = await services.plain_store.transact(
        write_runs, [a_new_run(task_id=run.task_id, callback_hash=old)]
    )
    answer = await services.callbacks.take_by_token(old, said("RUNNING"))
    assert answer == CallbackAnswer(run_id, None)


@pytest.mark.parametrize("gone", ["run", "task"])
async def test_a_run_that_was_removed_meanwhile_takes_no_callback(
    services: Services, gone: str
) -> None:
    run = await pending(services)
    services.store.lacks = gone
    with pytest.raises(NotFoundError):
        await send(services, run, said("SUCCESS"))


async def test_the_form_without_a_token_names_task_and_run_and_may_be_turned_off(
    services: Services,
) -> None:
    run = await pending(services)
    for task_id, run_id in ((run.task_id + 1, run.id), (run.task_id, run.id + 1)):
        with pytest.raises(NotFoundError):
            await services.callbacks.take_by_identity(task_id, run_id, said("SUCCESS"))
    off = CallbackService(services.store, services.clock, services.hints, HOUR, False)
    with pytest.raises(NotFoundError):
        await off.take_by_identity(run.task_id, run.id, said("SUCCESS"))
    answer = await services.callbacks.take_by_identity(run.task_id, run.id, said("FAILED"))
    assert answer == CallbackAnswer(run.id, "FAILED")


# What a callback does


@pytest.mark.parametrize("by_token", [True, False])
async def test_the_end_of_a_run_lets_the_next_of_its_task_start(
    services: Services, by_token: bool
) -> None:
    run = await pending(services)
    waiting = await services.tasks.trigger(run.task_id)
    assert (waiting.is_ready, services.hints.take()) == (False, [])
    if by_token:
        await send(services, run, said("SUCCESS"))
    else:
        await services.callbacks.take_by_identity(run.task_id, run.id, said("SUCCESS"))
    assert services.hints.take() == [("ready", HOST)]
    assert (await services.find_run(waiting.run_id)).ready_host == HOST


async def test_a_callback_locks_the_task_and_then_the_run(services: Services) -> None:
    run = await pending(services)
    await send(services, run, said("RUNNING"))
    assert services.store.found == [("task", run.task_id, "locked"), ("run", run.id, "locked")]


async def test_what_is_no_callback_of_the_run_is_refused_by_name(services: Services) -> None:
    run = await pending(services)
    with pytest.raises(InvalidError) as unknown:
        await send(services, run, said("DONE"))
    assert unknown.value.field == "status"
    task = await services.add(task_of(cron("0 0 0 1 1 *"), "sync"))
    started = await services.tasks.trigger(task.id)
    with pytest.raises(ConflictError) as refused:
        await services.callbacks.take_by_identity(task.id, started.run_id, said("SUCCESS"))
    assert refused.value.extra["current"] == {"status": "SCHEDULED"}
    assert await list_kept(services) == []


async def test_a_repeat_is_recorded_with_what_it_said(services: Services) -> None:
    run = await pending(services)
    await send(services, run, said("FAILED", error_message="no rows"))
    await send(services, run, said("SUCCESS", '{"status":"SUCCESS"}'))
    data = {"task_id": run.task_id, "status": "FAILED", "sent": "SUCCESS"}
    assert await services.events("CALLBACK_IGNORED") == [
        ("RUN", str(run.id), "CALLBACK_IGNORED", data)
    ]
    assert await list_kept(services) == [
        ("{}", "{}", "RECEIVED"),
        ("{}", '{"status":"SUCCESS"}', "IGNORED"),
    ]
    ended = await services.find_run(run.id)
    assert (ended.status, ended.error_message, ended.callback_data) == ("FAILED", "no rows", None)


async def test_who_loses_a_race_for_the_end_is_told_to_send_it_again(services: Services) -> None:
    run = await pending(services)
    services.store.loses = "move"
    with pytest.raises(ConflictError) as refused:
        await send(services, run, said("SUCCESS"))
    assert refused.value.extra["current"] == {"status": "CALLBACK_PENDING"}
    assert await list_kept(services) == []


@pytest.mark.parametrize(
    ("extend_sec", "deadline_sec"),
    [(0.5, 300), (299.0, 300), (301.5, 301.5), (2_592_000.0, 2_592_000), (None, 300)],
)
async def test_more_time_never_brings_the_deadline_nearer(
    services: Services, extend_sec: float | None, deadline_sec: float
) -> None:
    run = await pending(services)
    answer = await send(services, run, said("RUNNING", extend_sec=extend_sec))
    deadline = services.now + round(deadline_sec * SECOND)
    assert answer == CallbackAnswer(run.id, None, deadline)
    assert (await services.find_run(run.id)).callback_deadline == deadline


@pytest.mark.parametrize("extend_sec", [0.0, -0.5, 2_592_000.5, 2_592_001.0])
async def test_more_time_is_bounded(services: Services, extend_sec: float) -> None:
    run = await pending(services)
    with pytest.raises(InvalidError) as refused:
        await send(services, run, said("RUNNING", extend_sec=extend_sec))
    assert refused.value.field == "extend_sec"
    assert (await services.find_run(run.id)).callback_deadline == run.callback_deadline


async def test_before_the_first_call_returned_there_is_no_deadline_to_move(
    services: Services,
) -> None:
    task = await services.add(task_of(cron("0 0 0 1 1 *"), exec_type="ASYNC"))
    started = await services.tasks.trigger(task.id)
    run = await services.start(started.run_id)
    assert await send(services, run, said("RUNNING", extend_sec=60)) == CallbackAnswer(run.id, None)
    assert (await services.find_run(run.id)).wake_at is None


# What is kept


async def test_a_run_keeps_so_many_callbacks_and_says_once_that_it_keeps_no_more(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_KEPT", 2)
    monkeypatch.setattr(service, "MAX_CUT", 5)
    run = await pending(services)
    for number in range(4):
        await send(services, run, said("RUNNING", f"body-{number}", '{"a":"b"}'))
    kept = [
        ('{"a":"b"}', "body-0", "RECEIVED"),
        ('{"a":"b"}', "body-1", "RECEIVED"),
        ("{}", "", "CAPPED"),
    ]
    assert await list_kept(services) == kept
    data = {"task_id": run.task_id, "kept": 2, "bytes": 30}
    capped = [("RUN", str(run.id), "CALLBACKS_CAPPED", data)]
    assert await services.events("CALLBACKS_CAPPED") == capped
    # The one that ends the run is kept, as far as there is room for it.
    await send(services, run, said("SUCCESS", "the end", '{"a":"b"}'))
    kept.append(("{}", "the e", "RECEIVED"))
    assert await list_kept(services) == kept
    # A repeat is not, and so it is not recorded either.
    await send(services, run, said("SUCCESS", "again"))
    assert await list_kept(services) == kept
    assert await services.events("CALLBACK_IGNORED") == []
    assert await services.events("CALLBACKS_CAPPED") == capped


async def test_a_run_keeps_so_many_bytes_of_callbacks(
    services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_KEPT_BYTES", 14)
    run = await pending(services)
    await send(services, run, said("RUNNING", "x" * 6))  # and headers of two bytes
    await send(services, run, said("RUNNING", "y" * 7))  # one too many; the note of it has two
    await send(services, run, said("RUNNING", "z" * 4))
    assert [(body, status) for _, body, status in await list_kept(services)] == [
        ("x" * 6, "RECEIVED"),
        ("", "CAPPED"),
        ("z" * 4, "RECEIVED"),
    ]


# Secrets


WITH_HEADER = {"headers": {"Authorization": f"Bearer {SECRET}"}}
WITH_SIGNATURE = {"options": Options(signing_secret=SECRET)}


@pytest.mark.spec("X2")
@pytest.mark.parametrize("members", [WITH_HEADER, WITH_SIGNATURE])
@pytest.mark.parametrize("is_sealed", [False, True])
async def test_what_a_callback_repeats_of_the_tasks_secrets_is_masked(
    tmp_path: Path, clock: VirtualClock, members: dict[str, Any], is_sealed: bool
) -> None:
    secrets = TaskSecrets(Box("one")) if is_sealed else CLEAR
    async with open_services(tmp_path, clock, secrets) as services:
        run = await pending(services, **members)
        token = token_of(run, secrets)
        raw = f'{{"data":"{SECRET}","error_message":"bad {SECRET}"}}'
        headers = f'{{"x-echo":"{SECRET}"}}'
        received = said("FAILED", raw, headers, data=SECRET, error_message=f"bad {SECRET}")
        await services.callbacks.take_by_token(token, received)
        masked = '{"data":"***","error_message":"bad ***"}'
        assert await list_kept(services) == [('{"x-echo":"***"}', masked, "RECEIVED")]
        ended = await services.find_run(run.id)
        assert (ended.error_message, ended.callback_data) == ("bad ***", '"***"')


@pytest.mark.spec("X2")
async def test_a_secret_in_the_headers_alone_is_masked_there(services: Services) -> None:
    run = await pending(services, **WITH_HEADER)
    await send(services, run, said("SUCCESS", "{}", f'{{"x-echo":"{SECRET}"}}'))
    assert await list_kept(services) == [('{"x-echo":"***"}', "{}", "RECEIVED")]
    ended = await services.find_run(run.id)
    assert (ended.error_message, ended.callback_data) == (None, None)


@pytest.mark.spec("X2")
async def test_a_secret_that_is_spelled_by_escapes_is_masked_in_what_it_means(
    services: Services,
) -> None:
    run = await pending(services, **WITH_HEADER)
    raw = '{"data":"s3cret\\u002dvalue"}'
    await send(services, run, said("SUCCESS", raw, data={"echo": SECRET}))
    ended = await services.find_run(run.id)
    assert ended.callback_data == '{"echo":"***"}'


@pytest.mark.spec("X2")
@pytest.mark.parametrize("by_token", [True, False])
async def test_a_callback_that_repeats_its_token_is_kept_without_it(
    services: Services, by_token: bool
) -> None:
    run = await pending(services)
    token = token_of(run)
    received = said("SUCCESS", f'{{"data":"{token}"}}', data=token)
    if by_token:
        await send(services, run, received)
    else:
        await services.callbacks.take_by_identity(run.task_id, run.id, received)
    assert await list_kept(services) == [("{}", '{"data":"***"}', "RECEIVED")]
    assert (await services.find_run(run.id)).callback_data == '"***"'


@pytest.mark.spec("X2")
async def test_a_callback_is_taken_where_the_keys_of_its_run_are_not(
    tmp_path: Path, clock: VirtualClock
) -> None:
    async with open_services(tmp_path, clock, TaskSecrets(Box("one"))) as services:
        run = await pending(services, **WITH_HEADER)
        elsewhere = CallbackService(
            services.store, clock, services.hints, HOUR, True, TaskSecrets(Box("two"))
        )
        received = said("RUNNING", '{"data":"plain"}')
        await elsewhere.take_by_identity(run.task_id, run.id, received)
        # The token came with it, so that it is known.
        token = token_of(run, TaskSecrets(Box("one")))
        await elsewhere.take_by_token(token, said("SUCCESS", f'"{token}"', data=msgspec.Raw(b"1")))
        assert [body for _, body, _ in await list_kept(services)] == ['{"data":"plain"}', '"***"']
        assert (await services.find_run(run.id)).callback_data == "1"


async def test_what_has_no_secrets_is_kept_to_the_letter(services: Services) -> None:
    run = await pending(services)
    raw = '{"data": "a\\\\b \\u002d",  "x": 1}'
    await send(services, run, said("SUCCESS", raw, '{"x-mine":"1"}', data="a\\b -"))
    assert await list_kept(services) == [('{"x-mine":"1"}', raw, "RECEIVED")]
    assert (await services.find_run(run.id)).callback_data == '"a\\\\b -"'
