"""Statements that go to PostgreSQL together: what of them is run, what is remembered of them, and
what becomes of a connection that fails under way."""

import threading
import time
from collections.abc import Iterator

import pytest
from psycopg import OperationalError

from ksana.store.sql.core.dialects import Trouble
from ksana.store.sql.core.dialects.postgres import PostgresDialect
from ksana.store.sql.core.dialects.postgres_pipeline import PipelineCursor
from tests.ground.postgres import Postgres

COUNT_PREPARED = "SELECT COUNT(*) FROM pg_prepared_statements WHERE name LIKE 'ksana_%%'"


@pytest.fixture
def dialect(postgres: Postgres) -> PostgresDialect:
    return PostgresDialect(postgres.url(postgres.create_database()))


@pytest.fixture
def cursor(dialect: PostgresDialect) -> Iterator[PipelineCursor]:
    connection = dialect.connect(read_only=False)
    cursor = dialect.cursor(connection)
    cursor.execute("CREATE TABLE things (id BIGINT PRIMARY KEY, name TEXT, raw BYTEA, is_new BOOL)")
    yield cursor
    connection.close()


def test_each_statement_says_how_many_rows_it_matched(cursor: PipelineCursor) -> None:
    insert = "INSERT INTO things (id, name) VALUES (%(id)s, %(name)s)"
    counts = cursor.send(
        [
            ("BEGIN", None),
            (insert, {"id": 1, "name": "a"}),
            (insert, {"id": 2, "name": None}),
            ("UPDATE things SET name = %(name)s WHERE id > %(id)s", {"id": 0, "name": "b"}),
            ("UPDATE things SET name = %(name)s WHERE id > %(id)s", {"id": 9, "name": "c"}),
            ("COMMIT", None),
        ]
    )
    assert counts == [0, 1, 1, 2, 0, 0]
    assert not cursor.description
    assert cursor.fetchone() is None


def test_values_come_back_as_they_were_sent(cursor: PipelineCursor) -> None:
    rows = [
        (-(2**63), "", b"\0\xff", True),
        (2**63 - 1, "e\"\\'%s 时 \n", b"", False),
        (0, None, None, None),
    ]
    insert = "INSERT INTO things VALUES (%(id)s, %(name)s, %(raw)s, %(is_new)s)"
    names = ("id", "name", "raw", "is_new")
    cursor.send([(insert, dict(zip(names, row, strict=True))) for row in rows])
    cursor.execute("SELECT id, name, raw, is_new FROM things ORDER BY id")
    assert cursor.rowcount == 3
    assert cursor.fetchone() == rows[0]
    assert cursor.fetchall() == [rows[2], rows[1]]
    assert cursor.fetchall() == []
    cursor.execute("SELECT 1 WHERE 0.5 = %(half)s", {"half": 0.5})
    assert cursor.fetchall() == [(1,)]


def test_a_value_of_another_type_is_refused_before_anything_is_sent(cursor: PipelineCursor) -> None:
    with pytest.raises(TypeError, match="set is no type of a database"):
        cursor.send([("BEGIN", None), ("SELECT %(a)s", {"a": set()})])
    cursor.execute("SELECT 2")
    assert cursor.fetchone() == (2,)


def test_questions_are_answered_each_by_its_rows(cursor: PipelineCursor) -> None:
    insert = ("INSERT INTO things (id) VALUES (%(id)s)", {"id": 7})
    found = cursor.ask([("BEGIN", None), insert, ("SELECT id FROM things", None)], 1)
    assert found == [[(7,)]]
    none = ("SELECT id FROM things WHERE id < %(id)s", {"id": 0})
    assert cursor.ask([none, ("SELECT id, 2 FROM things", None)], 2) == [[], [(7, 2)]]
    cursor.execute("ROLLBACK")
    assert cursor.ask([("SELECT COUNT(*) FROM things", None)], 1) == [[(0,)]]


