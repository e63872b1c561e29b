"""Many rows in one INSERT. SQLite spends more on stepping a statement than on the row it writes; the network drivers batch by
themselves."""

import re
from typing import Final

WIDTH: Final = 25
"""Rows in one statement: beyond a few dozen nothing is gained."""

_VALUES = re.compile(r"VALUES\s*(\((?:[^()]|\([^()]*\))*\))", re.IGNORECASE)
_NUMBER = re.compile(r"\?(\d+)")


def widen(sql: str) -> str | None:
    """The statement for WIDTH rows, their values one after another; None if it is not an INSERT of one row."""
    found = _VALUES.search(sql)
    if found is None or not sql.lstrip().upper().startswith("INSERT"):
        return None
    group = found[1]
    count = max((int(number) for number in _NUMBER.findall(group)), default=0)
    if not count or _NUMBER.search(sql[: found.start()]) or _NUMBER.search(sql[found.end() :]):
        return None
    rows = (_NUMBER.sub(lambda match: f"?{int(match[1]) + row * count}", group) for row in range(WIDTH))  # noqa: B023
    return sql[: found.start(1)] + ", ".join(rows) + sql[found.end() :]
