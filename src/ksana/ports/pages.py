"""Pages of rows: bounded by rows and bytes, by the rows a search looks through, and by how deep a
page number reaches. Whatever the filters, a page costs about the same at a thousand rows and at a
million."""

from typing import Final, TypeVar

import msgspec

T = TypeVar("T")

MAX_PAGE_BYTES = 8 * 1024 * 1024
"""Bytes of the rows of one page (X13)."""

LOOK_THROUGH: Final = 5_000
"""Rows that one page looks through for those that match, where no index has the filters. A page
that stops there is short, or empty, and goes on all the same."""

LOOK_UP: Final = 2_000
"""The same where the rows do not lie side by side, and each is looked up."""

COUNT_LIMIT: Final = 10_000
"""Rows counted for a total that is not kept."""

MAX_DEPTH: Final = 10_000
"""Rows before a page asked for by its number. What lies deeper is reached by the cursor."""

Place = tuple[int, ...]
"""Where a list goes on: the sort key of the last row that was passed."""


class PageRows(list[T]):
    """Rows of one page. `is_cut`: there are more, and they were left out for their size.
    `next_place`: where to go on, if there may be more."""

    is_cut = False
    next_place: Place | None = None


class Total(msgspec.Struct, frozen=True):
    """How many rows a list has. Not exact: at least so many."""

    count: int
    is_exact: bool
