"""How old rows are found where some among them must stay: a walk over an index, continued where it
stopped, so that a pile of rows that stay is not looked through again and again."""

import msgspec

WalkPlace = tuple[int, int]
"""Where a walk stopped: what the rows are ordered by, and the row's number."""

START: WalkPlace = (0, 0)


class OldRows(msgspec.Struct, frozen=True):
    """What one stretch of a walk found."""

    keys: list[int]
    """Rows that may go."""
    after: WalkPlace
    """Where to go on."""
    is_end: bool
    """Whether nothing old comes after."""
