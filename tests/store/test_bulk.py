"""One statement for many rows means what many statements mean."""

import sqlite3
from itertools import chain
from typing import Any

import pytest

from ksana.base.clock import SystemClock
from ksana.store.sql.core import bulk
from ksana.store.sql.core.dialects import SqliteDialect
from ksana.store.sql.core.statements import Statement, load_statements

UPDATE = "UPDATE t SET a = ?1, b = b + ?2\nWHERE id = ?3 AND a <> ?1"
INSERT = "INSERT INTO t (id, a, b) VALUES (?1, ?2, COALESCE(?3, 0))"

MARKED_INSERT = "INSERT INTO t (id, a, b) VALUES (?1, /*same*/?2, COALESCE(/*alike*/?3, 0))"
MARKED_UPDATE = (
    "UPDATE t SET a = /*same*/?1, b = CASE WHEN /*same*/?1 = 'new' THEN b ELSE /*alike*/?2 END\n"
    "WHERE id = ?3 AND b >= ?4 AND a <> ''"
)
MARKED = [one for one in load_statements(SqliteDialect.macros).values() if bulk.list_same(one.sql)]


def a_table() -> sqlite3.Connection:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT, b INTEGER)")
    return connection


@pytest.mark.parametrize("width", bulk.WIDTHS)
def test_a_wide_insert_writes_the_same_rows(width: int) -> None:
    rows = [(n, f"a{n}", None if n % 2 else n) for n in range(width)]
    one, many = a_table(), a_table()
    one.executemany(INSERT, rows)
    wide = bulk.widen(INSERT, width)
    assert wide is not None
    assert many.execute(wide, tuple(chain.from_iterable(rows))).rowcount == width
    assert many.execute("SELECT * FROM t").fetchall() == one.execute("SELECT * FROM t").fetchall()


@pytest.mark.parametrize("width", bulk.WIDTHS)
def test_a_wide_update_changes_the_same_rows_and_counts_them(width: int) -> None:
    changes = [(f"a{n}" if n % 3 else "new", n, n) for n in range(width)]
    one, many = a_table(), a_table()
    for table in (one, many):
        table.executemany(INSERT, [(n, f"a{n}", 1) for n in range(width - 1)])
    matched = one.executemany(UPDATE, changes).rowcount
    wide = bulk.widen(UPDATE, width)
    assert wide is not None
    assert 0 < matched < width
    assert many.execute(wide, tuple(chain.from_iterable(changes))).rowcount == matched
    assert many.execute("SELECT * FROM t").fetchall() == one.execute("SELECT * FROM t").fetchall()


def test_a_wide_update_finds_each_row_by_its_key() -> None:
    table = a_table()
    wide = bulk.widen(UPDATE, 8)
    plan = " ".join(row[3] for row in table.execute(f"EXPLAIN QUERY PLAN {wide}", tuple(range(24))))
    assert "SEARCH t USING INTEGER PRIMARY KEY" in plan


def test_a_wide_update_for_named_values_takes_each_row_in_the_order_it_names() -> None:
    wide = bulk.widen_named(
        "UPDATE t SET a = %(a)s, b = %(b)s, c = %(a)s WHERE id = %(id)s AND d LIKE '%%x'", 3
    )
    assert wide is not None
    sql, names = wide
    assert names == ("a", "b", "id")
    assert sql.count("%s") == 9 and "%(" not in sql and "LIKE '%%x'" in sql
    assert sql.startswith("UPDATE (SELECT %s AS p_a, %s AS p_b, %s AS p_id UNION ALL SELECT")
    assert bulk.widen_named("INSERT INTO t (a) VALUES (%(a)s)", 8) is None


def test_what_cannot_be_widened_is_left_alone() -> None:
    assert bulk.widen("DELETE FROM t WHERE id = ?1", 8) is None
    assert bulk.widen("UPDATE t SET a = 1", 8) is None
    assert bulk.widen("INSERT INTO t (a) SELECT ?1", 8) is None


@pytest.mark.parametrize("count", [0, 1, 7, 8, 39, 128, 300])
def test_rows_are_cut_into_fixed_widths_in_their_order(count: int) -> None:
    pieces = list(bulk.split(range(count)))
    assert [row for _, piece in pieces for row in piece] == list(range(count))
    assert all(
        width == len(piece) or (width == 1 and len(piece) < bulk.WIDTHS[-1])
        for width, piece in pieces
    )


