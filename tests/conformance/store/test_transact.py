"""`transact` and `read`: atomic, isolated, retried, shared, closed in good order. One suite for
every store."""

import asyncio
import threading
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.base.errors import ConflictError, StoreDownError
from ksana.base.instant import SECOND
from ksana.ports.store import RaceLostError
from ksana.store.sql import SqlStore, open_store
from tests.conformance.store import checks
from tests.conformance.store.checks import enter_key, event_types, key_names
from tests.conformance.store.ground import Database


async def test_failures_in_a_batch_stay_with_their_function(store: SqlStore) -> None:
    await checks.check_failures_stay_with_their_function(store)


@pytest.mark.spec("X12")
async def test_guards_answer_whether_it_happened(store: SqlStore) -> None:
    await checks.check_guards_answer_whether_it_happened(store)


@pytest.mark.fault("F36")
async def test_deadlocks_are_retried(store: SqlStore) -> None:
    await checks.check_deadlocks_are_retried(store)


async def test_a_connection_lost_before_commit_is_replaced(
    store: SqlStore, database: Database
) -> None:
    if not database.can_sever:
        pytest.skip("an embedded database has no connection to lose")
    await checks.check_a_connection_lost_before_commit_is_replaced(store, database)


@pytest.mark.fault("F32")
async def test_a_busy_database_is_waited_for(store: SqlStore, database: Database) -> None:
    await checks.check_a_busy_database_is_waited_for(store, database)


async def test_the_writer_syncs_every_commit(store: SqlStore) -> None:
    await checks.check_the_writer_syncs_every_commit(store)


async def test_writers_share_commits_and_one_alone_commits_at_once(store: SqlStore) -> None:
    await checks.check_writers_share_commits(store)


async def test_a_function_that_raises_leaves_nothing_behind(store: SqlStore) -> None:
    for fail in (checks.refuse_after_write, checks.stumble_after_write):
        with pytest.raises((ConflictError, checks.BugError)):
            await store.transact(fail, "x")
    assert await store.read(key_names) == set()
    assert await store.read(event_types) == []


async def test_a_refusal_before_any_write_costs_no_commit(store: SqlStore) -> None:
    await store.transact(enter_key, "warm")
    before = store.health()
    with pytest.raises(ConflictError):
        await store.transact(checks.refuse)
    assert store.health() == before


async def test_a_guard_that_says_no_does_not_make_the_batch_run_twice(store: SqlStore) -> None:
    runs: list[str] = []

    def revoke_or_refuse(tx: Any) -> None:
        if not tx.keys.revoke_if_live("nobody"):
            raise ConflictError("no such key is live")

    def count(tx: Any, name: str) -> None:
        runs.append(name)
        enter_key(tx, name)

    answers = await checks.batched(store, (count, "a"), (revoke_or_refuse,), (count, "b"))
    assert isinstance(answers[1], ConflictError)
    assert runs == ["a", "b"]


async def test_a_read_cannot_write(store: SqlStore) -> None:
    with pytest.raises(TypeError, match="transact"):
        await store.read(enter_key, "x")
    with pytest.raises(TypeError, match="transact"):
        await store.read(lambda tx: tx.events.append("TASK", 1, "NEVER"))
    assert await store.read(key_names) == set()


async def test_a_read_sees_one_snapshot(store: SqlStore) -> None:
    await store.transact(enter_key, "old")
    looked, written = threading.Event(), threading.Event()

    def look_twice(tx: Any) -> tuple[set[str], int, set[str], int]:
        first = key_names(tx), tx.events.latest_id()
        looked.set()
        assert written.wait(10)
        return *first, key_names(tx), tx.events.latest_id()

    reading = asyncio.ensure_future(store.read(look_twice))
    assert await asyncio.to_thread(looked.wait, 10)
    await store.transact(enter_key, "new")
    written.set()
    names, latest, names_again, latest_again = await reading
    assert names == names_again == {"old"}
    assert latest == latest_again
    assert await store.read(key_names) == {"old", "new"}


async def test_what_was_answered_is_seen_by_the_next_read(store: SqlStore) -> None:
    for n in range(20):
        await store.transact(enter_key, f"k{n}")
        assert f"k{n}" in await store.read(key_names)


@pytest.mark.fault("F43")
async def test_a_caller_that_is_cancelled_leaves_the_lane_in_order(store: SqlStore) -> None:
    plugs, tasks = await checks.hold_writers(store, checks.writer_count(store))
    doomed = asyncio.ensure_future(store.transact(enter_key, "cancelled"))
    kept = asyncio.ensure_future(store.transact(enter_key, "kept"))
    await asyncio.sleep(0)
    doomed.cancel()
    for plug in plugs:
        plug.gate.set()
    assert await kept == "kept"
    with pytest.raises(asyncio.CancelledError):
        await doomed
    await asyncio.gather(*tasks)
    assert await store.transact(enter_key, "later") == "later"
    assert {"kept", "later"} <= await store.read(key_names)


