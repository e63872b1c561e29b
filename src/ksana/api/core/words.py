"""What the API's description says of members and headers: a sentence and an example each.

Every surface has a table `WORDS` in `api/<surface>/words.py`, by the name of the member; where a
name means something else in one shape, by `Shape.member`. A test fails for a member without words,
for words without a member, and for an example that its member would refuse.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

TIME: Final = "2026-02-21T00:00:00Z"
UUID: Final = "6f1c3c2e-8f0d-4b8e-9d55-0f6b1a2c3d4e"


SHAPE: Final = msgspec.UNSET
"""In place of an example, for a member that is a shape of its own: its members have theirs."""


class Word(msgspec.Struct, frozen=True):
    """The words of one member."""

    text: str
    example: Any
    format: str = ""
    """A format of its text, such as date-time."""
    schema: Mapping[str, Any] | None = None
    """What holds of a member besides what its type says."""


Words = Mapping[str, Word]


def at(text: str, example: str = TIME) -> Word:
    """The words of an instant."""
    return Word(text, example, "date-time")


ANY_JSON: Final[Mapping[str, Any]] = {"title": "Any JSON"}
"""The schema of what may be any JSON: named, so that no schema is empty by oversight."""
_FIELDS: Final[Mapping[str, Any]] = {"type": "object", "additionalProperties": True}


def anything(text: str, example: Any) -> Word:
    """The words of a member that may be any JSON."""
    return Word(text, example, schema=ANY_JSON)


def fields(text: str, example: Any) -> Word:
    """The words of an object whose members are not known beforehand."""
    return Word(text, example, schema=_FIELDS)


def find_word(words: Words, shape: str, member: str) -> Word | None:
    """The words of a member of a shape."""
    return words.get(f"{shape}.{member}") or words.get(member)


_KEY_ID: Final = "5f2b9c1d7e3a"
_KEYS: Final[Words] = {
    "keys": Word("The keys.", []),
    "scopes": Word("What the key may do: `surface:level`.", ["queue:write"]),
    "last_used_at": at("When it was last used; null if never."),
    "revoked_at": at("When it was revoked; null if it was not."),
    "KeyMade.key": Word("What callers send.", f"ksana_{_KEY_ID}_3q2-7wAAbXk"),
    "revoked": Word("True.", True),
    "allowed": Word("The scopes that the caller has, spelled out.", ["queue:read"]),
    "Caller.id": Word("The id of the caller's key.", _KEY_ID),
    "Caller.name": Word("The name of the caller's key.", "ops"),
    "settings": Word("The settings.", []),
    "SettingShown.name": Word("The setting's name.", "server.port"),
    "SettingShown.value": Word("Its value; secrets read `***`.", "7100"),
    "origin": Word("Where the value came from.", "default"),
    **{
        f"{shape}.{name}": word
        for shape in ("KeyShown", "KeyMade", "NewKey")
        for name, word in (
            ("id", Word("The key's id.", _KEY_ID)),
            ("name", Word("What the key is called.", "ops")),
            ("created_at", at("When it was made.")),
        )
    },
    "path.id": Word("The key's id.", _KEY_ID),
}

CORE_WORDS: Final[Words] = {
    **_KEYS,
    "Error.code": Word("What went wrong, for programs.", "NOT_FOUND"),
    "Error.message": Word("What went wrong and what is allowed, for people.", "there is no task 7"),
    "Error.detail": Word("The same as `message`.", "there is no task 7"),
    "Error.request_id": Word("The id of the request, as in its `X-Request-Id`.", "a1b2c3"),
    "Error.field": Word("The member at fault, with a 400.", "schedule.every"),
    "Error.current": fields("The state that stood in the way, with a 409.", {"state": "DONE"}),
    "Alive.status": Word("`ok`.", "ok"),
    "Ready.status": Word("`ready` or `not ready`.", "ready"),
    "checks": Word("Each check by name, in words.", {"store": "ok"}),
    "problems": Word("What is wrong, in words; empty when ready.", []),
    "Version.store": Word("The kind of store.", "sqlite"),
    "version": Word("The version of the program.", "1.0.0"),
    "python": Word("The version of Python.", "3.12.4"),
    "tzdata": Word("The edition of the time zone rules in use.", "2026a"),
    "now": at("The time of this answer."),
    "Stats.store": Word("How the store fares.", SHAPE),
    "kind": Word("The kind of store.", "postgresql"),
    "ok": Word("Whether the store answers.", True),
    "StoreStats.reason": Word("Why not.", None),
    "commits": Word("Commits since the start.", 1200),
    "transactions": Word("Transaction functions committed since the start.", 4800),
    "retries": Word("Transactions run again since the start.", 0),
    "entity_type": Word("What the event is about: TASK, RUN, JOB, LEASE and others.", "RUN"),
    "entity_id": Word("Its id.", "42"),
    "type": Word("The kind of event.", "RUN_FAILED"),
    "after": Word("Only events with a greater id.", 1000),
    "before": Word("Only events with a lesser id; with `order=desc`.", 2000),
    "from": at("From this time on."),
    "to": at("Before this time."),
    "order": Word("`asc`: oldest first. `desc`: newest first.", "desc"),
    "limit": Word("How many at most.", 50),
    "events": Word("The events.", []),
    "next_after": Word("Send it as `after` to go on.", 1017),
    "next_before": Word("Send it as `before` to page back; null at the end.", 980),
    "EventView.id": Word("The event's id; ids grow.", 1017),
    "ts": at("When it happened, by the store's clock."),
    "data": fields("What is known of it; the members depend on the type.", {"task_id": 7}),
    "level": Word("The least level that is written.", "info"),
    "access": Word("Whether each request is a line.", False),
    "surface": Word("The surface: tasks, queue, governance or nodes.", "queue"),
    "error": Word("The error, or a part of it.", "HTTP 500"),
    "source": Word("What it came from: a task, an addon, an object type.", "task:7"),
    "cursor": Word("A `next_cursor`, to go on.", "eyJhIjoxfQ"),
    "next_cursor": Word("Send it as `cursor` to go on; null at the end.", "eyJhIjoxfQ"),
    "letters": Word("The dead letters, newest first.", []),
    "unavailable": Word("Surfaces whose dead letters cannot be reached now.", []),
    "AwayView.reason": Word("Why not.", "Redis does not answer"),
    "LetterView.id": Word("The dead letter's id.", 17),
    "LetterView.status": Word("How it ended.", "FAILED"),
    "group": Word("Letters of one group failed alike.", "HTTP 500"),
    "died_at": at("When it failed for good."),
    "groups": Word("The groups, the largest first.", []),
    "count": Word("How many.", 3),
    "is_capped": Word("Whether there are more than were counted.", False),
    "first_at": at("When the first of them died."),
    "last_at": at("When the last of them died."),
    "newest": Word("The newest of them.", SHAPE),
    "ids": Word("The dead letters by id.", [17]),
    "filter": Word("All that match, in place of `ids`.", {"surface": "queue"}),
    "dry_run": Word("Only count; change nothing.", True),
    "replayed": Word("What was made of them.", []),
    "refused": Word("Those that could not be settled, and why.", []),
    "replayed_as": Word("The id of what was made of it.", "43"),
    "ReplayedView.id": Word("The dead letter's id.", 17),
    "RefusedLetter.id": Word("The dead letter's id.", 17),
    "RefusedLetter.code": Word("Why not, for programs.", "NOT_FOUND"),
    "RefusedLetter.message": Word("Why not, in words.", "there is no dead letter 17"),
    "ReasonView.code": Word("The reason, for programs.", "NOT_DUE"),
    "ReasonView.message": Word("The reason in words.", "it is due in 5m"),
    "ReasonView.data": Word("What it rests on.", {"at": TIME}),
    "event_id": Word("The event in which it was recorded; null if in none.", 1017),
}

REQUEST_HEADERS: Final[Words] = {
    "Idempotency-Key": Word(
        "A repeat with the same key and body within 24 h gets the first answer again, and makes "
        "nothing new.",
        "order-4711",
        schema={"type": "string", "minLength": 1, "maxLength": 255},
    ),
    "If-Match": Word(
        "Change only this version; another is a 409.",
        '"3"',
        schema={"type": "string"},
    ),
    "Last-Event-ID": Word(
        "Go on after this event; browsers send it when they connect again.",
        "1017",
        schema={"type": "string"},
    ),
}

ANSWER_HEADERS: Final[Words] = {
    "X-Request-Id": Word(
        "The id of the request: yours if you sent one, else ours.",
        "a1b2c3",
        schema={"type": "string"},
    ),
    "Retry-After": Word("Seconds to wait before asking again.", 5, schema={"type": "integer"}),
    "Idempotency-Replayed": Word(
        "`true` where this is the first answer again.",
        "true",
        schema={"type": "string", "enum": ["true"]},
    ),
    "X-Next-Cursor": Word(
        "Send it as `cursor` to go on; absent at the end.", "42", schema={"type": "string"}
    ),
    "ETag": Word("The version, for `If-Match`.", '"3"', schema={"type": "string"}),
    "Location": Word("Where it is found.", "/api/v1/node-jobs/…", schema={"type": "string"}),
    "Allow": Word("The methods that are possible.", "GET, HEAD", schema={"type": "string"}),
    "WWW-Authenticate": Word(
        "How to present a key.", 'Bearer realm="ksana"', schema={"type": "string"}
    ),
}