def test_a_statement_for_arrays_takes_a_value_of_each_row_from_them() -> None:
    update = "UPDATE t SET a = %(a)s, b = %(b)s WHERE id = %(id)s AND a <> %(a)s"
    assert bulk.widen_arrays(update, ("text", "int8", "int8")) == (
        "UPDATE t SET a = v.p_a, b = v.p_b "
        "FROM unnest(%(a)s::text[], %(b)s::int8[], %(id)s::int8[]) "
        "WITH ORDINALITY AS v (p_a, p_b, p_id, row_number) "
        "WHERE id = v.p_id AND a <> v.p_a"
    )
    insert = "INSERT INTO t (a, b) VALUES (%(a)s, COALESCE(%(b)s, 0)) ON CONFLICT DO NOTHING"
    wide = bulk.widen_arrays(insert, ("text", "int8"))
    assert wide is not None
    assert wide.startswith("INSERT INTO t (a, b) SELECT v.p_a, COALESCE(v.p_b, 0) FROM unnest(")
    assert wide.endswith("ON CONFLICT DO NOTHING")
    assert bulk.number_names(update) == "UPDATE t SET a = $1, b = $2 WHERE id = $3 AND a <> $1"
    assert bulk.widen_arrays("DELETE FROM t WHERE id = %(id)s", ("int8",)) is None
    assert bulk.widen_arrays(f"{insert} WHERE a = %(a)s", ("text", "int8")) is None


def test_a_number_of_rows_that_comes_again_gets_a_statement_of_its_own() -> None:
    sql = "INSERT INTO familiar (id) VALUES (?1)"
    rows = list(range(100))
    for _ in range(bulk.EXACT_FROM):
        pieces = list(bulk.split_for(sql, rows))
        assert pieces == list(bulk.split(rows))
    assert list(bulk.split_for(sql, rows)) == [(100, rows)]
    assert list(bulk.split_for(sql, rows[:99])) == list(bulk.split(rows[:99]))
    for _ in range(2 * bulk.EXACT_FROM):
        many = list(range(bulk.MOST_EXACT + 1))
        assert list(bulk.split_for(sql, many)) == list(bulk.split(many))
        assert list(bulk.split_for(sql, rows[:1])) == [(1, rows[:1])]
        assert list(bulk.split_for(sql, [])) == []


# Values that the rows have in common


def joined(sql: str, rows: list[tuple[Any, ...]]) -> list[tuple[str, Any]]:
    """The statements that SQLite runs for so many rows."""
    return SqliteDialect("no file", SystemClock()).widen(None, sql, rows)


def run_joined(table: sqlite3.Connection, sql: str, rows: list[tuple[Any, ...]]) -> int:
    return sum(table.execute(text, values).rowcount for text, values in joined(sql, rows))


def test_the_places_of_marked_parameters_are_listed_all_of_them_first() -> None:
    assert bulk.list_same(MARKED_UPDATE) == ((0, 1), (0,))
    assert bulk.list_same(MARKED_INSERT) == ((1, 2), (1,))
    assert bulk.list_same("UPDATE t SET a = ?2, b = /*same*/?1 WHERE id = ?3") == ((0,),)
    assert bulk.list_same("UPDATE t SET a = /*alike*/?1, b = ?2 WHERE id = ?3") == ((0,),)
    assert bulk.list_same(UPDATE) == bulk.list_same(INSERT) == ()


def test_a_wide_insert_names_what_its_rows_have_in_common_by_its_number() -> None:
    assert bulk.widen_same(MARKED_INSERT, 3, (1, 2)) == (
        "INSERT INTO t (id, a, b) VALUES "
        "(?3, ?1, COALESCE(?2, 0)), (?, ?1, COALESCE(?2, 0)), (?, ?1, COALESCE(?2, 0))"
    )
    assert bulk.widen_same(MARKED_INSERT, 2, (1,)) == (
        "INSERT INTO t (id, a, b) VALUES (?2, ?1, COALESCE(?3, 0)), (?, ?1, COALESCE(?, 0))"
    )
    twice = "INSERT INTO t (a, id, b) VALUES (/*same*/?1, ?2, /*same*/?1) ON CONFLICT DO NOTHING"
    assert bulk.widen_same(twice, 2, (0,)) == (
        "INSERT INTO t (a, id, b) VALUES (?1, ?2, ?1), (?1, ?, ?1) ON CONFLICT DO NOTHING"
    )


