"""Named SQL statements, read from the `.sql` files of each package and compiled once per dialect.

A statement is headed by `-- name: verb_noun` and a sentence that says what it does and what guards
it. Parameters are written `:name`. The three databases share the text; what differs hides behind a
handful of macros in braces, which the dialect answers. An optional condition is declared above the
statement, `-- filter state: AND state = :state`, and goes where `{filters}` stands, so that lists
with many filters need neither string building nor conditions that defeat an index.

`{in name}` compares with a list: `WHERE id {in ids}` takes `ids=[…]`, a list of numbers or of texts
of any length, and finds the rows by the column's index. `-- large: payload_json` above a list of
rows names the columns that may be large, so that rows can be measured before they are read. A
statement that changes rows is written for one row; the session runs it for many (`run_rows`,
`run_each`, `insert`).
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec

from ksana.store.sql.core.packages import list_statement_files

_NAME = re.compile(r"^-- name: (\w+)\s*$")
_FILTER = re.compile(r"^-- filter (\w+): (.+)$")
_LARGE = re.compile(r"^-- large: (.+)$")
_SELECT = re.compile(r"\ASELECT (\w+), .*?\nFROM ", re.DOTALL)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")
_MACRO = re.compile(r"\{(\w+)(?:[: ]([^}]*))?\}")
_LIST = re.compile(r"\{(?:in|keyed_in \w+ \w+ \w+) (\w+)\}")


_SPLIT = frozenset(
    {
        *("widen", "below", "above", "down", "up", "text_below", "text_down"),
        *("text_between", "text_up", "keyed", "keyed_pair", "keyed_in", "keys_of"),
        *("partial", "either", "only_of"),
    }
)
"""Macros with several words. `widen` is a text column that may hold more: table, name, type.
`below` and `above` are the rows of a group whose key is less than `:before` or greater than
`:after`: the group's column, the key, the group's parameter; `down` and `up` are their order: the
group's column, the key. They are read from the index that begins with both; PostgreSQL would at
times walk another and pick them out, unless the order names both. `text_below` and `text_down` are
the same for an index that only lists use: over `column || ''`, where the database can have that, so
that no planner takes it for anything else. `text_between` and `text_up` are the same for keys that
are text, in the order of bytes (`bytewise`), greater than `:floor` and less than `:top`. `only` and
`first` are the same for a whole group. `keyed` finds a row by a column that never changes, which
lies with its index in a table of keys where a changed row is entered anew into each of its indexes:
table of keys, key, column (also the parameter); `keyed_pair` by two of them, `keyed_in` by a list,
whose name comes last. `keys_of` is the table itself: without keys, with. `partial` is the
condition of a partial index over a `position`; a database without such indexes has a column for
each that is NULL elsewhere: the position, that column. `either` is a column by its name, or by that
of the column which has its values in such an index; `only_of` is the same as `only` for it."""

Bind = Callable[[Mapping[str, Any]], Any]
"""Puts named values into the form a driver takes."""

LARGE = "large"
"""Among the filters of a statement: the columns of its rows that may be large."""

ListValue = Callable[[Sequence[int] | Sequence[str]], Any]
"""Puts a list into the form `{in name}` takes."""

_encode = msgspec.json.Encoder().encode


class Statement:
    """One statement in the words of one dialect."""

    __slots__ = (
        "_filters",
        "_large",
        "_macros",
        "_text",
        "_variants",
        "bind",
        "name",
        "sql",
    )

    def __init__(self, name: str, text: str, filters: Mapping[str, str], macros: "Macros") -> None:
        self.name = name
        self._large = tuple(filters.get(LARGE, "").split(", ")) if LARGE in filters else ()
        self._text = text
        self._filters = filters
        self._macros = macros
        self._variants: dict[tuple[str, ...], tuple[str, Bind]] = {}
        self.sql, self.bind = self.with_filters(())

    def with_filters(self, wanted: Iterable[str], *, is_measured: bool = False) -> tuple[str, Bind]:
        """The text with the named conditions put in, the rest left out; and how its values are
        bound. With `is_measured` it answers the first column and the bytes of each row."""
        key = (*wanted, LARGE) if is_measured else tuple(wanted)
        variant = self._variants.get(key)
        if variant is None:
            parts = [self._filters[name] for name in key if name != LARGE]
            text = self._text.replace("{filters}", " ".join(parts))
            if is_measured:
                sizes = " + ".join(f"COALESCE(OCTET_LENGTH({name}), 0)" for name in self._large)
                text = _SELECT.sub(rf"SELECT \1, {sizes}\nFROM ", text)
            variant = self._variants[key] = self._macros.compile(text)
        return variant

    @property
    def has_large(self) -> bool:
        """Whether it declares columns that may be large."""
        return bool(self._large)

    @property
    def filter_names(self) -> frozenset[str]:
        """The conditions it knows."""
        return frozenset(self._filters) - {LARGE}


def _keep(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return values


def _convert_lists(bind: Bind, names: Iterable[str], list_value: ListValue | None) -> Bind:
    """Bind values of which some are lists, in the form the database takes a list."""
    lists = tuple(names)

    def bind_arrays(values: Mapping[str, Any]) -> Any:
        return bind({**values, **{name: _encode(values[name]).decode() for name in lists}})

    if list_value is None:
        return bind_arrays

    def bind_lists(values: Mapping[str, Any]) -> Any:
        return bind({**values, **{name: list_value(values[name]) for name in lists}})

    return bind_lists


def _number(sql: str) -> tuple[str, Bind]:
    """Numbers in place of names: SQLite's driver binds a tuple in a third of the time it takes for
    a mapping."""
    names = list(dict.fromkeys(_PARAMETER.findall(sql)))
    numbered = _PARAMETER.sub(lambda match: f"?{names.index(match[1]) + 1}", sql)
    if not names:
        return numbered, lambda values: ()
    pick = itemgetter(*names)
    if len(names) == 1:
        return numbered, lambda values: (pick(values),)
    return numbered, pick


class Macros:
    """A dialect's answers: what a macro in braces stands for, and how a parameter is written."""

    def __init__(
        self,
        words: Mapping[str, str],
        parameter: str,
        keeps_where: bool,
        escapes_percent: bool,
        list_value: ListValue | None = None,
        is_numbered: bool = False,
    ) -> None:
        """Without `list_value` a list is bound as a JSON array."""
        self._words = words
        self._list_value = list_value
        self._is_numbered = is_numbered
        self._parameter = parameter
        self._keeps_where = keeps_where
        self._escapes_percent = escapes_percent

    def compile(self, text: str) -> tuple[str, Bind]:
        """A statement in the dialect's words, and how its values are bound."""
        sql, lists = self.render(text), dict.fromkeys(_LIST.findall(text))
        sql, bind = _number(sql) if self._is_numbered else (sql, _keep)
        return sql, _convert_lists(bind, lists, self._list_value) if lists else bind

    def render(self, text: str) -> str:
        """Put the dialect's words into a statement."""
        if self._escapes_percent:
            text = text.replace("%", "%%")
        text = _PARAMETER.sub(lambda match: self._parameter.format(match[1]), text)
        return _MACRO.sub(self._word, text)

    def render_schema(self, text: str) -> str:
        """The same for DDL, which has no parameters."""
        return _MACRO.sub(self._word, text)

    def _word(self, match: re.Match[str]) -> str:
        name, argument = match[1], match[2]
        if name == "where":  # a partial index, where the database has such a thing
            return f"WHERE {argument}" if self._keeps_where else ""
        if name in _SPLIT:
            return self._words[name].format(*argument.split())
        return self._words[name].format(argument or "")


def load_statements(macros: Macros) -> dict[str, Statement]:
    """Compile every statement of the packages beside this one, by its full name."""
    return {
        name: Statement(name, text, filters, macros) for name, text, filters in read_statements()
    }


def read_statements() -> list[tuple[str, str, dict[str, str]]]:
    """Every statement as it is written: `<file>.<name>`, its text, its filters. A surface's
    statements lie in its own package."""
    return [
        (f"{file.name.removesuffix('.sql')}.{name}", text, filters)
        for file in list_statement_files()
        for name, text, filters in _split(file.read_text("utf-8"))
    ]


def _split(source: str) -> Iterable[tuple[str, str, dict[str, str]]]:
    name: str | None = None
    lines: list[str] = []
    filters: dict[str, str] = {}
    for line in [*source.splitlines(), "-- name: end"]:
        if heading := _NAME.match(line):
            if name is not None:
                yield name, "\n".join(lines).strip().rstrip(";"), filters
            name, lines, filters = heading[1], [], {}
        elif declared := _FILTER.match(line):
            filters[declared[1]] = declared[2]
        elif large := _LARGE.match(line):
            filters[LARGE] = large[1]
        elif not line.startswith("--"):
            lines.append(line)
