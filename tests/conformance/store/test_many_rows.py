"""Many rows and lists: written once in a statement, the same on every database."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from ksana.base.clock import SystemClock
from ksana.store.sql.core.dialects import Dialect
from ksana.store.sql.core.session import Session
from ksana.store.sql.core.statements import Statement
from ksana.store.sql.core.store import choose_dialect

STATEMENTS = {
    "insert": "INSERT INTO things (code, name, n) VALUES (:code, :name, :n)",
    "change": "UPDATE things SET n = :n, name = :name WHERE code = :code AND n < :n",
    "delete": "DELETE FROM things WHERE code = :code AND n > :more_than",
    "by_id": "SELECT id FROM things WHERE id {in ids} ORDER BY id",
    "by_code": "SELECT code FROM things WHERE code {in codes} ORDER BY code",
    "by_name": "SELECT name FROM things WHERE name {in names} ORDER BY name",
    "lock": "SELECT code FROM things WHERE code {in codes} ORDER BY code {for_update}",
    "raise_all": "UPDATE things SET n = n + :by WHERE id {in ids}",
    "insert_odd": "INSERT INTO odd (id, code, size, body, note) "
    "VALUES (:id, LOWER(:code), :size, :body, COALESCE(:note, 'none'))",
    "insert_odd_plain": "INSERT INTO odd (id, code, size, note) "
    "VALUES (:id, LOWER(:code), :size, 'plain') {upsert id} size = odd.size + {excluded size}",
    "change_odd": "UPDATE odd SET size = :size, code = :code, note = :note WHERE id = :id",
    "change_by_id": "UPDATE things SET n = n + :by, name = :name "
    "WHERE id = :id AND n = :old AND name <> ''",
    "move_code": "UPDATE things SET code = :code WHERE code = :old_code AND n >= 0",
    "odd": "SELECT id, code, size, body, note FROM odd ORDER BY id",
    "odd_texts": "SELECT id, code, size, note, CASE WHEN size > 1 THEN 1 ELSE 0 END FROM odd "
    "ORDER BY id",
    "everything": "SELECT id, code, name, n FROM things ORDER BY id",
}


class OddRow(msgspec.Struct, array_like=True):
    """A row that is read as a whole."""

    id: int
    code: str | None
    size: float | None
    note: str | None
    is_large: int


class Things:
    """A table of our own beside the store's, and a session over it."""

    def __init__(self, url: str) -> None:
        self.dialect: Dialect = choose_dialect(url, SystemClock())[0]
        self.connection = self.dialect.connect(read_only=False)
        macros = self.dialect.macros
        cursor = self.connection.cursor()
        cursor.execute(
            macros.render_schema(
                "CREATE TABLE things (id {id}, code CHAR(36) NOT NULL, name VARCHAR(64) NOT NULL, "
                "n BIGINT NOT NULL) {table_options}"
            )
        )
        cursor.execute(
            macros.render_schema(
                "CREATE TABLE odd (id SMALLINT NOT NULL PRIMARY KEY, code CHAR(4), "
                "size DOUBLE PRECISION, body {blob}, note {bigtext}) {table_options}"
            )
        )
        cursor.execute("CREATE UNIQUE INDEX things_code ON things (code)")
        cursor.execute("CREATE INDEX things_name ON things (name)")
        self.statements = {
            name: Statement(name, text, {}, macros) for name, text in STATEMENTS.items()
        }
        self.session = Session(self.dialect, self.connection, self.statements)

    def fill(self, count: int) -> list[int]:
        self.session.raw(self.dialect.begin_write)
        rows = [(code_of(n), f"thing {n}", n) for n in range(count)]
        ids = self.session.insert("insert", ("code", "name", "n"), rows)
        self.session.raw("COMMIT")
        return ids

    def explain(self, name: str, **params: Any) -> str:
        statement = self.statements[name]
        cursor = self.connection.cursor()
        word = "EXPLAIN QUERY PLAN" if self.dialect.name == "sqlite" else "EXPLAIN"
        cursor.execute(f"{word} {statement.sql}", statement.bind(params))
        return " / ".join(" ".join(map(str, row)) for row in cursor.fetchall())


def code_of(n: int) -> str:
    return f"00000000-0000-4000-8000-{n:012d}"


@pytest.fixture
def things(store_url: str) -> Iterator[Things]:
    made = Things(store_url)
    yield made
    made.session.close()


@pytest.mark.parametrize("count", [1, 2, 7, 40, 300])
def test_inserted_rows_are_answered_by_their_ids_in_order(things: Things, count: int) -> None:
    ids = things.fill(count)
    rows = things.session.all("everything")
    assert [row[0] for row in rows] == ids
    assert [row[3] for row in rows] == list(range(count))


