"""How a database would run a statement, as text, and what must not stand in it."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tests.conformance.store.ground import Database

_WORDS = {
    "sqlite": "EXPLAIN QUERY PLAN",
    "postgresql": "EXPLAIN",
    "mysql": "EXPLAIN FORMAT=JSON",
}


def analyze(database: Database, table: str) -> None:
    """Have a server count the table's rows, as it does by itself now and then."""
    if database.kind != "sqlite":
        word = "ANALYZE" if database.kind == "postgresql" else "ANALYZE TABLE"
        database.ask(f"{word} {table}")


def explain(
    tx: Any, name: str, kind: str, values: Mapping[str, Any], filters: Iterable[str] = ()
) -> str:
    """The plan of the very statement that runs."""
    session = tx._session
    sql, bind = session._statements[name].with_filters(tuple(filters))
    session._cursor.execute(f"{_WORDS[kind]} {sql}", bind(values))
    rows = session._cursor.fetchall()
    return " ".join(str(column) for row in rows for column in row).replace("\n", " ")


def assert_index_range(plan: str, index: str, table: str, name: str) -> None:
    """The plan reads a range of this index, or its end, and neither scans nor sorts."""
    assert index in plan or "Select tables optimized away" in plan, (name, plan)
    assert not re.search(rf"\bSCAN {table}\b(?! USING)", plan), (name, plan)
    assert not re.search(rf'"table_name": "{table}",\s*"access_type": "ALL"', plan), (name, plan)
    for word in ("Seq Scan", "TEMP B-TREE", "filesort", "Sort Key"):
        assert word not in plan, (name, plan)


def assert_searched(plan: str, kind: str, index: str, column: str, name: str) -> None:
    """The plan looks the column up in this index, and does not walk through it; with "" for the
    column it reads the index's first entry."""
    assert_index_range(plan, index, "no table", name)
    if kind == "sqlite":
        found = re.search(rf"{index} \((.*?)\)", plan)
    elif kind == "mysql":
        assert re.search(r'"access_type": "(range|ref)"', plan), (name, plan)
        found = re.search(r'"used_key_parts": \[(.*?)\]', plan)
    else:
        assert "Bitmap" not in plan, (name, plan)
        found = re.search(r"Index Cond: (.*)", plan)
    assert column in (found[1] if found else ""), (name, plan)
