"""Events of queue jobs and leases: which there are, and how each is put together.

One function makes the events of one kind of change. They are called for every job, so the text is
written directly; what a caller chose goes through the JSON encoder.
"""

from typing import Any, Final

import msgspec

from ksana.base.instant import Micros
from ksana.domain.events import EventKind

EventText = tuple[str, str, str, str]
"""(entity_type, entity_id, event_type, data as JSON)."""

Facts = tuple[tuple[str, ...], str] | tuple[()]
"""The events of one change of a job and its lease: their types, and `[[type, data], …]` as JSON,
where a lease's event is `[type, data, "LEASE", lease_id]`. Those of a move whose instant the job's
row keeps (`changes.DATED`) lie with other jobs' and name the job too: `[type, data, "JOB", job_id]`
and `[type, data, "LEASE", lease_id, job_id]`. Empty: none."""

_ENDED_NAMES: Final = {
    "DONE": "JOB_DONE",
    "FAILED": "JOB_FAILED",
    "CANCELED": "JOB_CANCELED",
    "TIMEOUT": "JOB_TIMEOUT",
}
_ENDINGS: Final = {
    (state, reason): (f"LEASE_{reason}", name)
    for state, name in _ENDED_NAMES.items()
    for reason in ("RELEASED", "EXPIRED")
}
_ALERTING: Final = frozenset({"FAILED", "TIMEOUT"})
_SUBMITTED: Final = ("JOB_SUBMITTED",)
_STARTED: Final = ("JOB_CLAIMED", "LEASE_GRANTED", "JOB_RUNNING")
_GRANTED: Final = ("LEASE_GRANTED", "JOB_RUNNING")

_END = ("lease_id", "attempts", "reason")

KINDS: Final = (
    EventKind("JOB", "JOB_SUBMITTED", "A job was submitted.", ("priority", "cost_units")),
    EventKind("JOB", "JOB_CLAIMED", "A worker claimed the job.", ("worker_id",)),
    EventKind(
        "JOB",
        "JOB_CLAIM_EXPIRED",
        "The claim ran out before the job got a lease.",
        ("worker_id", "state"),
    ),
    EventKind("JOB", "JOB_PREPARING", "Its worker prepares the job.", ("worker_id",), ("note",)),
    EventKind(
        "JOB",
        "JOB_LEASE_PENDING",
        "The job waits for a lease; its claim is kept.",
        ("worker_id",),
        ("note",),
    ),
    EventKind(
        "JOB",
        "LEASE_DENIED",
        "A request for a lease was refused.",
        ("code", "reason", "used", "requested", "capacity", "reserved", "position"),
    ),
    EventKind(
        "LEASE",
        "LEASE_GRANTED",
        "A lease was granted.",
        ("job_id", "worker_id", "cost_units"),
    ),
    EventKind("JOB", "JOB_RUNNING", "The job runs.", ("lease_id", "attempts")),
    EventKind(
        "JOB",
        "JOB_CANCEL_REQUESTED",
        "The worker of a running job is asked to stop.",
        ("reason", "lease_id"),
    ),
    EventKind("LEASE", "LEASE_RELEASED", "The worker gave its lease back.", ("job_id", "status")),
    EventKind(
        "LEASE",
        "LEASE_EXPIRED",
        "The lease ran out.",
        ("job_id", "worker_id", "cost_units", "ttl_sec"),
    ),
    EventKind(
        "JOB",
        "JOB_REQUEUED",
        "The job is queued again.",
        ("reason", "attempts"),
        ("max_attempts", "delay_ms", "error"),
        log="warning",
    ),
    EventKind("JOB", "JOB_DONE", "The job succeeded.", _END, ("error",)),
    EventKind(
        "JOB", "JOB_FAILED", "The job failed for good.", (*_END, "alert"), ("error",), log="warning"
    ),
    EventKind(
        "JOB",
        "JOB_CANCELED",
        "The job was cancelled.",
        ("reason",),
        ("from", "lease_id", "attempts", "error"),
        log="info",
    ),
    EventKind(
        "JOB",
        "JOB_TIMEOUT",
        "The job's last lease ran out, or its worker said it took too long.",
        (*_END, "alert"),
        ("error",),
        log="warning",
    ),
    EventKind("JOB", "JOB_REPLAYED", "The job was submitted again as another.", ("as", "actor")),
    EventKind("JOB", "JOB_REPLAYS", "The job does again what another failed at.", ("of", "actor")),
    EventKind(
        "JOB", "JOB_DISMISSED", "The dead letter of the job was dismissed.", ("reason", "actor")
    ),
    EventKind(
        "LEASE",
        "CAPACITY_RECOUNTED",
        "The used units differed from the active leases and were put right.",
        ("used", "counted", "leases", "alert"),
        log="warning",
    ),
)

_REPORTED: Final = {"PREPARING": "JOB_PREPARING", "LEASE_PENDING": "JOB_LEASE_PENDING"}
"""The event of a state that a worker reports."""

_encode_json = msgspec.json.Encoder().encode


def encode(data: Any) -> str:
    """A value as JSON text."""
    return _encode_json(data).decode()


def submitted(job_id: str, priority: str, cost_units: int) -> Facts:
    return (
        _SUBMITTED,
        f'[["JOB_SUBMITTED",{{"priority":"{priority}","cost_units":{cost_units}}},'
        f'"JOB","{job_id}"]]',
    )


