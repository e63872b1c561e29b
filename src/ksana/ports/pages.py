"""Pages of rows, bounded by bytes as well as by rows."""

from typing import TypeVar

T = TypeVar("T")

MAX_PAGE_BYTES = 8 * 1024 * 1024
"""Bytes of the rows of one page (X13)."""


class PageRows(list[T]):
    """Rows of one page. `is_cut`: there are more, and they were left out for their size."""

    is_cut = False
