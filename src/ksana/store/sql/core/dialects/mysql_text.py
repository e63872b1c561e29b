"""Statements for many rows as the server takes them: complete, with their values as literals. The
driver would look at each value of each row by itself."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from ksana.store.sql.core import bulk

Row = tuple[Any, ...]
"""A row's values, in the order of the statement's parameters."""

_ESCAPES: Final = (("\\", "\\\\"), ("'", "\\'"), ("\0", "\\0"), ("\x1a", "\\Z"))
"""What a text in single quotes must not have as it is, the backslash first. Each is looked for in
the whole text at once: the driver looks at sign after sign, which takes seconds for some megabytes
of quotes."""


class Change(msgspec.Struct, frozen=True):
    """A guarded UPDATE of one row, found by a key."""

    table: str
    sets: str
    conditions: tuple[str, ...]
    """All but the key's."""
    key: str
    key_name: str
    """The parameter that the key is compared with."""


@lru_cache(maxsize=256)
def read_change(sql: str) -> Change | None:
    """The parts of an UPDATE; None if it is not a plain one by a key that stays as it is."""
    parts = bulk.split_update(sql)
    if parts is None:
        return None
    table, sets, conditions = parts
    for place, one in enumerate(conditions):
        found = re.fullmatch(r"(\w+) = %\((\w+)\)s", one)
        if found is not None and not re.search(rf"(?<![\w.]){found[1]} = ", sets):
            others = (*conditions[:place], *conditions[place + 1 :])
            return Change(table, sets, others, found[1], found[2])
    return None


def write_change(connection: Any, sql: str, change: Change, rows: Sequence[Row]) -> str | None:
    """One UPDATE of all rows: each finds its values by the place of its key in a list. A join with
    the rows would cost the server twice as much: it notes what a join matched, and then changes it.
    None if a key comes twice. What a guard says of the table alone is hidden, so that nothing but
    the key can lead to a row, and no other is locked."""
    names, columns = bulk.list_names(sql), list(zip(*rows, strict=True))
    given = columns[names.index(change.key_name)]
    if len(set(given)) < len(given):
        return None
    keys = ",".join(write_literals(connection, given))
    place = f"FIELD({change.key},{keys})"
    texts = {
        name: _pick(connection, place, values)
        for name, values in zip(names, columns, strict=True)
        if name != change.key_name
    }
    texts[change.key_name] = change.key
    sets = bulk.fill_names(change.sets, texts)
    guard = "".join(
        f" AND COALESCE({bulk.fill_names(one, texts)}, FALSE)" for one in change.conditions
    )
    return (
        f"UPDATE {change.table} FORCE INDEX (PRIMARY) SET {sets} "
        f"WHERE {change.key} IN ({keys}){guard}"
    )


def _pick(connection: Any, place: str, values: Sequence[Any]) -> str:
    """A row's own of these values; if all have the same, that one."""
    first = values[0]
    if values.count(first) == len(values) and len(set(map(type, values))) == 1:
        return write_literals(connection, values[:1])[0]
    picked = f"ELT({place},{','.join(write_literals(connection, values))})"
    kinds = set(map(type, values)) - {type(None)}
    if kinds <= {int, bool}:  # it is a text, and would be added as a float of 53 bits
        return f"CAST({picked} AS SIGNED)"
    return f"({picked} + 0e0)" if kinds <= {int, float} else picked


def write_insert(connection: Any, sql: str, rows: Sequence[Row]) -> str | None:
    """One INSERT of all rows; None if the statement is no INSERT of one row."""
    parts = bulk.split_insert(sql)
    if parts is None:
        return None
    before, values, after = parts
    names, form = bulk.place_names(values)
    places = bulk.list_names(sql)
    columns = [write_literals(connection, column) for column in zip(*rows, strict=True)]
    in_order = [columns[places.index(name)] for name in names]
    texts = ",".join([form % one for one in zip(*in_order, strict=True)])
    return f"{before % ()}VALUES {texts}{after % ()}"


def bind(connection: Any, sql: str, values: Any) -> str:
    """The statement with its values in it, given by name or in their order; a list stands in
    brackets."""
    if values is None:
        return sql
    if isinstance(values, Mapping):
        names, sql = bulk.place_names(sql)
        values = [values[name] for name in names]
    return sql % tuple([_write_value(connection, value) for value in values])


def _write_value(connection: Any, value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"({','.join(write_literals(connection, value))})"
    return _write_literal(connection, value)


def write_literals(connection: Any, values: Sequence[Any]) -> list[str]:
    """Values as they stand in a statement."""
    kinds = set(map(type, values))
    if kinds == {int}:
        return list(map(str, values))
    if kinds == {str}:
        joined = "".join(values)
        if not any(sign in joined for sign, _ in _ESCAPES):
            return [f"'{value}'" for value in values]
    return [_write_literal(connection, value) for value in values]


def _write_literal(connection: Any, value: Any) -> str:
    if type(value) is int:
        return str(value)
    if value is None:
        return "NULL"
    if type(value) is not str:
        return str(connection.escape(value))
    for sign, written in _ESCAPES:
        if sign in value:
            value = value.replace(sign, written)
    return f"'{value}'"