async def test_close_commits_what_waits_and_then_refuses(store_url: str) -> None:
    store = await open_store(store_url, SystemClock())
    plugs, tasks = await checks.hold_writers(store, checks.writer_count(store))
    waiting = [asyncio.ensure_future(store.transact(enter_key, f"k{n}")) for n in range(10)]
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    with pytest.raises(StoreDownError):
        await store.transact(enter_key, "late")
    for plug in plugs:
        plug.gate.set()
    await closing
    await asyncio.gather(*tasks)
    assert await asyncio.gather(*waiting) == [f"k{n}" for n in range(10)]
    again = await open_store(store_url, SystemClock())
    assert await again.read(key_names) == {f"k{n}" for n in range(10)}
    await again.close()


async def test_two_event_loops_may_share_a_store(store: SqlStore) -> None:
    async def write(name: str) -> str:
        return await store.transact(enter_key, name)

    answers = await asyncio.gather(
        asyncio.to_thread(asyncio.run, write("there")),
        write("here"),
        asyncio.to_thread(asyncio.run, write("elsewhere")),
    )
    assert answers == ["there", "here", "elsewhere"]


async def test_more_than_the_limit_of_waiting_functions_are_refused(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugs, tasks = await checks.hold_writers(store, checks.writer_count(store))
    waiting_calls = store._writes._waiting  # type: ignore[attr-defined]
    monkeypatch.setattr(waiting_calls, "_limit", 3)
    waiting = [asyncio.ensure_future(store.transact(enter_key, f"k{n}")) for n in range(5)]
    await asyncio.sleep(0)
    for plug in plugs:
        plug.gate.set()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(answer) for answer in answers] == [str, str, str, StoreDownError, StoreDownError]
    await asyncio.gather(*tasks)
    assert await store.transact(enter_key, "later") == "later"


async def test_who_took_something_for_granted_in_vain_is_run_again_and_told_so(
    store: SqlStore,
) -> None:
    runs: list[bool] = []

    def trust(tx: Any) -> str:
        runs.append(tx.is_again)
        enter_key(tx, "looked" if tx.is_again else "trusted")
        if not tx.is_again:
            raise RaceLostError
        return "looked"

    answers = await checks.batched(store, (enter_key, "before"), (trust,), (enter_key, "after"))
    assert answers == ["before", "looked", "after"]
    assert runs == [False, True]
    assert await store.read(key_names) == {"before", "looked", "after"}
    assert sorted(await store.read(event_types)) == [
        f"KEY_CREATED:{name}" for name in ("after", "before", "looked")
    ]


async def test_who_never_stops_to_take_it_for_granted_is_refused(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ksana.store.sql.core.commit_queue.MAX_RETRIES", 3)

    def trust(tx: Any) -> None:
        enter_key(tx, "trusted")
        raise RaceLostError

    with pytest.raises(StoreDownError, match="too busy"):
        await store.transact(trust)
    assert await store.transact(enter_key, "later") == "later"
    assert await store.read(key_names) == {"later"}


@pytest.mark.parametrize("inline", [False, True])
async def test_a_store_without_threads_behaves_the_same(store_url: str, inline: bool) -> None:
    store = await open_store(store_url, SystemClock(), inline=inline)
    assert await store.transact(enter_key, "a") == "a"
    with pytest.raises(ConflictError):
        await store.transact(checks.refuse_after_write, "b")
    with pytest.raises(TypeError, match="transact"):
        await store.read(enter_key, "c")
    assert await store.read(key_names) == {"a"}
    assert store.health().ok
    await store.close()


async def test_a_receiver_is_told_what_came_of_its_transaction(store: SqlStore) -> None:
    loop = asyncio.get_running_loop()

    def enter(tx: Any, name: str, *, fails: bool = False) -> str:
        tx.locks.take(name, "me", 60 * SECOND)
        if fails:
            raise ConflictError("not this one")
        return f"took {name}"

    made, failed, gone = loop.create_future(), loop.create_future(), loop.create_future()
    gone.cancel()
    store.transact_for(gone, enter, "gone")
    store.transact_for(failed, enter, "failed", fails=True)
    store.transact_for(made, enter, "made")
    assert await asyncio.wait_for(made, 20) == "took made"
    with pytest.raises(ConflictError, match="not this one"):
        await asyncio.wait_for(failed, 20)
    # Who is not told any more is entered like everybody else; what failed left nothing.
    taken = [await store.transact(enter_if_free, name) for name in ("gone", "failed", "made")]
    assert taken == [False, True, False]
    await store.close()
    late = loop.create_future()
    store.transact_for(late, enter, "late")
    with pytest.raises(StoreDownError):
        await asyncio.wait_for(late, 20)


def enter_if_free(tx: Any, name: str) -> bool:
    return bool(tx.locks.take(name, "you", 60 * SECOND))