def test_a_wide_update_takes_the_rest_of_each_row_from_its_columns_and_keeps_its_guard() -> None:
    assert bulk.widen_same(MARKED_UPDATE, 3, (0, 1)) == (
        "UPDATE t SET a = ?1, b = CASE WHEN ?1 = 'new' THEN b ELSE ?2 END "
        "FROM (VALUES (?3, ?4), (?, ?), (?, ?)) AS v "
        "WHERE id = v.column1 AND b >= v.column2 AND a <> ''"
    )
    assert bulk.widen_same(MARKED_UPDATE, 2, (0,)) == (
        "UPDATE t SET a = ?1, b = CASE WHEN ?1 = 'new' THEN b ELSE v.column1 END "
        "FROM (VALUES (?2, ?3, ?4), (?, ?, ?)) AS v "
        "WHERE id = v.column2 AND b >= v.column3 AND a <> ''"
    )
    guarded = "UPDATE t SET b = ?2 WHERE id = ?3 AND a = /*same*/?1"
    assert bulk.widen_same(guarded, 2, (0,)) == (
        "UPDATE t SET b = v.column1 FROM (VALUES (?2, ?3), (?, ?)) AS v "
        "WHERE id = v.column2 AND a = ?1"
    )


def test_beside_arrays_what_rows_have_in_common_is_a_plain_parameter() -> None:
    update = "UPDATE t SET a = /*same*/%(a)s, b = /*alike*/%(b)s WHERE id = %(id)s AND c <> %(c)s"
    types = ("text", "int8", "int8", "text")
    assert bulk.list_same(update) == ((0, 1), (0,))
    assert bulk.widen_arrays(update, types, (0, 1)) == (
        "UPDATE t SET a = %(a)s::text, b = %(b)s::int8 "
        "FROM unnest(%(id)s::int8[], %(c)s::text[]) "
        "WITH ORDINALITY AS v (p_id, p_c, row_number) "
        "WHERE id = v.p_id AND c <> v.p_c"
    )
    assert bulk.widen_arrays(update, types, (0,)) == (
        "UPDATE t SET a = %(a)s::text, b = v.p_b "
        "FROM unnest(%(b)s::int8[], %(id)s::int8[], %(c)s::text[]) "
        "WITH ORDINALITY AS v (p_b, p_id, p_c, row_number) "
        "WHERE id = v.p_id AND c <> v.p_c"
    )
    insert = "INSERT INTO t (id, a, b) VALUES (%(id)s, /*same*/%(a)s, COALESCE(/*same*/%(a)s, ''))"
    wide = bulk.widen_arrays(insert, ("int8", "text"), (1,))
    assert wide is not None
    assert wide.startswith(
        "INSERT INTO t (id, a, b) SELECT v.p_id, %(a)s::text, COALESCE(%(a)s::text, '') "
        "FROM unnest(%(id)s::int8[]) WITH ORDINALITY AS v (p_id, row_number)"
    )
    plain = bulk.widen_arrays(update, types)
    assert plain is not None and bulk.SAME not in plain and bulk.ALIKE not in plain


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM t WHERE id = ?2 AND a = /*same*/?1",
        "SELECT id FROM t WHERE id = ?2 AND a = /*same*/?1",
        "INSERT INTO t (id, a) SELECT ?2, /*same*/?1",
        "INSERT INTO t (id, a) VALUES (?2, /*same*/?1) ON CONFLICT (id) DO UPDATE SET a = ?2",
        "INSERT INTO t (id, a) VALUES (?2, /*same*/?1) ON CONFLICT (id) DO UPDATE SET b = ?3",
        "INSERT INTO t (id, a, b) VALUES (?2, /*same*/?1, ?2)",
        "INSERT INTO t (id, a, b) VALUES (?3, /*same*/?1, ?2)",
    ],
)
def test_what_cannot_be_widened_is_left_alone_whatever_is_marked(sql: str) -> None:
    assert bulk.widen_same(sql, 8, (0,)) is None


