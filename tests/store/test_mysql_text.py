"""Changes of many rows as MySQL gets them: one UPDATE by the primary key, with each row's values
found by the place of its key."""

import time
from typing import Any

import pytest

from ksana.store.sql.core import bulk
from ksana.store.sql.core.dialects import mysql_text
from ksana.store.sql.core.dialects.mysql import MysqlDialect
from ksana.store.sql.core.statements import Statement, load_statements

UPDATE = (
    "UPDATE t SET a = %(a)s, b = b + %(b)s WHERE id = %(id)s AND state = 'X' AND token = %(token)s"
)


class Connection:
    """Writes what has signs of its own as the driver does."""

    def escape(self, value: Any) -> str:
        if isinstance(value, str):
            return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
        return repr(value)


def write(rows: list[tuple[Any, ...]], sql: str = UPDATE) -> str | None:
    change = mysql_text.read_change(sql)
    assert change is not None
    return mysql_text.write_change(Connection(), sql, change, rows)


def test_what_all_rows_share_is_written_once_and_the_rest_by_the_place_of_the_key() -> None:
    assert write([("x", 1, 7, 5), ("x", 2, 8, 5)]) == (
        "UPDATE t FORCE INDEX (PRIMARY) "
        "SET a = 'x', b = b + CAST(ELT(FIELD(id,7,8),1,2) AS SIGNED) "
        "WHERE id IN (7,8) AND COALESCE(state = 'X', FALSE) AND COALESCE(token = 5, FALSE)"
    )


def test_texts_are_escaped_and_what_is_missing_is_null() -> None:
    text = write([("it's", 1.5, 7, None), (None, None, 8, None)])
    assert text is not None
    assert "a = ELT(FIELD(id,7,8),'it\\'s',NULL)" in text
    assert "b = b + (ELT(FIELD(id,7,8),1.5,NULL) + 0e0)" in text
    assert text.endswith("COALESCE(token = NULL, FALSE)")


def test_equal_values_of_different_types_are_not_taken_for_one() -> None:
    text = write([("x", True, 7, 5), ("x", 1, 8, 5)])
    assert text is not None and "ELT(FIELD(id,7,8),True,1)" in text


def test_a_key_that_comes_twice_is_no_place() -> None:
    assert write([("x", 1, 7, 5), ("y", 2, 7, 5)]) is None


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE t SET id = %(new)s WHERE id = %(id)s",
        "UPDATE t SET a = %(a)s WHERE b > %(b)s",
        "DELETE FROM t WHERE id = %(id)s",
    ],
)
def test_other_changes_are_left_alone(sql: str) -> None:
    assert mysql_text.read_change(sql) is None


def test_percent_signs_of_the_statement_stay_and_those_of_values_too() -> None:
    sql = "UPDATE t SET a = %(a)s WHERE id = %(id)s AND c LIKE '%%x'"
    text = write([("50%%", 1), ("%s %(id)s", 2)], sql)
    assert text is not None
    assert "ELT(FIELD(id,1,2),'50%%','%s %(id)s')" in text and "LIKE '%x'" in text


def test_texts_are_written_so_that_the_server_reads_them_as_they_were() -> None:
    values = [
        "plain",
        "it's",
        'a "b"',
        "back\\slash",
        "nul\0",
        "ctrl\x1az",
        "line\nend\r",
        "刹那 ☃ 🕰",
    ]
    assert mysql_text.write_literals(Connection(), values) == [
        "'plain'",
        "'it\\'s'",
        "'a \"b\"'",
        "'back\\\\slash'",
        "'nul\\0'",
        "'ctrl\\Zz'",
        "'line\nend\r'",
        "'刹那 ☃ 🕰'",
    ]
    assert mysql_text.write_literals(Connection(), [None, "'", 1.5]) == ["NULL", "'\\''", "1.5"]


def test_megabytes_of_quotes_cost_little() -> None:
    began = time.process_time()
    [text] = mysql_text.write_literals(Connection(), ["\\'" * 2_000_000])
    assert len(text) == 8_000_002
    assert time.process_time() - began < 0.5


INSERTS = [
    one
    for one in load_statements(MysqlDialect.macros).values()
    if one.sql.lstrip().upper().startswith("INSERT") and "SELECT" not in one.sql.upper()
]


@pytest.mark.parametrize("statement", INSERTS, ids=lambda one: one.name)
def test_every_insert_of_ours_takes_many_rows(statement: Statement) -> None:
    """One that does not is sent row by row, and a row costs three times as much."""
    row = tuple(range(len(bulk.list_names(statement.sql))))
    text = mysql_text.write_insert(Connection(), statement.sql, [row, row])
    assert text is not None
    assert text.upper().count("VALUES (") >= 1 and "%(" not in text


def test_there_are_inserts() -> None:
    assert {"runs.insert_run", "tasks.insert_task", "queue.insert_job"} <= {
        one.name for one in INSERTS
    }


def test_rows_are_inserted_with_the_literals_that_all_share() -> None:
    sql = (
        "INSERT INTO t (a, b, c, d) VALUES (%(a)s, 1, LOWER(%(c)s), '%%') "
        "ON DUPLICATE KEY UPDATE a = VALUES(a)"
    )
    assert mysql_text.write_insert(Connection(), sql, [("x", "Y"), ("it's", None)]) == (
        "INSERT INTO t (a, b, c, d) VALUES ('x', 1, LOWER('Y'), '%'),"
        "('it\\'s', 1, LOWER(NULL), '%') "
        "ON DUPLICATE KEY UPDATE a = VALUES(a)"
    )


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO t (a) SELECT a FROM u WHERE b = %(b)s",
        "INSERT INTO t (a) VALUES (%(a)s) ON DUPLICATE KEY UPDATE b = %(b)s",
        "UPDATE t SET a = (VALUES (%(a)s))",
    ],
)
def test_what_is_no_insert_of_one_row_is_left_alone(sql: str) -> None:
    assert mysql_text.write_insert(Connection(), sql, [(1, 2), (3, 4)]) is None
