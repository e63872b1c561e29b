"""Statements that go to MariaDB together: what of them is run, how their answers are read, and what
becomes of a connection that fails under way."""

import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from ksana.store.sql.core.dialects import Trouble
from ksana.store.sql.core.dialects.mysql import MysqlDialect
from ksana.store.sql.core.dialects.mysql_exchange import ExchangeCursor
from tests.ground.mariadb import MariaDB

INSERT = "INSERT INTO things VALUES (%(id)s, %(name)s, %(raw)s, %(share)s)"
NAMES = ("id", "name", "raw", "share")


@pytest.fixture
def dialect(mariadb: MariaDB) -> MysqlDialect:
    return MysqlDialect(mariadb.url(mariadb.create_database()))


@pytest.fixture
def cursor(dialect: MysqlDialect) -> Iterator[ExchangeCursor]:
    connection = dialect.connect(read_only=False)
    cursor = dialect.cursor(connection)
    cursor.execute(
        "CREATE TABLE things (id BIGINT PRIMARY KEY, name LONGTEXT, raw LONGBLOB, share DOUBLE)"
        " DEFAULT CHARSET = utf8mb4"
    )
    yield cursor
    connection.close()


def a_row(id_: int, name: str | None = None) -> dict[str, Any]:
    return dict(zip(NAMES, (id_, name, None, None), strict=True))


def test_each_statement_says_how_many_rows_it_matched(
    dialect: MysqlDialect, cursor: ExchangeCursor
) -> None:
    change = "UPDATE things SET name = %(name)s WHERE id > %(id)s"
    counts = dialect.send(
        cursor,
        [
            ("BEGIN", None),
            (INSERT, a_row(1, "a")),
            (INSERT, a_row(2)),
            (change, {"id": 0, "name": "b"}),
            (change, {"id": 0, "name": "b"}),  # matched, though nothing changes
            (change, {"id": 9, "name": "c"}),
            ("COMMIT", None),
        ],
    )
    assert counts == [0, 1, 1, 2, 2, 0, 0]
    assert not cursor.description
    assert cursor.fetchone() is None and cursor.fetchall() == []


def test_values_come_back_as_they_were_sent(cursor: ExchangeCursor) -> None:
    rows = [
        (-(2**63), "", b"\0\xff'\\", -0.1),
        (0, None, None, None),
        (7, "x" * 250, b"y" * 251, 1e300),
        (8, "x" * 65_535, b"y" * 65_536, 0.0),
        (9, "时" * 30_000, b"", 1.5),
        (2**63 - 1, "e\"\\'%s %% 时 🕰 \n\r\0\x1a;", b"", 1e-9),
    ]
    for row in rows:
        cursor.execute(INSERT, dict(zip(NAMES, row, strict=True)))
    cursor.execute("SELECT id, name, raw, share FROM things ORDER BY id")
    assert cursor.description
    assert cursor.rowcount == 6
    assert cursor.fetchone() == rows[0]
    assert cursor.fetchall() == rows[1:]
    assert cursor.fetchall() == []
    cursor.execute("SELECT SUM(id), COUNT(*), 0.5 = %s FROM things WHERE id IN %s", (0.5, [7, 8]))
    assert cursor.fetchone() == (Decimal(15), 2, 1)
    cursor.execute("SELECT id FROM things WHERE name IN %(names)s", {"names": ["", "no'ne"]})
    assert cursor.fetchall() == [(rows[0][0],)]


def test_a_value_of_another_type_is_refused_before_anything_is_sent(
    dialect: MysqlDialect, cursor: ExchangeCursor
) -> None:
    with pytest.raises(Exception, match="can not be used"):
        dialect.send(cursor, [("BEGIN", None), ("SELECT %(a)s", {"a": float("nan")})])
    with pytest.raises(UnicodeEncodeError):
        cursor.execute("SELECT %(a)s", {"a": "\ud800"})
    cursor.execute("SELECT 2")
    assert cursor.fetchone() == (2,)


def test_questions_are_answered_each_by_its_rows(
    dialect: MysqlDialect, cursor: ExchangeCursor
) -> None:
    before = [("BEGIN", None), (INSERT, a_row(7))]
    assert dialect.ask(cursor, before, [("SELECT id FROM things", None)]) == [[(7,)]]
    none = ("SELECT id FROM things WHERE id < %(id)s", {"id": 0})
    found = dialect.ask(cursor, [none], [none, ("SELECT id, 2 FROM things", None)])
    assert found == [[], [(7, 2)]]
    cursor.execute("ROLLBACK")
    assert dialect.ask(cursor, [], [("SELECT COUNT(*) FROM things", None)]) == [[(0,)]]


def test_after_an_error_nothing_more_is_run_and_the_next_answer_is_the_next_ones(
    dialect: MysqlDialect, cursor: ExchangeCursor
) -> None:
    statements = [("BEGIN", None), (INSERT, a_row(1)), (INSERT, a_row(1)), ("COMMIT", None)]
    for _ in range(2):
        with pytest.raises(Exception, match="Duplicate entry") as caught:
            dialect.send(cursor, statements)
        assert dialect.classify(caught.value) is Trouble.OURS
        cursor.execute("ROLLBACK")
    with pytest.raises(Exception, match="out of range"):  # after a row was sent
        cursor.execute("SELECT 9223372036854775807 + CAST(seq AS SIGNED) FROM seq_0_to_5")
    cursor.execute("SELECT COUNT(*) FROM things")
    assert cursor.fetchall() == [(0,)]