@pytest.mark.parametrize("width", [16, 32, 40, 128])
@pytest.mark.parametrize("common", [("new", 7), ("other", 7), (None, 7), ("new", None)], ids=str)
def test_rows_with_values_in_common_are_written_as_one_by_one(
    width: int, common: tuple[Any, Any]
) -> None:
    rows = [(n, *common) for n in range(width)]
    one, many = a_table(), a_table()
    one.executemany(MARKED_INSERT, rows)
    assert run_joined(many, MARKED_INSERT, rows) == width
    assert many.execute("SELECT * FROM t").fetchall() == one.execute("SELECT * FROM t").fetchall()
    changes = [(common[0], n % 2, n, 7 if n % 3 else 8) for n in range(width)]
    matched = one.executemany(MARKED_UPDATE, changes).rowcount
    assert run_joined(many, MARKED_UPDATE, changes) == matched
    assert many.execute("SELECT * FROM t").fetchall() == one.execute("SELECT * FROM t").fetchall()


@pytest.mark.parametrize(
    ("differs", "bound"),
    [
        (None, 2 + 32),
        ("alike", 1 + 2 * 32),
        ("same", 3 * 32),
        ("same and alike", 3 * 32),
    ],
)
@pytest.mark.parametrize("place", [0, 15, 31])
def test_one_row_that_differs_decides_how_often_values_are_bound(
    differs: str | None, bound: int, place: int
) -> None:
    rows: list[tuple[Any, ...]] = [(n, "a", None) for n in range(32)]
    if differs is not None:
        a = "b" if "same" in differs else "a"
        rows[place] = (place, a, 3 if "alike" in differs else None)
    [(_, values)] = joined(MARKED_INSERT, rows)
    assert len(values) == bound
    one, many = a_table(), a_table()
    one.executemany(MARKED_INSERT, rows)
    run_joined(many, MARKED_INSERT, rows)
    assert many.execute("SELECT * FROM t").fetchall() == one.execute("SELECT * FROM t").fetchall()


def test_values_in_common_come_first_and_then_the_rest_of_each_row() -> None:
    [(_, values)] = joined(MARKED_UPDATE, [("new", 9, n, -n) for n in range(32)])
    assert values == ("new", 9, *chain.from_iterable((n, -n) for n in range(32)))
    [(_, values)] = joined(MARKED_UPDATE, [("new", n % 2, n, -n) for n in range(32)])
    assert values == ("new", *chain.from_iterable((n % 2, n, -n) for n in range(32)))


def test_of_a_few_rows_every_value_is_bound() -> None:
    rows = [(n, "a", 1) for n in range(10)]
    assert [len(values) for _, values in joined(MARKED_INSERT, rows)] == [24, 6]


def test_a_guard_that_says_no_to_some_rows_is_counted() -> None:
    table = a_table()
    table.executemany(INSERT, [(n, "x", n % 4) for n in range(32)])
    assert run_joined(table, MARKED_UPDATE, [("done", 1, n, 2) for n in range(32)]) == 16
    done = table.execute("SELECT id FROM t WHERE a = 'done' ORDER BY id").fetchall()
    assert [row[0] for row in done] == [n for n in range(32) if n % 4 >= 2]


def test_statements_for_every_firing_claim_and_release_bind_values_once() -> None:
    assert {one.name for one in MARKED} >= {
        *("core.append_events", "tasks.insert_task", "tasks.advance_task"),
        *("runs.insert_run", "runs.finish_plain_run", "queue.insert_job", "queue.insert_job_once"),
        *("queue.claim_job", "queue.start_job", "queue.grant_job", "queue.finish_job"),
    }


@pytest.mark.parametrize("statement", MARKED, ids=lambda statement: statement.name)
def test_no_mark_in_a_statement_is_in_vain(statement: Statement) -> None:
    for same in bulk.list_same(statement.sql):
        wide = bulk.widen_same(statement.sql, 16, same)
        assert wide is not None
        assert bulk.SAME not in wide and bulk.ALIKE not in wide
        assert wide.count("?") > 16