def test_after_an_error_nothing_is_run_and_nothing_taken_for_prepared(
    dialect: PostgresDialect, cursor: PipelineCursor
) -> None:
    insert = "INSERT INTO things (id) VALUES (%(id)s)"
    behind = "UPDATE things SET name = %(name)s WHERE id = %(id)s"
    for _ in range(2):
        statements = [("BEGIN", None), (insert, {"id": 1}), (insert, {"id": 1})]
        with pytest.raises(Exception, match="things_pkey") as caught:
            cursor.send([*statements, (behind, {"id": 1, "name": "x"}), ("COMMIT", None)])
        assert dialect.classify(caught.value) is Trouble.OURS
        cursor.execute("ROLLBACK")
    assert cursor.send([(insert, {"id": 1}), (behind, {"id": 1, "name": "y"})]) == [1, 1]
    cursor.execute("SELECT id, name FROM things")
    assert cursor.fetchall() == [(1, "y")]


def test_a_statement_is_prepared_once(cursor: PipelineCursor) -> None:
    sql = "SELECT name FROM things WHERE id = %(id)s"
    for number in range(3):
        cursor.send([(sql, {"id": number}), (sql, {"id": number})])
    cursor.execute(COUNT_PREPARED)
    assert cursor.fetchone() == (1,)


def test_the_server_keeps_a_bounded_number_of_statements(
    cursor: PipelineCursor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ksana.store.sql.core.dialects.postgres_pipeline.MOST_PREPARED", 5)
    often = "SELECT -1 WHERE %(a)s = 1"
    for number in range(20):
        form = f"SELECT {number} WHERE %(a)s = 1"
        found = cursor.ask([(often, {"a": 1}), (form, {"a": 1})], 2)
        assert found == [[(-1,)], [(number,)]]
    cursor.execute(COUNT_PREPARED)
    assert cursor.fetchone() == (5,)
    cursor.execute("SELECT generic_plans + custom_plans FROM pg_prepared_statements ORDER BY 1")
    assert cursor.fetchall()[-1] == (20,), "what is used most was prepared again"


def test_much_may_travel_both_ways_at_once(cursor: PipelineCursor) -> None:
    text = "x" * 4_000_000
    asked = [("SELECT %(text)s || ''", {"text": text})] * 8
    assert [rows[0][0] == text for rows in cursor.ask(asked, 8)] == [True] * 8


def test_others_go_on_while_it_waits(cursor: PipelineCursor) -> None:
    turns = 0
    is_over = threading.Event()

    def count() -> None:
        nonlocal turns
        while not is_over.wait(0.005):
            turns += 1

    counter = threading.Thread(target=count)
    counter.start()
    cursor.execute("SELECT pg_sleep(0.5)")
    is_over.set()
    counter.join()
    assert turns > 10


def test_a_connection_that_is_ended_by_the_server_is_lost_and_says_why(
    dialect: PostgresDialect, cursor: PipelineCursor
) -> None:
    cursor.execute("SELECT pg_backend_pid()")
    (process,) = cursor.fetchone()
    other = dialect.connect(read_only=False)

    def end() -> None:
        time.sleep(0.2)
        other.execute("SELECT pg_terminate_backend(%s)", (process,))

    ender = threading.Thread(target=end)
    ender.start()
    with pytest.raises(Exception, match="terminating connection") as caught:
        cursor.send([("SELECT pg_sleep(20)", None), ("SELECT 1", None)])
    ender.join()
    other.close()
    assert dialect.classify(caught.value) is Trouble.LOST
    with pytest.raises(OperationalError) as again:
        cursor.execute("SELECT 1")
    assert dialect.classify(again.value) is Trouble.LOST


def test_answers_that_were_not_read_are_never_taken_for_those_of_the_next(
    dialect: PostgresDialect, cursor: PipelineCursor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cursor, "_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cursor.execute("SELECT 1 FROM pg_sleep(0.1)")
    with pytest.raises(OperationalError) as caught:
        cursor.execute("SELECT 2")
    assert dialect.classify(caught.value) is Trouble.LOST
