"""One statement for many rows means what many statements mean."""

import sqlite3
from itertools import chain

import pytest

from ksana.store.sql.core import bulk

UPDATE = "UPDATE t SET a = ?1, b = b + ?2\nWHERE id = ?3 AND a <> ?1"
INSERT = "INSERT INTO t (id, a, b) VALUES (?1, ?2, COALESCE(?3, 0))"


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
