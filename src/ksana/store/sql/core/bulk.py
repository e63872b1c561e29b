"""Many rows in one statement. SQLite's driver lets go of the interpreter's lock at every step, and
a busy event loop takes it: one statement for a hundred rows costs one hand-over instead of a
hundred. MySQL's driver sends an UPDATE row by row, a round trip each. PostgreSQL takes a column of
any number of rows as one array: a statement is prepared once and costs a quarter of a hundred in a
pipeline."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, TypeVar

_Row = TypeVar("_Row")

WIDTHS: Final = (128, 32, 8, 2)
"""Rows in one statement. A few fixed sizes, so that each statement is prepared a few times and no
more."""

_IN_BRACKETS = r"[^()]"
for _ in range(3):  # a named parameter within a function has three
    _IN_BRACKETS = rf"(?:[^()]|\({_IN_BRACKETS}*\))"
EXACT_FROM: Final = 4
"""After so many calls with one number of rows a statement of that width is made: to prepare one
costs as much as it saves in a few calls."""

MOST_EXACT: Final = 512
"""The widest of those: SQLite takes 32,766 values in a statement."""

_VALUES = re.compile(rf"VALUES\s*(\({_IN_BRACKETS}*\))", re.IGNORECASE)
_UPDATE = re.compile(r"UPDATE\s+(\w+)\s+SET\s+(.*)\sWHERE\s(.*)", re.IGNORECASE | re.DOTALL)
_SELECT = re.compile(r"SELECT\s+(.*?)\sFROM\s(.*)", re.IGNORECASE | re.DOTALL)
_NUMBER = re.compile(r"\?(\d+)")
SAME: Final = "/*same*/"
"""Stands before a parameter that nearly always has one value in all rows of a batch."""
ALIKE: Final = "/*alike*/"
"""Before one that often has: in batches of one kind."""
_SAME = re.compile(r"/\*(same|alike)\*/(?:\?(\d+)|%\((\w+)\)s)")
_NAMED = re.compile(r"%\((\w+)\)s")
_NAMED_OR_PERCENT = re.compile(r"%\((\w+)\)s|%%")
_COMMA = re.compile(",")
_AND = re.compile(r"\sAND\s")
_KEY = re.compile(r"\w+ = v\.p_\w+")


def split(rows: Sequence[_Row]) -> Iterator[tuple[int, Sequence[_Row]]]:
    """Cut rows into pieces of the widths, widest first; what is left over comes last, with a width
    of 1."""
    start = 0
    for width in WIDTHS:
        while len(rows) - start >= width:
            yield width, rows[start : start + width]
            start += width
    if start < len(rows):
        yield 1, rows[start:]


@lru_cache(maxsize=256)
def _calls_of(sql: str, count: int) -> list[int]:
    """How often a statement was run for so many rows, in a list of one; the least recent are
    forgotten."""
    return [0]


def split_for(sql: str, rows: Sequence[_Row]) -> Iterator[tuple[int, Sequence[_Row]]]:
    """The same, but a number of rows that comes again and again gets a statement of its own:
    workers claim and release in batches of one size, and one statement costs less than several
    narrower ones."""
    count = len(rows)
    if 2 < count <= MOST_EXACT:
        calls = _calls_of(sql, count)
        calls[0] += 1
        if calls[0] > EXACT_FROM:
            yield count, rows
            return
    yield from split(rows)


@lru_cache(maxsize=1024)
def widen(sql: str, width: int) -> str | None:
    """The statement for `width` rows, their values one after another; None if it is neither an
    INSERT of one row nor a plain UPDATE. A widened UPDATE must not name the same row twice."""
    words = sql.lstrip()[:7].upper()
    if words.startswith("INSERT"):
        return _widen_insert(sql, width)
    if words.startswith("UPDATE"):
        return _widen_update(sql, width)
    return None


@lru_cache(maxsize=256)
def list_same(sql: str) -> tuple[tuple[int, ...], ...]:
    """The places of the parameters that may have one value in all rows: of all of them, then of
    those that nearly always have. Not of any number between, or a statement would have to be
    prepared for each choice."""
    names = list_names(sql)
    marked = [
        (mark, int(number) - 1 if number else names.index(name))
        for mark, number, name in _SAME.findall(sql)
    ]
    every = sorted({place for _, place in marked})
    same = sorted({place for mark, place in marked if mark == "same"})
    choices = [every, same] if same != every else [every]
    return tuple(tuple(places) for places in choices if places)


def find_same(sql: str, columns: Sequence[Sequence[object]]) -> tuple[int, ...]:
    """The places of those that have one value in all of these rows, given column by column. A
    column's values are of one type, so that equal ones are the same."""
    for same in list_same(sql):
        once = [columns[place] for place in same]
        if len(once) < len(columns) and all(
            values.count(values[0]) == len(values) for values in once
        ):
            return same
    return ()


