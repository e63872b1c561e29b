"""How each database finds what governance asks for: by an index range, in the index's order, never
by a scan or a sort of what waits. On a table that is empty, that was just filled, and that the
database has looked over."""

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import msgspec
import pytest

from ksana.base.clock import SystemClock
from ksana.domain.governance.jobs import decide_enqueue
from ksana.domain.governance.objects import new_object
from ksana.domain.governance.records import OBJECT_TYPES, Rules
from ksana.store.sql import SqlStore, open_store
from tests.conformance.store.ground import Database
from tests.ground.governance import SECOND, Governing
from tests.store.plans import analyze, assert_searched, explain

PLANS = {
    "governance.take_due": ("governance_jobs_due", "due_sec"),
    "governance.take_class": ("governance_jobs_class", "class_no"),
    "governance.peek_class": ("governance_jobs_class", "class_no"),
    "governance.peek_due": ("governance_jobs_due", "due_sec"),
    "governance.next_due": ("governance_jobs_due", ""),
    "governance.next_lease": ("governance_jobs_lease", ""),
    "governance.lock_expired": ("governance_jobs_lease", "lease_expires_at"),
    "governance.lock_deferred": ("governance_jobs_deferred", "gate_key"),
    "governance.first_deferred": ("governance_jobs_deferred", "gate_key"),
    "governance.count_due": ("governance_jobs_due", "due_sec"),
}
"""The index, and the column by which it is searched; "" where its first entry is all there is to
read."""

FUTURE, DUE = 20_000, 2_000
DUE_SEC = 1_000
NO_CLASS = 44
"""A class of which no job waits."""
VALUES: dict[str, Any] = {
    "sec": DUE_SEC,
    "now_at": DUE_SEC * SECOND,
    "limit": 100,
    "class_no": 7,
    "gate_key": "persona/",
}


@pytest.fixture(params=["empty", "fresh", "analysed"])
async def filled(request: pytest.FixtureRequest, store_url: str) -> AsyncIterator[SqlStore]:
    """A store with nothing, or with many jobs of which some are due."""
    store = await open_store(store_url, SystemClock())
    if request.param != "empty":
        await _fill(store)
    if request.param == "analysed":
        analyze(Database(store_url), "governance_jobs")
    yield store
    await store.close()


async def _fill(store: SqlStore) -> None:
    governing = Governing(store)
    news = [
        governing.new_job(
            f"m{number}",
            run_at=(2 * DUE_SEC if number < FUTURE else 1) * SECOND + number,
            action="decay" if number % 2 else "verify",
        )
        for number in range(FUTURE + DUE)
    ]

    def write(tx: Any, part: list[Any]) -> None:
        tx.governance.write([(None, decide_enqueue(new, tx.now).new) for new in part])

    for start in range(0, len(news), 2_000):
        await store.transact(write, news[start : start + 2_000])


@pytest.mark.spec("G8")
async def test_what_a_pull_reads_is_an_index_range_on_every_database(
    filled: SqlStore, store_url: str
) -> None:
    kind = Database(store_url).kind
    for name, (index, column) in PLANS.items():
        plan = await filled.transact(explain, name, kind, VALUES)
        assert_searched(plan, kind, index, column, name)


OBJECT_PLANS = {
    "objects.find_keys": {
        "sqlite": "sqlite_autoindex_governance_objects_1",
        "postgresql": "governance_objects_key",
        "mysql": "PRIMARY",
    },
    "objects.find_keys_of_status": dict.fromkeys(
        ("sqlite", "postgresql", "mysql"), "governance_objects_status"
    ),
}
"""The index that a page of objects is read from."""

OBJECTS = 20_000
OBJECT_VALUES = {"floor": "memory:m1", "top": "memory:\U0010ffff", "status": "active", "limit": 51}


@pytest.fixture(params=["empty", "fresh", "analysed"])
async def with_objects(request: pytest.FixtureRequest, store_url: str) -> AsyncIterator[SqlStore]:
    """A store with nothing, or with many objects of which hardly one is active."""
    store = await open_store(store_url, SystemClock())
    if request.param != "empty":
        await _fill_objects(store)
    if request.param == "analysed":
        analyze(Database(store_url), "governance_objects")
    yield store
    await store.close()


