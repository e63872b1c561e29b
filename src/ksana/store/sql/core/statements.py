"""Named SQL statements, read from the `.sql` files of each package and compiled once per dialect.

A statement is headed by `-- name: verb_noun` and a sentence that says what it does and what guards
it. Parameters are written `:name`. The three databases share the text; what differs hides behind a
handful of macros in braces, which the dialect answers. An optional condition is declared above the
statement, `-- filter state: AND state = :state`, and goes where `{filters}` stands, so that lists
with many filters need neither string building nor conditions that defeat an index.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any

from ksana.store.sql.core.packages import list_statement_files

_NAME = re.compile(r"^-- name: (\w+)\s*$")
_FILTER = re.compile(r"^-- filter (\w+): (.+)$")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")
_MACRO = re.compile(r"\{(\w+)(?:[: ]([^}]*))?\}")


Bind = Callable[[Mapping[str, Any]], Any]
"""Puts named values into the form a driver takes."""


class Statement:
    """One statement in the words of one dialect."""

    __slots__ = ("_filters", "_is_numbered", "_text", "_variants", "bind", "name", "sql")

    def __init__(
        self, name: str, text: str, filters: Mapping[str, str], *, is_numbered: bool = False
    ) -> None:
        self.name = name
        self._text = text
        self._filters = filters
        self._is_numbered = is_numbered
        self._variants: dict[tuple[str, ...], tuple[str, Bind]] = {}
        self.sql, self.bind = self.with_filters(())

    def with_filters(self, wanted: Iterable[str]) -> tuple[str, Bind]:
        """The text with the named conditions put in, the rest left out; and how its values are
        bound."""
        key = tuple(wanted)
        variant = self._variants.get(key)
        if variant is None:
            parts = [self._filters[name] for name in key]
            sql = self._text.replace("{filters}", " ".join(parts))
            variant = self._variants[key] = (
                _number(sql) if self._is_numbered else (sql, _as_they_are)
            )
        return variant

    @property
    def filter_names(self) -> frozenset[str]:
        """The conditions it knows."""
        return frozenset(self._filters)


def _as_they_are(values: Mapping[str, Any]) -> Mapping[str, Any]:
    return values


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
        is_numbered: bool = False,
    ) -> None:
        self._words = words
        self.is_numbered = is_numbered
        self._parameter = parameter
        self._keeps_where = keeps_where
        self._escapes_percent = escapes_percent

    def render(self, text: str) -> str:
        """Put the dialect's words into a statement or a piece of schema."""
        if self._escapes_percent:
            text = text.replace("%", "%%")
        text = _PARAMETER.sub(lambda match: self._parameter.format(match[1]), text)
        return _MACRO.sub(self._word, text)

    def render_schema(self, text: str) -> str:
        """The same for DDL, which has no parameters."""
        return _MACRO.sub(self._word, text)

    def _word(self, match: re.Match[str]) -> str:
        name, argument = match[1], match[2]
        if name == "filters":
            return match[0]
        if name == "where":  # a partial index, where the database has such a thing
            return f"WHERE {argument}" if self._keeps_where else ""
        return self._words[name].format(argument or "")


def load_statements(macros: Macros) -> dict[str, Statement]:
    """Read every statement of the packages beside this one, as `<file>.<name>`. A surface's
    statements lie in its own package."""
    found: dict[str, Statement] = {}
    for file in list_statement_files():
        group = file.name.removesuffix(".sql")
        for name, text, filters in _split(file.read_text("utf-8")):
            rendered = {key: macros.render(part) for key, part in filters.items()}
            full_name = f"{group}.{name}"
            found[full_name] = Statement(
                full_name, macros.render(text), rendered, is_numbered=macros.is_numbered
            )
    return found


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
        elif not line.startswith("--"):
            lines.append(line)
