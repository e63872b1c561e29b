"""JSON of the Queue surface: encoding, decoding, the bodies around the shapes, and the refusal
hidden in a batch item."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from ksana.base.clock import SystemClock
from ksana.base.ids import new_ordered_uuid, new_ordered_uuids
from ksana.base.instant import format_instant, to_instant
from ksana.client import shapes
from ksana.client.errors import ApiError, ClientError, TransportError, from_body

T = TypeVar("T")


class ClaimAnswer(shapes.Answer, frozen=True, kw_only=True, gc=False):
    job: shapes.Job | None = None
    claim_token: str | None = None
    jobs: list[shapes.Job] | None = None


class JobAnswer(shapes.Answer, frozen=True, kw_only=True, gc=False):
    job: shapes.Job


class JobsAnswer(shapes.Answer, frozen=True, kw_only=True, gc=False):
    jobs: list[shapes.Job]


class LeaseAnswer(shapes.Answer, frozen=True, kw_only=True, gc=False):
    lease: shapes.Lease


class EventsAnswer(shapes.Answer, frozen=True, kw_only=True, gc=False):
    events: list[shapes.Event]


class BatchAnswer(shapes.Answer, frozen=True, kw_only=True, gc=False):
    results: list[msgspec.Raw]


class ItemAnswer(shapes.Answer, frozen=True, kw_only=True, gc=False):
    """What tells a refusal from a success, whatever else an item carries."""

    code: str | None = None
    error: Any = None


class BriefAnswer(shapes.Answer, frozen=True, kw_only=True, gc=False):
    results: list[ItemAnswer]


class ExchangeAnswer(shapes.Answer, frozen=True, kw_only=True, gc=False):
    results: list[msgspec.Raw]
    next: ClaimAnswer | None = None


encode = msgspec.json.Encoder().encode
_clock = SystemClock()
_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}


def decode(body: bytes | msgspec.Raw, kind: type[T]) -> T:
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.json.Decoder(kind)
    try:
        found: T = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # The server acted and said so; what it said we cannot read.
        raise TransportError(
            f"the answer is not what the API promises: {error}", is_outcome_unknown=True
        ) from error
    return found


def is_outcome_unknown(error: ClientError) -> bool:
    """Tell whether the server may have acted on the call that failed so."""
    if isinstance(error, TransportError):
        return error.is_outcome_unknown
    return bool(error.unknown_tries) or (
        isinstance(error, ApiError) and error.status >= 500 and error.status != 503
    )


def refusal_in(item: dict[str, Any]) -> ApiError | None:
    """The error of a batch item: its body stands in the item itself or under `error`."""
    for members in (item, item.get("error")):
        if isinstance(members, dict) and isinstance(members.get("code"), str):
            return from_body(None, members)
    return None


def refusals_in(results: Sequence[msgspec.Raw]) -> list[ApiError | None]:
    """What was refused of a batch, in order."""
    items = [decode(raw, ItemAnswer) for raw in results]
    if all(item.code is None and not isinstance(item.error, dict) for item in items):
        return [None] * len(items)
    return [refusal_in(decode(raw, dict[str, Any])) for raw in results]


def claim_filters(
    accept_job_types: Sequence[str] | None,
    max_cost_units: int | None,
    capabilities: Mapping[str, bool] | None,
) -> dict[str, Any]:
    """Which jobs a claim takes."""
    members = {
        "accept_job_types": None if accept_job_types is None else list(accept_job_types),
        "max_cost_units": max_cost_units,
        "constraints_capabilities": dict(capabilities) if capabilities else None,
    }
    return without_none(members)


def check_size(items: Sequence[Any], most: int) -> None:
    if not 1 <= len(items) <= most:
        raise ValueError(f"a batch has 1 to {most} items, not {len(items)}")


def check_count(found: Sequence[Any], items: Sequence[Any]) -> None:
    if len(found) != len(items):
        raise TransportError(
            f"{len(found)} results for {len(items)} items", is_outcome_unknown=True
        )


def new_request_id() -> str:
    """A fresh id, which sorts by time like the others."""
    return new_ordered_uuid(_clock.now())


def new_request_ids(count: int) -> list[str]:
    """Fresh ids that sort by time: the server's index of them then grows at one end."""
    return new_ordered_uuids(_clock.now(), count)


def with_request_ids(jobs: Sequence[shapes.NewJob]) -> list[shapes.NewJob]:
    """The jobs, those without a request id under a fresh one."""
    replace, unset = msgspec.structs.replace, msgspec.UNSET
    return [
        replace(job, client_request_id=request_id) if job.client_request_id is unset else job
        for job, request_id in zip(jobs, new_request_ids(len(jobs)), strict=True)
    ]


def without_none(members: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in members.items() if value is not None}


def path_part(identifier: str) -> str:
    return quote(identifier, safe="")


def query_string(members: dict[str, Any]) -> str:
    kept = without_none(members)
    return f"?{urlencode(kept)}" if kept else ""


def to_rfc3339(moment: datetime | None) -> str | None:
    return format_instant(to_instant(moment)) if moment is not None else None