@pytest.mark.parametrize("count", [1, 2, 7, 40, 300])
def test_a_change_of_many_rows_answers_how_many_its_guard_let_through(
    things: Things, count: int
) -> None:
    things.fill(count)
    rows = [(1000 if n % 3 else n, code_of(n), f"new '{n}' %s \\ {{}}") for n in range(count)]
    held = sum(1 for n in range(count) if n % 3)
    columns = ("n", "code", "name")  # in another order than the statement names them
    things.session.raw(things.dialect.begin_write)
    assert things.session.run_rows("change", columns, rows) == held
    things.session.raw("COMMIT")
    for id_, code, name, n in things.session.all("everything"):
        at = id_ - things.session.all("everything")[0][0]
        assert code == code_of(at)
        assert (name, n) == ((f"new '{at}' %s \\ {{}}", 1000) if at % 3 else (f"thing {at}", at))


@pytest.mark.parametrize("count", [2, 7, 40, 300])
def test_every_bit_of_a_number_counts_in_changes_and_guards(things: Things, count: int) -> None:
    ids = things.fill(count)
    large = 2**61 + 1  # a database that takes it for a float takes its neighbour for the same
    columns = ("by", "id", "old", "name")
    session = things.session
    first = [(large + n, id_, n, "x") for n, id_ in enumerate(ids)]
    assert session.run_rows("change_by_id", columns, first) == count
    found = [row[3] for row in session.all("everything")]
    assert found == [large + 2 * n for n in range(count)]
    wrong = [(1, id_, large + 2 * n + 1, "y") for n, id_ in enumerate(ids)]
    assert session.run_rows("change_by_id", columns, wrong) == 0
    right = [(1, id_, large + 2 * n, f"{n}\n'\"%%s\\") for n, id_ in enumerate(ids)]
    assert session.run_rows("change_by_id", columns, right) == count
    assert [row[2:] for row in session.all("everything")] == [
        (f"{n}\n'\"%%s\\", large + 2 * n + 1) for n in range(count)
    ]


def test_a_change_of_its_own_key_is_made_too(things: Things) -> None:
    things.fill(40)
    rows = [(code_of(n + 100), code_of(n)) for n in range(40)]
    assert things.session.run_rows("move_code", ("code", "old_code"), rows) == 40
    assert [row[1] for row in things.session.all("everything")] == [code for code, _ in rows]


def test_a_text_with_a_nul_is_kept_or_refused_and_never_cut_in_two(things: Things) -> None:
    ids = things.fill(3)
    names = ["a\0b", "c", "d"]
    rows = [(1, id_, n, names[n]) for n, id_ in enumerate(ids)]
    if things.dialect.name == "postgres":
        with pytest.raises(Exception, match="NUL"):
            things.session.run_rows("change_by_id", ("by", "id", "old", "name"), rows)
        return
    assert things.session.run_rows("change_by_id", ("by", "id", "old", "name"), rows) == 3
    assert [row[2] for row in things.session.all("everything")] == names


@pytest.mark.parametrize("count", [1, 2, 7, 40, 300])
@pytest.mark.parametrize("refused", [0, 1])
def test_run_each_answers_for_every_row_whether_its_guard_held(
    things: Things, count: int, refused: int
) -> None:
    things.fill(count)
    rows = [(code_of(n), "x", n if refused and n % 5 == 0 else 1000) for n in range(count)]
    things.session.raw(things.dialect.begin_write)
    held = things.session.run_each("change", ("code", "name", "n"), rows)
    things.session.raw("COMMIT")
    assert held == [not (refused and n % 5 == 0) for n in range(count)]
    changed = [row[2] == "x" for row in things.session.all("everything")]
    assert changed == held


def test_many_rows_are_deleted_by_their_guard(things: Things) -> None:
    things.fill(40)
    rows = [(code_of(n), 9) for n in range(50)]
    assert things.session.run_rows("delete", ("code", "more_than"), rows) == 30
    assert len(things.session.all("everything")) == 10


@pytest.mark.parametrize("count", [1, 2, 40])
def test_values_of_every_kind_and_none_are_written_as_they_are(things: Things, count: int) -> None:
    columns = ("id", "code", "size", "body", "note")
    rows = [
        (n, "ABCD", n / 7 if n % 3 else None, bytes([0, 92, 34, n]), None if n % 2 else f'"{n}\\')
        for n in range(count)
    ]
    session = things.session
    assert session.run_rows("insert_odd", columns, rows) == count
    found = [(*row[:3], bytes(row[3]), row[4]) for row in session.all("odd")]
    assert found == [
        (n, "abcd", size, body, "none" if note is None else note) for n, _, size, body, note in rows
    ]
    changes = [(n, None if n % 2 else 'x"y', None, -n / 3) for n in range(count)]
    assert session.run_rows("change_odd", ("id", "note", "code", "size"), changes) == count
    assert [(row[0], row[4], row[1], row[2]) for row in session.all("odd")] == changes