async def _fill_objects(store: SqlStore) -> None:
    def write(tx: Any, start: int) -> None:
        made = [
            msgspec.structs.replace(
                new_object(OBJECT_TYPES[number % 3], f"m{number}", Rules(), tx.now),
                status="active" if number % 5_000 == 0 else "candidate",
            )
            for number in range(start, start + 2_000)
        ]
        assert tx.objects.insert_if_new(made) == len(made)

    for start in range(0, OBJECTS, 2_000):
        await store.transact(write, start)


@pytest.mark.spec("G8", "X13")
async def test_a_page_of_objects_is_an_index_range_on_every_database(
    with_objects: SqlStore, store_url: str
) -> None:
    kind = Database(store_url).kind

    def explain_listing(tx: Any, name: str) -> str:
        tx._session.avoid_sorts()
        return explain(tx, name, kind, OBJECT_VALUES)

    for name, indexes in OBJECT_PLANS.items():
        plan = await with_objects.read_list(explain_listing, name)
        assert_searched(plan, kind, indexes[kind], "object_key", name)


@pytest.mark.spec("G8", "X13")
async def test_a_page_of_objects_touches_little_more_than_it_shows(counting_url: str) -> None:
    """Of a status that hardly one has, at the end of a type, and after the last one."""
    store = await open_store(counting_url, SystemClock())
    await _fill_objects(store)
    kind = Database(counting_url).kind
    for name in OBJECT_PLANS:
        for floor in ("cognition:", "cognition:m9998", "experience:z"):
            values = {**OBJECT_VALUES, "floor": floor, "top": floor.split(":")[0] + ":\U0010ffff"}
            touched = await store.transact(_count_pages, name, kind, values)
            assert touched < 160, f"{name} from {floor} touched {touched}"
    await store.close()


def _count_pages(tx: Any, name: str, kind: str, values: dict[str, Any]) -> int:
    tx._session.avoid_sorts()
    return _count_touched(tx, name, kind, values)


@pytest.fixture(params=["mariadb", "postgres"])
def counting_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A store on a database that counts what it touches."""
    server = request.getfixturevalue(request.param)
    name = server.create_database()
    yield server.url(name)
    server.drop_database(name)


@pytest.mark.spec("G8")
async def test_a_pull_with_nothing_due_touches_next_to_nothing(counting_url: str) -> None:
    """By the database's own count: a search that walks an index looks like one that does not."""
    store = await open_store(counting_url, SystemClock())
    await _fill(store)
    for name in ("governance.take_class", "governance.peek_class", "governance.first_deferred"):
        touched = await store.transact(_count_touched, name, Database(counting_url).kind)
        assert touched < 20, f"{name} touched {touched}"
    await store.close()


def _count_touched(
    tx: Any, name: str, kind: str, values_of: Mapping[str, Any] = {**VALUES, "class_no": NO_CLASS}
) -> int:
    """Pages, or steps along an index, that a statement needs, by default while nothing is due."""
    statement = tx._session._statements[name]
    values = statement.bind(
        {key: value for key, value in values_of.items() if key in statement.sql}
    )
    if kind == "postgresql":
        text = _ask(tx, f"EXPLAIN (ANALYZE, BUFFERS) {statement.sql}", values)
        executed = text.split("Planning")[0]
        return max(map(int, re.findall(r"(?:hit|read)=(\d+)", executed)), default=0)
    _ask(tx, "FLUSH STATUS")
    _ask(tx, statement.sql, values)
    return sum(map(int, re.findall(r"\d+", _ask(tx, "SHOW SESSION STATUS LIKE 'Handler_read%'"))))


def _ask(tx: Any, sql: str, *values: Any) -> str:
    cursor = tx._session._cursor
    cursor.execute(sql, *values)
    rows = cursor.fetchall() if cursor.description else ()
    return "\n".join(" ".join(map(str, row)) for row in rows)
