"""Proof that the store's suite bites: what it guards is broken on purpose, one thing at a time, and
the check must fail."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.base.errors import KsanaError
from ksana.store.sql import SqlStore, open_store
from ksana.store.sql.core import sqlite_file
from ksana.store.sql.core import store as store_module
from ksana.store.sql.core.commit_queue import StoreCall, Writer
from ksana.store.sql.core.dialects import Trouble
from ksana.store.sql.core.session import Session
from ksana.store.sql.core.statements import Statement, load_statements
from ksana.store.sql.core.tx import SqlTx
from tests.conformance.store import checks
from tests.conformance.store.ground import Database
from tests.ground.proxy import FaultProxy
from tests.store.test_sqlite_disk import check_every_answer_follows_a_sync
from tests.store.test_unknown_commits import Counted, check_a_lost_reply_is_resolved, is_commit

Opener = Callable[[], AbstractAsyncContextManager[SqlStore]]


@pytest.fixture
def opened(store_url: str) -> Opener:
    """Open the store after it was broken; close it whatever came of the check."""

    @asynccontextmanager
    async def make() -> AsyncIterator[SqlStore]:
        store = await open_store(store_url, SystemClock())
        try:
            yield store
        finally:
            await store.close()

    return make


GUARDS = {
    "revoke_key": r"AND revoked_at IS NULL",
    "renew_instance": r"AND stopped_at IS NULL",
    "extend_lock": r"AND \(owner_id = .*",
}


@pytest.mark.parametrize("name", GUARDS)
async def test_a_missing_guard_is_noticed(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def load_without_guard(macros: Any) -> dict[str, Statement]:
        statements = load_statements(macros)
        whole = statements[f"core.{name}"]
        bare = re.sub(GUARDS[name], "", whole._text, flags=re.DOTALL)
        assert bare != whole._text, "nothing was broken: this proves nothing"
        statements[f"core.{name}"] = Statement(name, bare, {}, macros)
        return statements

    monkeypatch.setattr(store_module, "load_statements", load_without_guard)
    async with opened() as store:
        with pytest.raises(AssertionError):
            await checks.check_guards_answer_whether_it_happened(store)


def run_together_without_undoing(
    self: Writer, session: Session, tx: SqlTx, batch: list[StoreCall]
) -> bool:
    """A failure after a write is reported, but what it wrote stays."""
    for work in batch:
        work.error = None
        try:
            work.result = work.fn(tx, *work.args, **work.kwargs)
        except Exception as error:
            if self._dialect.classify(error) is not Trouble.OURS:
                raise
            work.result, work.error = None, error
    return True


def run_apart_without_savepoint(
    self: Writer, session: Session, tx: SqlTx, batch: list[StoreCall]
) -> bool:
    """The careful run undoes everybody's work instead of the failed function's."""
    for work in batch:
        work.error = None
        try:
            work.result = work.fn(tx, *work.args, **work.kwargs)
            tx.flush()
        except Exception as error:
            if self._dialect.classify(error) is not Trouble.OURS:
                raise
            session.raw("ROLLBACK")
            session.raw(self._dialect.begin_write)
            work.result, work.error = None, error
            tx.forget()
    return True


def run_together_failing_all(
    self: Writer, session: Session, tx: SqlTx, batch: list[StoreCall]
) -> bool:
    """One domain error fails the whole batch."""
    for work in batch:
        work.error = None
        try:
            work.result = work.fn(tx, *work.args, **work.kwargs)
        except KsanaError as error:
            for each in batch:
                each.result, each.error = None, error
            return False
    return True


@pytest.mark.parametrize(
    ("method", "broken"),
    [
        ("_run_together", run_together_without_undoing),
        ("_run_together", run_together_failing_all),
        ("_run_apart", run_apart_without_savepoint),
    ],
)
async def test_failures_that_leak_into_the_batch_are_noticed(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, method: str, broken: Any
) -> None:
    monkeypatch.setattr(Writer, method, broken)
    async with opened() as store:
        with pytest.raises(AssertionError):
            await checks.check_failures_stay_with_their_function(store)


async def test_a_lane_that_commits_one_by_one_is_noticed(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ksana.store.sql.core.threads.BATCH_LIMIT", 1)
    async with opened() as store:
        with pytest.raises(AssertionError):
            await checks.check_writers_share_commits(store)


async def test_a_missing_retry_is_noticed(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, store_url: str
) -> None:
    monkeypatch.setattr("ksana.store.sql.core.commit_queue.MAX_RETRIES", 0)
    async with opened() as store:
        with pytest.raises(KsanaError, match="too busy"):
            if store.sole:
                await checks.check_a_busy_database_is_waited_for(store, Database(store_url))
            else:
                await checks.check_deadlocks_are_retried(store)


async def test_a_missing_reconnect_is_noticed(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, store_url: str
) -> None:
    database = Database(store_url)
    if not database.can_sever:
        pytest.skip("an embedded database has no connection to lose")
    async with opened() as store:
        monkeypatch.setattr("ksana.store.sql.core.commit_queue.MAX_RECONNECTS", 0)
        with pytest.raises(KsanaError, match="again and again"):
            await checks.check_a_connection_lost_before_commit_is_replaced(store, database)


async def test_a_guess_that_a_commit_did_not_happen_is_noticed(
    faulty_store: tuple[str, FaultProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Writer, "_resolve", lambda self: False)
    url, proxy = faulty_store
    store = await open_store(url, SystemClock())
    with pytest.raises(Exception, match=r"(?i)duplicate"):
        await check_a_lost_reply_is_resolved(store, proxy)
    await store.close()


async def test_a_guess_that_a_commit_happened_is_noticed(
    faulty_store: tuple[str, FaultProxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Writer, "_resolve", lambda self: True)
    url, proxy = faulty_store
    store = await open_store(url, SystemClock())
    proxy.cut_before(is_commit)
    assert await store.transact(Counted("acknowledged")) == "acknowledged"
    assert await store.read(checks.key_names) == set(), "the guess was right: this proves nothing"
    await store.close()


@pytest.mark.parametrize("level", ["NORMAL", "OFF"])
async def test_weaker_durability_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    weaken = (
        "import asyncio, sys; from ksana.store.sql.core import sqlite_file; "
        "sqlite_file._PRAGMAS = "
        f"tuple(p.replace('FULL', '{level}') for p in sqlite_file._PRAGMAS); "
        "from tests.store.driver import write; "
        "asyncio.run(write(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), 'k'))"
    )
    with pytest.raises(AssertionError, match="without a sync"):
        check_every_answer_follows_a_sync(tmp_path, weaken)
    monkeypatch.setattr(
        sqlite_file, "_PRAGMAS", tuple(p.replace("FULL", level) for p in sqlite_file._PRAGMAS)
    )
    store = await open_store(f"sqlite:///{tmp_path}/other.db", SystemClock())
    with pytest.raises(AssertionError):
        await checks.check_the_writer_syncs_every_commit(store)
    await store.close()