@lru_cache(maxsize=1024)
def widen_same(sql: str, width: int, same: tuple[int, ...]) -> str | None:
    """The statement for `width` rows which have the values at these places in common. Those come
    first, once; then the other values, row by row."""
    others = [place for place in range(_count_of(sql)) if place not in same]
    new = {str(place + 1): number for number, place in enumerate((*same, *others), 1)}
    sql = _unmark(sql).strip()
    places = {str(place + 1) for place in same}
    first = ", ".join([f"?{new[str(place + 1)]}" for place in others])
    further = ", ".join("?" * len(others))
    if updated := _UPDATE.fullmatch(sql):
        changes, guard = (
            _NUMBER.sub(
                lambda one: (
                    f"?{new[one[1]]}" if one[1] in places else f"v.column{new[one[1]] - len(same)}"
                ),
                part,
            )
            for part in updated.group(2, 3)
        )
        rows = ", ".join([f"({first})", *[f"({further})"] * (width - 1)])
        return f"UPDATE {updated[1]} SET {changes} FROM (VALUES {rows}) AS v WHERE {guard}"
    found = _VALUES.search(sql)
    if found is None or _NUMBER.search(sql[: found.start()] + sql[found.end() :]):
        return None
    group = found[1]
    own = [number for number in _NUMBER.findall(group) if number not in places]
    if own != [str(place + 1) for place in others]:
        return None
    row = _NUMBER.sub(lambda one: f"?{new[one[1]]}" if one[1] in places else "?", group)
    # The first row says the numbers: a `?` is one more than the greatest before it.
    named = _NUMBER.sub(lambda one: f"?{new[one[1]]}", group)
    return sql[: found.start(1)] + ", ".join([named, *[row] * (width - 1)]) + sql[found.end() :]


@lru_cache(maxsize=256)
def fold(sql: str) -> str:
    """The SELECT with all its rows in one, a JSON array of arrays. Reading them needs one step
    then, and not one each."""
    found = _SELECT.fullmatch(sql.strip())
    assert found is not None, sql
    columns = _split_outside(found[1], _COMMA)
    inner = ", ".join(f"{column} AS c{place}" for place, column in enumerate(columns))
    outer = ", ".join(f"c{place}" for place in range(len(columns)))
    return f"SELECT json_group_array(json_array({outer})) FROM (SELECT {inner} FROM {found[2]})"


@lru_cache(maxsize=256)
def fold_each(sql: str) -> str:
    """The SELECT with each row in one column, a JSON array: MySQL's driver reads value by value."""
    found = _SELECT.fullmatch(sql.strip())
    assert found is not None, sql
    return f"SELECT JSON_ARRAY({found[1]}) FROM {found[2]}"


def _split_outside(text: str, word: re.Pattern[str]) -> list[str]:
    """Cut a text at the words that stand in no brackets."""
    parts, depth, start = [], 0, 0
    for place, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if not depth and place >= start and (found := word.match(text, place)):
            parts.append(text[start:place].strip())
            start = found.end()
    return [*parts, text[start:].strip()]


def _widen_insert(sql: str, width: int) -> str | None:
    found = _VALUES.search(sql)
    if found is None:
        return None
    group = found[1]
    count = _count_of(group)
    if not count or _NUMBER.search(sql[: found.start()]) or _NUMBER.search(sql[found.end() :]):
        return None
    if [int(number) for number in _NUMBER.findall(group)] == list(range(1, count + 1)):
        # Without numbers where they stand in order: SQLite looks each number up among all it has
        # seen.
        rows: Iterable[str] = [_NUMBER.sub("?", group)] * width
    else:
        rows = (_shift_numbers(group, row * count) for row in range(width))
    return sql[: found.start(1)] + ", ".join(rows) + sql[found.end() :]


def _shift_numbers(group: str, by: int) -> str:
    return _NUMBER.sub(lambda match: f"?{int(match[1]) + by}", group)


def _widen_update(sql: str, width: int) -> str | None:
    found = _UPDATE.fullmatch(sql.strip())
    count = _count_of(sql)
    if found is None or not count:
        return None
    rows = ", ".join(["(" + ", ".join("?" * count) + ")"] * width)
    changes, guard = (_NUMBER.sub(r"v.column\1", part) for part in found.group(2, 3))
    # The driver counts rows only of a statement whose first word is UPDATE: a WITH in front would
    # cost the guard its answer.
    return f"UPDATE {found[1]} SET {changes} FROM (VALUES {rows}) AS v WHERE {guard}"


def _count_of(sql: str) -> int:
    return max((int(number) for number in _NUMBER.findall(sql)), default=0)


