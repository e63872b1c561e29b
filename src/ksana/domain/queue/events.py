"""Events of queue jobs and leases: which there are, and how each is put together.

One function makes one kind of event, whatever way the job took to it. They are called for every
job, so the text is written directly; what a caller chose goes through the JSON encoder.
"""

from typing import Any, Final

import msgspec

from ksana.base.instant import Micros
from ksana.domain.events import EventKind

EventText = tuple[str, str, str, str]
"""(entity_type, entity_id, event_type, data as JSON)."""

_ENDED_NAMES: Final = {
    "DONE": "JOB_DONE",
    "FAILED": "JOB_FAILED",
    "CANCELED": "JOB_CANCELED",
    "TIMEOUT": "JOB_TIMEOUT",
}
_ALERTING: Final = frozenset({"FAILED", "TIMEOUT"})

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


def submitted(job_id: str, priority: str, cost_units: int) -> EventText:
    data = f'{{"priority":"{priority}","cost_units":{cost_units}}}'
    return ("JOB", job_id, "JOB_SUBMITTED", data)


def claim_data(worker_id: str) -> str:
    """The data of JOB_CLAIMED: the same for all jobs of a claim."""
    return _encode_json({"worker_id": worker_id}).decode()


def claim_expired(job_id: str, worker_id: str | None, state: str) -> EventText:
    return ("JOB", job_id, "JOB_CLAIM_EXPIRED", encode({"worker_id": worker_id, "state": state}))


def reported(job_id: str, state: str, worker_id: str | None, note: str | None) -> EventText:
    data = {"worker_id": worker_id} if note is None else {"worker_id": worker_id, "note": note}
    return ("JOB", job_id, _REPORTED[state], encode(data))


def denied(job_id: str, data: dict[str, Any]) -> EventText:
    return ("JOB", job_id, "LEASE_DENIED", encode(data))


def granted(
    lease_id: str, job_id: str, worker_json: str, cost_units: int, attempts: int
) -> tuple[EventText, EventText]:
    """A lease, and the job that runs under it. `worker_json` is the worker's name as JSON, made
    once for a batch."""
    data = f'{{"job_id":"{job_id}","worker_id":{worker_json},"cost_units":{cost_units}}}'
    return (
        ("LEASE", lease_id, "LEASE_GRANTED", data),
        ("JOB", job_id, "JOB_RUNNING", f'{{"lease_id":"{lease_id}","attempts":{attempts}}}'),
    )


def cancel_requested(job_id: str, reason: str | None, lease_id: str | None) -> EventText:
    return (
        "JOB",
        job_id,
        "JOB_CANCEL_REQUESTED",
        encode({"reason": reason, "lease_id": lease_id}),
    )


def canceled(job_id: str, reason: str | None, state: str) -> EventText:
    """A job that did not run."""
    return ("JOB", job_id, "JOB_CANCELED", encode({"reason": reason, "from": state}))


def released(lease_id: str, job_id: str, status: str) -> EventText:
    data = f'{{"job_id":"{job_id}","status":"{status}"}}'
    return ("LEASE", lease_id, "LEASE_RELEASED", data)


def lease_expired(
    lease_id: str, job_id: str, worker_id: str | None, cost_units: int, ttl_sec: float
) -> EventText:
    data = {
        "job_id": job_id,
        "worker_id": worker_id,
        "cost_units": cost_units,
        "ttl_sec": ttl_sec,
    }
    return ("LEASE", lease_id, "LEASE_EXPIRED", encode(data))


def ended(
    job_id: str, state: str, lease_id: str, attempts: int, reason: str, error: str | None
) -> EventText:
    """A job that ended with its attempt. `reason` is how the attempt did: RELEASED or EXPIRED."""
    common = f'"lease_id":"{lease_id}","attempts":{attempts},"reason":"{reason}"'
    if error is not None:
        common = f'{common},"error":{encode(error)}'
    if state in _ALERTING:
        common = f'{common},"alert":true'
    return ("JOB", job_id, _ENDED_NAMES[state], f"{{{common}}}")


def requeued(
    job_id: str, reason: str, attempts: int, max_attempts: int, delay_us: Micros, error: str | None
) -> EventText:
    data: dict[str, Any] = {
        "reason": reason,
        "attempts": attempts,
        "max_attempts": max_attempts,
        "delay_ms": delay_us // 1000,
    }
    if error is not None:
        data["error"] = error
    return ("JOB", job_id, "JOB_REQUEUED", encode(data))


def claim_requeued(job_id: str, attempts: int) -> EventText:
    """A job whose claim ran out."""
    data = f'{{"reason":"CLAIM_EXPIRED","attempts":{attempts}}}'
    return ("JOB", job_id, "JOB_REQUEUED", data)