def test_a_guard_that_says_no_fails_what_is_sent_with_it(
    dialect: MysqlDialect, cursor: ExchangeCursor
) -> None:
    cursor.execute(INSERT, a_row(1, "a"))
    change = "UPDATE things SET name = %(name)s WHERE id = %(id)s"
    for is_race, trouble in ((False, Trouble.OURS), (True, Trouble.RACED)):
        for ids, is_held in (([1], True), ([2], False), ([1, 2], False)):
            rows = [(f"n{id_}", id_) for id_ in ids]
            guarded = dialect.require(cursor, change, rows, is_race=is_race)
            if is_held:
                dialect.send(cursor, [("BEGIN", None), *guarded, ("ROLLBACK", None)])
                continue
            with pytest.raises(Exception) as caught:
                dialect.send(cursor, [("BEGIN", None), *guarded, ("COMMIT", None)])
            assert dialect.classify(caught.value) is trouble
            cursor.execute("ROLLBACK")
    cursor.execute("SELECT name FROM things")
    assert cursor.fetchall() == [("a",)]


def test_many_statements_and_large_ones_travel_together(
    dialect: MysqlDialect, cursor: ExchangeCursor
) -> None:
    numbers = [(f"SELECT {n}", None) for n in range(600)]  # packets are numbered up to 255
    assert dialect.ask(cursor, [], numbers) == [[(n,)] for n in range(600)]
    text = "x" * 3_000_000
    asked = [("SELECT %(text)s", {"text": text})] * 3
    assert [rows[0][0] == text for rows in dialect.ask(cursor, [], asked)] == [True] * 3


def test_a_row_of_several_packets_is_one_row(cursor: ExchangeCursor) -> None:
    cursor.execute("SELECT @@max_allowed_packet")
    (most,) = cursor.fetchone()
    cursor.execute("SET GLOBAL max_allowed_packet = 134217728")
    try:
        # The limit of this connection stays; a new one may send and get more.
        connection = type(cursor.connection)(
            **{name: getattr(cursor.connection, name) for name in ("host", "port", "user")},
            max_allowed_packet=134217728,
        )
        large = ExchangeCursor(connection)
        for size in (2**24 - 6, 2**24 - 5, 2**24 - 4, 2**24 + 100, 2**25):
            large.execute(f"SELECT REPEAT('ab', {size // 2}), 1")
            text, one = large.fetchone()
            assert (len(text), one) == (size // 2 * 2, 1)
        connection.close()
    finally:
        cursor.execute(f"SET GLOBAL max_allowed_packet = {most}")


@pytest.mark.parametrize("is_reader", [False, True])
def test_literals_mean_the_same_whatever_the_server_is_set_to(
    dialect: MysqlDialect, cursor: ExchangeCursor, is_reader: bool
) -> None:
    cursor.execute("SELECT @@GLOBAL.sql_mode")
    (mode,) = cursor.fetchone()
    cursor.execute("SET GLOBAL sql_mode = 'NO_BACKSLASH_ESCAPES,ANSI_QUOTES'")
    try:
        connection = dialect.connect(read_only=is_reader)
        other = dialect.cursor(connection)
        text = '\\\' OR 1 = 1 -- "x"'
        other.execute('SELECT %(text)s, "y"', {"text": text})
        assert other.fetchone() == (text, "y")
        connection.close()
    finally:
        cursor.execute("SET GLOBAL sql_mode = %s", (mode,))


def test_others_go_on_while_it_waits(cursor: ExchangeCursor) -> None:
    turns = 0
    is_over = threading.Event()

    def count() -> None:
        nonlocal turns
        while not is_over.wait(0.005):
            turns += 1

    counter = threading.Thread(target=count)
    counter.start()
    cursor.execute("SELECT SLEEP(0.5)")
    is_over.set()
    counter.join()
    assert turns > 10


def test_a_connection_that_is_ended_by_the_server_is_lost(
    dialect: MysqlDialect, cursor: ExchangeCursor
) -> None:
    cursor.execute("SELECT CONNECTION_ID()")
    (process,) = cursor.fetchone()
    other = dialect.connect(read_only=False)

    def end() -> None:
        time.sleep(0.2)
        other.query(f"KILL {process}")

    ender = threading.Thread(target=end)
    ender.start()
    with pytest.raises(Exception, match=r"\d") as caught:
        dialect.send(cursor, [("SELECT SLEEP(20)", None), ("SELECT 1", None)])
    ender.join()
    other.close()
    assert dialect.classify(caught.value) is Trouble.LOST
    with pytest.raises(Exception, match=r"\d") as again:
        cursor.execute("SELECT 1")
    assert dialect.classify(again.value) is Trouble.LOST


def test_answers_that_were_not_read_are_never_taken_for_those_of_the_next(
    dialect: MysqlDialect, cursor: ExchangeCursor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(cursor, "_receive", interrupted)
        with pytest.raises(KeyboardInterrupt):
            cursor.execute("SELECT SLEEP(0.1)")
    with pytest.raises(Exception, match="0") as caught:
        cursor.execute("SELECT 2")
    assert dialect.classify(caught.value) is Trouble.LOST
