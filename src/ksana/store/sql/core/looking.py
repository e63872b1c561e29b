"""Looking through rows for those that match, where no index has the filters: bounded, and no
further than a page needs."""

from collections.abc import Callable
from typing import NamedTuple

from ksana.store.sql.core.session import Row


class Looked(NamedTuple):
    """What was found, and the first row that was not looked at, if there is one."""

    found: list[Row]
    edge: Row | None


def look_through(
    find: Callable[[int], list[Row]],
    find_edge: Callable[[int], Row | None],
    wanted: int,
    most: int,
) -> Looked:
    """Find up to `wanted` rows that match among the first few, or else among the first `most`.
    `find` looks through so many rows, all of them each time; most pages are full after a few."""
    few = 2 * wanted
    for look in (few, most) if few < most else (most,):
        found = find(look)
        if len(found) >= wanted:
            return Looked(found, None)
        edge = find_edge(look)
        if edge is None:
            break
    return Looked(found, edge)
