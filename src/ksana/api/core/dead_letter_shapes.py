"""Bodies, queries and answers of the endpoints of dead letters."""

from typing import Annotated

import msgspec

from ksana.api.core.routing import MAX_ID
from ksana.domain.dead_letters import MAX_ERROR, MAX_SOURCE
from ksana.service.core.letter_pages import MAX_GROUPS, MAX_PAGE

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=32)]
ErrorText = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ERROR)]
Source = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_SOURCE)]
When = Annotated[str, msgspec.Meta(max_length=64)]
Cursor = Annotated[str, msgspec.Meta(max_length=64)]
PageLimit = Annotated[int, msgspec.Meta(ge=1, le=MAX_PAGE)]
LetterId = Annotated[int, msgspec.Meta(ge=1, le=MAX_ID)]


class LettersQuery(msgspec.Struct, frozen=True):
    """Filters of a page. `error` is an error as a letter or a group shows it: letters of its group
    are meant. `source` needs `surface`."""

    surface: Name | None = None
    error: ErrorText | None = None
    source: Source | None = None
    since: When | None = msgspec.field(default=None, name="from")
    until: When | None = msgspec.field(default=None, name="to")
    limit: PageLimit = 100
    cursor: Cursor | None = None


class GroupsQuery(msgspec.Struct, frozen=True):
    """Of which surface, and how many."""

    surface: Name | None = None
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_GROUPS)] = 50
    cursor: Cursor | None = None


class SettleFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which letters: as in the list. Empty means all."""

    surface: Name | None = None
    error: ErrorText | None = None
    source: Source | None = None
    since: When | None = msgspec.field(default=None, name="from")
    until: When | None = msgspec.field(default=None, name="to")


class SettleBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Letters by id, or all that match; `dry_run` only counts them. A call takes up to `limit` of
    those that match, newest first; `cursor` goes on with the next."""

    ids: Annotated[list[LetterId], msgspec.Meta(min_length=1, max_length=MAX_PAGE)] | None = None
    filter: SettleFilter | None = None
    dry_run: bool = False
    limit: PageLimit = MAX_PAGE
    cursor: Cursor | None = None


class LetterView(msgspec.Struct, frozen=True):
    """One letter as it is answered."""

    id: int
    surface: str
    entity_type: str
    entity_id: str
    source: str
    status: str
    error: str
    group: str
    died_at: str


class AwayView(msgspec.Struct, frozen=True):
    """A surface whose letters cannot be reached at the moment, and why."""

    surface: str
    reason: str


class LetterList(msgspec.Struct, frozen=True):
    """A page, newest first. It may be short and go on all the same: `next_cursor` tells."""

    letters: list[LetterView]
    next_cursor: str | None
    unavailable: list[AwayView]


class GroupView(msgspec.Struct, frozen=True):
    """One group: the error without numbers and ids. `is_capped`: there are more than counted."""

    surface: str
    group: str
    error: str
    count: int
    is_capped: bool
    first_at: str
    last_at: str
    newest: LetterView


class GroupList(msgspec.Struct, frozen=True):
    """Groups, the largest of the page first."""

    groups: list[GroupView]
    next_cursor: str | None
    unavailable: list[AwayView]


class RefusedLetter(msgspec.Struct, frozen=True):
    """A letter that was not settled, and why. It stays, if it is there at all."""

    id: int
    code: str
    message: str


class ReplayedView(msgspec.Struct, frozen=True):
    """A letter that was replayed, and the run or job that does its work now."""

    id: int
    surface: str
    entity_id: str
    replayed_as: str


class ReplayAnswer(msgspec.Struct, frozen=True):
    """What was replayed, or how many would be."""

    dry_run: bool
    count: int
    is_capped: bool
    replayed: list[ReplayedView]
    refused: list[RefusedLetter]
    next_cursor: str | None
    unavailable: list[AwayView]


class DismissAnswer(msgspec.Struct, frozen=True):
    """How many were dismissed, or would be."""

    dry_run: bool
    count: int
    is_capped: bool
    refused: list[RefusedLetter]
    next_cursor: str | None
    unavailable: list[AwayView]