@lru_cache(maxsize=1024)
def widen_named(sql: str, width: int) -> tuple[str, tuple[str, ...]] | None:
    """The same of an UPDATE for MySQL's driver, which runs it row by row, a round trip each. Answer
    the statement and the names of one row's values in their order; None if it is not a plain
    UPDATE."""
    found = _UPDATE.fullmatch(sql.strip())
    names = tuple(dict.fromkeys(_NAMED.findall(sql)))
    if found is None or not names:
        return None
    first = "SELECT " + ", ".join(f"%s AS p_{name}" for name in names)
    others = " UNION ALL SELECT " + ", ".join(["%s"] * len(names))
    changes, guard = (_NAMED.sub(r"v.p_\1", part) for part in found.group(2, 3))
    # The given rows lead and each finds its own: led by the table, the server would lock all of it.
    return (
        f"UPDATE ({first}{others * (width - 1)}) AS v STRAIGHT_JOIN {found[1]} "
        f"SET {changes} WHERE {guard}",
        names,
    )


@lru_cache(maxsize=1024)
def widen_arrays(sql: str, types: tuple[str, ...], same: tuple[int, ...] = ()) -> str | None:
    """The same of an INSERT of one row or a plain UPDATE for PostgreSQL: each parameter is an array
    of such a type, with a value for each row, but those at the places that all rows have in common.
    `v.row_number` is a row's place, from 1 on. None if the statement is neither."""
    kinds = dict(zip(list_names(sql), types, strict=True))
    once = {name for place, name in enumerate(kinds) if place in same}
    arrays = ", ".join(f"%({name})s::{kinds[name]}[]" for name in kinds if name not in once)
    columns = ", ".join(f"p_{name}" for name in kinds if name not in once)
    rows = f"unnest({arrays}) WITH ORDINALITY AS v ({columns}, row_number)"

    def place(found: re.Match[str]) -> str:
        name = found[1]
        return f"%({name})s::{kinds[name]}" if name in once else f"v.p_{name}"

    sql = _unmark(sql)
    if updated := _UPDATE.fullmatch(sql.strip()):
        changes, guard = (_NAMED.sub(place, part) for part in updated.group(2, 3))
        return f"UPDATE {updated[1]} SET {changes} FROM {rows} WHERE {_hide_constants(guard)}"
    parts = split_insert(sql)
    if parts is None:
        return None
    before, group, after = parts
    return f"{before}SELECT {_NAMED.sub(place, group[1:-1])} FROM {rows} {after}"


def _unmark(sql: str) -> str:
    return sql.replace(SAME, "").replace(ALIKE, "")


def _hide_constants(guard: str) -> str:
    """The guard with what it says of the table alone hidden from PostgreSQL's planner: of a table
    that it has not counted it takes `state = 'ACTIVE'` to match next to nothing, and would walk an
    index of that for each row and not look its key up."""
    conditions = _split_outside(guard, _AND)
    if not any(_KEY.fullmatch(one) for one in conditions):
        return guard
    return " AND ".join(
        one if "v.p_" in one or "SELECT" in one else f"COALESCE({one}, FALSE)" for one in conditions
    )


@lru_cache(maxsize=1024)
def list_names(sql: str) -> tuple[str, ...]:
    """The names of a statement's parameters, in the order of their first use."""
    return tuple(dict.fromkeys(_NAMED.findall(sql)))


def name_row(sql: str, row: Sequence[object]) -> dict[str, object]:
    """A row's values, given in the order of the statement's parameters, by their names."""
    return dict(zip(list_names(sql), row, strict=True))


@lru_cache(maxsize=256)
def place_names(text: str) -> tuple[tuple[str, ...], str]:
    """The names of parameters as they come, and the text with a place for each of them."""
    return tuple(_NAMED.findall(text)), _NAMED.sub("%s", text)


def fill_names(text: str, texts: Mapping[str, str]) -> str:
    """The text with these in the place of its parameters."""
    return _NAMED_OR_PERCENT.sub(lambda match: texts[match[1]] if match[1] else "%", text)


@lru_cache(maxsize=256)
def split_insert(sql: str) -> tuple[str, str, str] | None:
    """What stands before VALUES in an INSERT of one row, the values in their brackets, and what
    stands behind them; None if there are parameters elsewhere."""
    found = _VALUES.search(sql)
    if found is None or not sql.lstrip()[:6].upper().startswith("INSERT"):
        return None
    before, after = sql[: found.start()], sql[found.end() :]
    return None if _NAMED.search(before + after) else (before, found[1], after)


def split_update(sql: str) -> tuple[str, str, list[str]] | None:
    """The table, the changes and the conditions of a plain UPDATE."""
    found = _UPDATE.fullmatch(sql.strip())
    return None if found is None else (found[1], found[2], _split_outside(found[3], _AND))


@lru_cache(maxsize=1024)
def number_names(sql: str) -> str:
    """The statement with `$1`, `$2` … in the place of names, as the server itself takes it."""
    names = list_names(sql)
    return _NAMED.sub(lambda match: f"${names.index(match[1]) + 1}", sql).replace("%%", "%")