def claimed(worker_id: str) -> Facts:
    """The same for all jobs of a claim."""
    return ("JOB_CLAIMED",), f'[["JOB_CLAIMED",{encode({"worker_id": worker_id})}]]'


def started(lease_id: str, job_id: str, worker_json: str, cost_units: int, attempts: int) -> Facts:
    """A job that is claimed and leased in one. `worker_json` is the worker's name as JSON, made
    once for a batch."""
    return (
        _STARTED,
        f'[["JOB_CLAIMED",{{"worker_id":{worker_json}}},"JOB","{job_id}"],'
        f'["LEASE_GRANTED",{{"job_id":"{job_id}","worker_id":{worker_json},'
        f'"cost_units":{cost_units}}},"LEASE","{lease_id}","{job_id}"],'
        f'["JOB_RUNNING",{{"lease_id":"{lease_id}","attempts":{attempts}}},"JOB","{job_id}"]]',
    )


def granted(lease_id: str, job_id: str, worker_json: str, cost_units: int, attempts: int) -> Facts:
    """A lease, and the job that runs under it."""
    return (
        _GRANTED,
        f'[["LEASE_GRANTED",{{"job_id":"{job_id}","worker_id":{worker_json},'
        f'"cost_units":{cost_units}}},"LEASE","{lease_id}"],'
        f'["JOB_RUNNING",{{"lease_id":"{lease_id}","attempts":{attempts}}}]]',
    )


def claim_expired(worker_id: str | None, state: str, attempts: int) -> Facts:
    """A claim that ran out, and its job, queued again."""
    data = encode({"worker_id": worker_id, "state": state})
    return (
        ("JOB_CLAIM_EXPIRED", "JOB_REQUEUED"),
        f'[["JOB_CLAIM_EXPIRED",{data}],'
        f'["JOB_REQUEUED",{{"reason":"CLAIM_EXPIRED","attempts":{attempts}}}]]',
    )


def reported(state: str, worker_id: str | None, note: str | None) -> Facts:
    data = {"worker_id": worker_id} if note is None else {"worker_id": worker_id, "note": note}
    name = _REPORTED[state]
    return (name,), f'[["{name}",{encode(data)}]]'


def denied(data: dict[str, Any]) -> Facts:
    return ("LEASE_DENIED",), f'[["LEASE_DENIED",{encode(data)}]]'


def pending(worker_id: str | None, data: dict[str, Any]) -> Facts:
    """A job that begins to wait for a lease, and why."""
    waits = encode({"worker_id": worker_id})
    return (
        ("JOB_LEASE_PENDING", "LEASE_DENIED"),
        f'[["JOB_LEASE_PENDING",{waits}],["LEASE_DENIED",{encode(data)}]]',
    )


def cancel_requested(job_id: str, reason: str | None, lease_id: str | None) -> EventText:
    return (
        "JOB",
        job_id,
        "JOB_CANCEL_REQUESTED",
        encode({"reason": reason, "lease_id": lease_id}),
    )


def canceled(reason: str | None, state: str) -> Facts:
    """A job that did not run."""
    return ("JOB_CANCELED",), f'[["JOB_CANCELED",{encode({"reason": reason, "from": state})}]]'


def released(lease_id: str, job_id: str, status: str) -> str:
    """The first of the two events of an attempt's end."""
    data = f'{{"job_id":"{job_id}","status":"{status}"}}'
    return f'["LEASE_RELEASED",{data},"LEASE","{lease_id}","{job_id}"]'


def lease_expired(
    lease_id: str, job_id: str, worker_id: str | None, cost_units: int, ttl_sec: float
) -> str:
    """The same of a lease that ran out."""
    data = {
        "job_id": job_id,
        "worker_id": worker_id,
        "cost_units": cost_units,
        "ttl_sec": ttl_sec,
    }
    return f'["LEASE_EXPIRED",{encode(data)},"LEASE","{lease_id}","{job_id}"]'


def ended(
    of_lease: str,
    job_id: str,
    state: str,
    lease_id: str,
    attempts: int,
    reason: str,
    error: str | None,
) -> Facts:
    """A job that ended with its attempt. `reason` is how the attempt did: RELEASED or EXPIRED."""
    more = ""
    if error is not None:
        more = f',"error":{encode(error)}'
    if state in _ALERTING:
        more = f'{more},"alert":true'
    names = _ENDINGS[state, reason]
    return (
        names,
        f'[{of_lease},["{names[1]}",{{"lease_id":"{lease_id}","attempts":{attempts},'
        f'"reason":"{reason}"{more}}},"JOB","{job_id}"]]',
    )


def requeued(
    of_lease: str,
    lease_end: str,
    reason: str,
    attempts: int,
    max_attempts: int,
    delay_us: Micros,
    error: str | None,
) -> Facts:
    data: dict[str, Any] = {
        "reason": reason,
        "attempts": attempts,
        "max_attempts": max_attempts,
        "delay_ms": delay_us // 1000,
    }
    if error is not None:
        data["error"] = error
    return (
        (f"LEASE_{lease_end}", "JOB_REQUEUED"),
        f'[{of_lease},["JOB_REQUEUED",{encode(data)}]]',
    )
