"""Dead letters of every surface over HTTP: list, groups, replay, dismiss (B12). A key sees and
settles those of the surfaces it may read and write."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from ksana.api.core.dead_letter_shapes import (
    AwayView,
    DismissAnswer,
    GroupList,
    GroupsQuery,
    GroupView,
    LetterList,
    LettersQuery,
    LetterView,
    RefusedLetter,
    ReplayAnswer,
    ReplayedView,
    SettleBody,
    SettleFilter,
)
from ksana.api.core.reading import find_instant
from ksana.api.core.routing import AnyRoute, Call, Route
from ksana.base.errors import ForbiddenError, InvalidError
from ksana.base.instant import format_instant
from ksana.domain.dead_letters import (
    LetterFilter,
    LetterGroup,
    LetterPlace,
    LetterRecord,
    group_key,
    group_text,
)
from ksana.service.core.dead_letters import DeadLetterService, Operator, SettledLetter
from ksana.service.core.letter_pages import COUNT_TO

PATH: Final = "/api/v1/dead-letters"
_TAGS: Final = ("dead letters",)
_MAX_ACTOR: Final = 128


class _Settled(msgspec.Struct, frozen=True):
    """What came of a call that settles letters."""

    count: int
    is_capped: bool
    done: list[SettledLetter]
    next_cursor: str | None
    away: dict[str, str] = {}


class LetterEndpoints:
    """The handlers."""

    def __init__(self, service: DeadLetterService) -> None:
        self._service = service

    async def list(self, call: Call) -> LetterList:
        """One page."""
        query: LettersQuery = call.query
        page = await self._service.list_letters(
            self._surfaces(call, query, "read"),
            _read_filter(query),
            _read_cursor(query.cursor),
            query.limit,
        )
        letters = [self._show(letter) for letter in page.letters]
        return LetterList(letters, _show_place(page.next_place), _show_away(page.away))

    async def list_groups(self, call: Call) -> GroupList:
        """Groups of errors."""
        query: GroupsQuery = call.query
        page = await self._service.list_groups(
            self._surfaces(call, query, "read"), _read_group_cursor(query.cursor), query.limit
        )
        last = page.next_group
        return GroupList(
            [self._show_group(group) for group in page.groups],
            None if last is None else f"{last[0]}.{last[1]}",
            _show_away(page.away),
        )

    async def replay(self, call: Call, body: SettleBody) -> ReplayAnswer:
        """Replay letters, or count them."""
        found = await self._settle(call, body, replays=True)
        replayed = [
            ReplayedView(
                id=one.letter_id,
                surface=one.letter.surface,
                entity_id=one.letter.entity_id,
                replayed_as=one.replayed_as or "",
            )
            for one in found.done
            if one.letter is not None and one.error is None
        ]
        return ReplayAnswer(
            dry_run=body.dry_run,
            count=found.count,
            is_capped=found.is_capped,
            replayed=replayed,
            refused=_show_refused(found.done),
            next_cursor=found.next_cursor,
            unavailable=_show_away(found.away),
        )

    async def dismiss(self, call: Call, body: SettleBody) -> DismissAnswer:
        """Dismiss letters, or count them."""
        found = await self._settle(call, body, replays=False)
        return DismissAnswer(
            dry_run=body.dry_run,
            count=found.count,
            is_capped=found.is_capped,
            refused=_show_refused(found.done),
            next_cursor=found.next_cursor,
            unavailable=_show_away(found.away),
        )

    async def _settle(self, call: Call, body: SettleBody, *, replays: bool) -> _Settled:
        if (body.ids is None) == (body.filter is None):
            raise InvalidError(
                "send 'ids' or 'filter', one of them; an empty filter means all", field="filter"
            )
        service, who = self._service, _read_operator(call)
        wanted = SettleFilter() if body.filter is None else body.filter
        surfaces = self._surfaces(call, wanted, "write", "filter.")
        if body.ids is not None:
            if body.dry_run:
                found = await service.find_letters(surfaces, body.ids)
                return _Settled(len(found), False, [], None)
            done = await service.settle_some(surfaces, body.ids, who, replays=replays)
            return _Settled(_count_done(done), False, done, None)
        letters = _read_filter(wanted, "filter.")
        if body.dry_run:
            counted = await service.count(surfaces, letters)
            return _Settled(counted.count, counted.is_capped, [], None, counted.away)
        page = await service.settle_matching(
            surfaces, letters, _read_cursor(body.cursor), body.limit, who, replays=replays
        )
        next_cursor = _show_place(page.next_place)
        return _Settled(_count_done(page.settled), False, page.settled, next_cursor, page.away)

    def _surfaces(
        self,
        call: Call,
        wanted: LettersQuery | GroupsQuery | SettleFilter,
        level: str,
        at: str = "",
    ) -> Sequence[str]:
        """The surfaces that are meant and that the caller may see or change."""
        names = self._service.list_surfaces()
        if wanted.surface is not None and wanted.surface not in names:
            raise InvalidError(
                f"{wanted.surface!r} has no dead letters; allowed: {', '.join(names)}",
                field=f"{at}surface",
            )
        who = call.principal
        if wanted.surface is None:
            return [name for name in names if who is None or who.may(self._scope(name, level))]
        scope = self._scope(wanted.surface, level)
        if who is not None and not who.may(scope):
            raise ForbiddenError(f"this key lacks the scope {scope}", scope=scope)
        return [wanted.surface]

    def _scope(self, surface: str, level: str) -> str:
        outside = self._service.outside.get(surface)
        if level == "write" and outside is not None:
            level = outside.settle_level
        return f"{surface}:{level}"

    def _show(self, letter: LetterRecord) -> LetterView:
        return LetterView(
            id=letter.id,
            surface=letter.surface,
            entity_type=self._service.get_section(letter.surface).entity_type,
            entity_id=letter.entity_id,
            source=letter.source,
            status=letter.status,
            error=letter.error,
            group=_show_group_key(letter.error_key),
            died_at=format_instant(letter.died_at),
        )

    def _show_group(self, group: LetterGroup) -> GroupView:
        return GroupView(
            surface=group.surface,
            group=_show_group_key(group.error_key),
            error=group_text(group.newest.error),
            count=group.count,
            is_capped=group.count >= COUNT_TO,
            first_at=format_instant(group.oldest_at),
            last_at=format_instant(group.newest.died_at),
            newest=self._show(group.newest),
        )


def routes(service: DeadLetterService) -> list[AnyRoute]:
    """List, groups, replay, dismiss."""
    endpoints = LetterEndpoints(service)

    def route(method: str, path: str, handler: Any, summary: str, **more: Any) -> Route:
        scope = "any:read" if method == "GET" else "any:write"
        return Route(method, PATH + path, handler, scope=scope, summary=summary, tags=_TAGS, **more)

    return [
        route(
            "GET",
            "",
            endpoints.list,
            "List dead letters of all surfaces, newest first",
            query=LettersQuery,
            answers={200: LetterList},
        ),
        route(
            "GET",
            "/groups",
            endpoints.list_groups,
            "Dead letters grouped by error",
            query=GroupsQuery,
            answers={200: GroupList},
        ),
        route(
            "POST",
            "/replay",
            endpoints.replay,
            "Replay dead letters, by id or all that match",
            body=SettleBody,
            answers={200: ReplayAnswer},
        ),
        route(
            "POST",
            "/dismiss",
            endpoints.dismiss,
            "Dismiss dead letters, by id or all that match",
            body=SettleBody,
            answers={200: DismissAnswer},
        ),
    ]


def _read_filter(wanted: LettersQuery | SettleFilter, at: str = "") -> LetterFilter:
    if wanted.source is not None and wanted.surface is None:
        raise InvalidError(
            "'source' needs 'surface': it is another thing on each", field=f"{at}source"
        )
    return LetterFilter(
        error_key=None if wanted.error is None else group_key(wanted.error),
        source=wanted.source,
        since=find_instant(f"{at}from", wanted.since),
        until=find_instant(f"{at}to", wanted.until),
    )


def _read_cursor(text: str | None) -> LetterPlace | None:
    """A place in the list: `<microseconds>.<id>`."""
    if text is None:
        return None
    parts = text.split(".")
    if len(parts) != 2 or not all(_is_number(part) for part in parts):
        raise _bad_cursor()
    return int(parts[0]), int(parts[1])


def _read_group_cursor(text: str | None) -> tuple[str, int] | None:
    if text is None:
        return None
    surface, _, key = text.partition(".")
    if not _is_number(key):
        raise _bad_cursor()
    return surface, int(key)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and int(text) < 2**63


def _bad_cursor() -> InvalidError:
    return InvalidError(
        "'cursor' is not one of ours: send back a next_cursor as it came", field="cursor"
    )


def _read_operator(call: Call) -> Operator:
    trace = call.trace
    return Operator(
        actor="anonymous" if call.principal is None else call.principal.name[:_MAX_ACTOR],
        request_id=call.request_id[:_MAX_ACTOR],
        trace_id=None if trace is None else trace.trace_id,
    )


def _show_place(place: LetterPlace | None) -> str | None:
    return None if place is None else f"{place[0]}.{place[1]}"


def _show_group_key(key: int) -> str:
    return f"{key:016x}"


def _show_away(away: dict[str, str]) -> list[AwayView]:
    return [AwayView(surface, reason) for surface, reason in sorted(away.items())]


def _count_done(settled: Sequence[SettledLetter]) -> int:
    return sum(one.error is None for one in settled)


def _show_refused(settled: Sequence[SettledLetter]) -> list[RefusedLetter]:
    return [
        RefusedLetter(one.letter_id, one.error.code, str(one.error))
        for one in settled
        if one.error is not None
    ]
