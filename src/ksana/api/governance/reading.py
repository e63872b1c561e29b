"""How the endpoints of governance read bodies, queries and paths."""

import re
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ksana.api.core.reading import find_instant, read_span
from ksana.api.core.routing import Call
from ksana.api.governance.shapes import AckBody, ObjectBody
from ksana.base.errors import InvalidError
from ksana.base.ids import read_token
from ksana.base.instant import Instant
from ksana.domain.governance.audit import place_of
from ksana.domain.governance.jobs import Ack, digest_of
from ksana.domain.governance.objects import NO_FIELDS, ObjectFields
from ksana.domain.governance.records import GATES, MAX_OBJECT_ID, OBJECT_TYPES, Who
from ksana.ports.governance.tables import AuditPlace
from ksana.service.governance.portions import AuditCursor

_JOB_ID: Final = re.compile(r"job_[0-9A-Za-z_-]{1,60}\Z", re.ASCII)
_VERIFY_CURSOR: Final = re.compile(
    r"[0-9]{1,18}\.(-1|[0-9]{1,5})\.[0-9]{1,13}\.[0-9a-f]{64}"
    r"(~(-1|[0-9]{1,5})\.[0-9]{1,13}\.[0-9a-f]{64}){0,64}\Z"
)
_MAX_NAME: Final = 128
ANONYMOUS: Final = "anonymous"
_SAME: Final = (
    "status",
    "epistemic_state",
    "unknown_type",
    "risk_tier",
    "impact_tier",
    "auto_verify_budget",
    "verify_count",
    "next_action",
    "weight",
    "reinforcement_count",
)

_encode = msgspec.json.Encoder().encode


def read_who(call: Call, worker_id: str | None = None) -> Who:
    """Who acts: the key's name and the worker's, as far as they are known."""
    names = [call.principal.name] if call.principal is not None else []
    if worker_id is not None:
        names.append(worker_id)
    trace = call.trace
    return Who(
        actor=":".join(names)[:_MAX_NAME] or ANONYMOUS,
        correlation_id=call.request_id[:_MAX_NAME],
        decision_trace_id=None if trace is None else trace.trace_id,
    )


def read_fields(body: ObjectBody, at: str = "") -> ObjectFields:
    """Members of an object. `at` is where they stand in the body."""
    given: dict[str, Any] = {
        name: value for name in _SAME if (value := getattr(body, name)) is not UNSET
    }
    for name in ("review_due_at", "expires_at", "next_action_at", "last_reinforced_at"):
        text = getattr(body, name)
        if text is not UNSET:
            given[name] = find_instant(f"{at}{name}", text)
    for name in ("uncertainty_ttl", "half_life"):
        value = getattr(body, name)
        if value is not UNSET:
            given[f"{name}_us"] = None if value is None else read_span(f"{at}{name}", value)
    if not isinstance(body.evidence_refs, UnsetType):
        given["evidence_refs"] = (
            None if body.evidence_refs is None else _encode(body.evidence_refs).decode()
        )
    if not isinstance(body.data, UnsetType):
        given["data"] = _read_data(body.data, f"{at}data")
    return ObjectFields(**given)


def _read_data(raw: Raw, field: str) -> str | None:
    text = bytes(raw).decode()
    if text == "null":
        return None
    if not text.startswith("{"):
        raise InvalidError(f"{field!r}: an object is expected", field=field)
    return text


def read_ack(job_id: str, body: AckBody, at: str = "") -> Ack:
    """A worker's ack."""
    next_at: Instant | UnsetType | None = UNSET
    if not isinstance(body.next_action_at, UnsetType):
        next_at = find_instant(f"{at}next_action_at", body.next_action_at)
    fields = NO_FIELDS if body.object is None else read_fields(body.object, f"{at}object.")
    refs = None if body.evidence_refs is None else _encode(body.evidence_refs).decode()
    return Ack(
        job_id=job_id,
        token=None if body.lease_token is None else read_token(body.lease_token),
        audit_event_id=body.audit_event_id,
        next_action_at=next_at,
        next_action=body.next_action,
        evidence_refs=refs,
        fields=fields,
        digest=digest_of(
            body.lease_token,
            body.audit_event_id,
            next_at,
            body.next_action,
            refs,
            "" if body.object is None else fields,
        ),
    )


def read_cursor(text: str | None) -> int | None:
    """A place in a list of jobs."""
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    raise _bad_cursor()


def read_object_cursor(text: str | None) -> str:
    """A place in the list of objects: the last one's key, `<type>:<id>`."""
    if text is None:
        return ""
    object_type, _, object_id = text.partition(":")
    if object_type in OBJECT_TYPES and object_id.isprintable() and len(object_id) <= MAX_OBJECT_ID:
        return text
    raise _bad_cursor()


def read_audit_cursor(text: str | None) -> AuditPlace | None:
    """A place in the list of audit entries: `<microseconds>.<entry id>`."""
    if text is None:
        return None
    at, _, entry = text.partition(".")
    place = place_of(entry)
    if place is None or not (at.isascii() and at.isdigit() and len(at) <= 18):
        raise _bad_cursor()
    return int(at), place[0], place[1]


def read_verify_cursor(text: str | None) -> AuditCursor | None:
    """Where a verification goes on: `<mark>.<chain>.<place>.<hash>`, then `~<chain>.<place>.<hash>`
    for each chain of which removed entries are known."""
    if text is None:
        return None
    if not _VERIFY_CURSOR.match(text):
        raise _bad_cursor()
    mark, _, rest = text.partition(".")
    at, *purged = (
        (int(chain), int(seq), digest)
        for chain, seq, digest in (part.split(".") for part in rest.split("~"))
    )
    return AuditCursor(int(mark), *at, {chain: (seq, digest) for chain, seq, digest in purged})


def show_verify_cursor(cursor: AuditCursor) -> str:
    """The same as text."""
    places = [(cursor.chain, (cursor.seq, cursor.hash)), *cursor.purged.items()]
    return f"{cursor.mark}." + "~".join(
        f"{chain}.{seq}.{digest}" for chain, (seq, digest) in places
    )


def _bad_cursor() -> InvalidError:
    return InvalidError(
        "'cursor' is not one of ours: send back a next_cursor as it came", field="cursor"
    )


def to_job_id(text: str) -> str:
    """A job's id in a path."""
    if _JOB_ID.match(text):
        return text
    raise ValueError(f"{text[:64]!r} is not an id: a governance job's begins with job_")


def to_entry_id(text: str) -> str:
    """An audit entry's id in a path."""
    if place_of(text) is not None:
        return text
    raise ValueError(f"{text[:64]!r} is not an id: an audit entry's is aud_ and 16 hex digits")


def to_object_type(text: str) -> str:
    """An object type in a path."""
    if text in OBJECT_TYPES:
        return text
    raise ValueError(f"{text[:64]!r} is no object type; allowed: {', '.join(OBJECT_TYPES)}")


def to_object_id(text: str) -> str:
    """An object's id in a path."""
    if 1 <= len(text) <= MAX_OBJECT_ID and text.isprintable():
        return text
    raise ValueError(f"an object's id has 1 to {MAX_OBJECT_ID} printable characters")


def to_gate(text: str) -> str:
    """A gate in a path."""
    if text in GATES:
        return text
    raise ValueError(f"{text[:64]!r} is no gate; allowed: {', '.join(GATES)}")