def test_rows_read_as_a_whole_are_the_rows_read_value_by_value(things: Things) -> None:
    texts: list[str | None] = [
        '"',
        "\\",
        "\\u0041",
        "\n\t\r\b\f",
        "\x01\x1f\x7f",
        "漢 ☃ 😀 \u2028",
        "",
        None,
        '{"a":"\\""}',
    ]
    sizes = [0.5, None, 0.1, 1e-300, 12345.678, -2.5, 3, 30.0, 2.0**40]
    rows = [
        (n, "abcd", size, b"", text)
        for n, (size, text) in enumerate(zip(sizes, texts, strict=True))
    ]
    session = things.session
    session.run_rows("insert_odd", ("id", "code", "size", "body", "note"), rows)
    read = session.all_as(OddRow, "odd_texts")
    assert [msgspec.structs.astuple(row) for row in read] == session.all("odd_texts")
    assert [row.size for row in read] == sizes
    assert [row.note for row in read] == ["none" if text is None else text for text in texts]
    if things.dialect.is_network:
        again, (first,) = session.ask_as(OddRow, ("odd_texts", {}), [("odd_texts", {})])
        assert again == read and first == session.all("odd_texts")


def test_an_upsert_of_many_rows_adds_to_what_is_there(things: Things) -> None:
    rows = [(n, "ABCD", n + 0.5) for n in range(40)]
    session = things.session
    session.run_rows("insert_odd_plain", ("id", "code", "size"), rows)
    session.run_rows("insert_odd_plain", ("id", "code", "size"), rows[10:])
    assert [row[2] for row in session.all("odd")] == [
        size if n < 10 else 2 * size for n, _, size in rows
    ]


def test_no_rows_are_no_statement(things: Things) -> None:
    assert things.session.insert("insert", ("code", "name", "n"), []) == []
    assert things.session.run_rows("change", ("n", "name", "code"), []) == 0
    assert things.session.run_each("change", ("n", "name", "code"), []) == []
    assert not things.session.wrote


@pytest.mark.parametrize("count", [0, 1, 3, 700])
def test_a_list_of_any_length_finds_its_rows(things: Things, count: int) -> None:
    ids = things.fill(800)
    codes = [code_of(n) for n in range(count)]
    names = [f"thing {n}" for n in range(count)]
    session = things.session
    assert session.all("by_id", ids=ids[:count]) == [(one,) for one in ids[:count]]
    assert session.all("by_code", codes=codes) == [(code,) for code in codes]
    assert session.all("by_name", names=names) == [(name,) for name in sorted(names)]
    session.raw(things.dialect.begin_write)
    assert session.all("lock", codes=codes) == [(code,) for code in codes]
    assert session.run("raise_all", ids=ids[:count], by=5) == count
    session.raw("COMMIT")
    assert [row[3] for row in session.all("everything")][:count] == [n + 5 for n in range(count)]


def test_a_text_in_a_list_is_taken_literally(things: Things) -> None:
    odd = ['a"b', "a'b", "a,b", "{a}", "a\\b", "", "null", "%s %(x)s", "漢 ☃"]
    things.session.insert(
        "insert", ("code", "name", "n"), [(code_of(n), name, n) for n, name in enumerate(odd)]
    )
    for name in odd:
        assert things.session.all("by_name", names=[name, "none"]) == [(name,)]
    assert len(things.session.all("by_name", names=odd)) == len(odd)


@pytest.mark.parametrize(
    ("name", "index"),
    [("by_id", "things_pkey"), ("lock", "things_code"), ("by_name", "things_name")],
)
def test_a_list_is_looked_up_by_the_index_of_its_column(
    things: Things, name: str, index: str
) -> None:
    things.fill(4000)
    if things.dialect.name != "sqlite":
        things.session.raw(
            "ANALYZE things" if things.dialect.name == "postgres" else "ANALYZE TABLE things"
        )
    values = {
        "by_id": {"ids": [3, 5, 8]},
        "lock": {"codes": [code_of(n) for n in range(5)]},
        "by_name": {"names": ["thing 1", "thing 2"]},
    }
    plan = things.explain(name, **values[name])
    if index == "things_pkey" and things.dialect.name != "postgres":
        index = "PRIMARY"  # of SQLite: USING INTEGER PRIMARY KEY
    assert index in plan
    assert "Seq Scan" not in plan and "SCAN things" not in plan and " ALL " not in plan
