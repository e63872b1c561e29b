"""The events of governance: jobs, objects, gates."""

from typing import Final

from ksana.domain.events import EventKind

_ATTEMPT: Final = ("reason", "attempt")

KINDS: Final = (
    EventKind(
        "GOV_JOB",
        "GOV_JOB_ENQUEUED",
        "A job was put in the queue, by a caller or as an object's follow-up.",
        ("reason", "object_type", "object_id", "action", "run_at", "priority"),
    ),
    EventKind(
        "GOV_JOB",
        "GOV_JOB_PULLED",
        "A worker got the job.",
        (*_ATTEMPT, "worker_id", "lease_expires_at"),
        ("verify_count", "budget_left"),
    ),
    EventKind(
        "GOV_JOB",
        "GOV_JOB_DEFERRED",
        "The job was due, and a gate was closed for its object.",
        ("reason", "gate", "scope", "deferrals"),
    ),
    EventKind(
        "GOV_JOB",
        "GATE_DEFERRED_LONG",
        "A job was deferred ten times.",
        ("reason", "gate", "scope", "deferrals", "alert"),
        log="warning",
    ),
    EventKind(
        "GOV_JOB",
        "GOV_JOB_WOKEN",
        "The gate that kept the job opened.",
        ("reason", "gate", "deferrals"),
    ),
    EventKind(
        "GOV_JOB",
        "GOV_JOB_SUCCEEDED",
        "Its worker acknowledged the job.",
        (*_ATTEMPT, "worker_id"),
        ("follow_up_id", "follow_up_refused"),
    ),
    EventKind(
        "GOV_JOB",
        "GOV_JOB_RETRYING",
        "An attempt failed or its lease ran out, and the job is queued again.",
        (*_ATTEMPT, "max_attempts", "error", "worker_id", "cause", "run_at"),
        log="warning",
    ),
    EventKind(
        "GOV_JOB",
        "GOV_JOB_DEAD_LETTER",
        "The last attempt failed, or its lease ran out.",
        (*_ATTEMPT, "max_attempts", "error", "worker_id", "cause", "alert"),
        log="warning",
    ),
    EventKind(
        "GOV_JOB",
        "GOV_JOB_FAILED",
        "A rule ended the job; another attempt would not help.",
        (*_ATTEMPT, "error"),
        log="warning",
    ),
    EventKind(
        "GOV_JOB",
        "GOV_JOB_REQUEUED",
        "A dead letter was queued again.",
        (*_ATTEMPT, "max_attempts"),
    ),
    EventKind(
        "GOV_JOB",
        "GOV_JOB_DISMISSED",
        "A dead letter was dismissed.",
        ("reason", "actor"),
    ),
    EventKind(
        "GOV_JOB",
        "GOV_JOB_MOVED",
        "The object's next action changed, and its follow-up with it.",
        ("reason", "run_at", "action"),
    ),
    EventKind(
        "GOV_JOB",
        "GOV_JOB_REMOVED",
        "The object has no next action any more, and its follow-up was taken out.",
        ("reason", "run_at", "action"),
    ),
    EventKind(
        "OBJECT",
        "OBJECT_REGISTERED",
        "An object came under governance.",
        ("reason", "status"),
        ("job_id",),
    ),
    EventKind(
        "OBJECT",
        "OBJECT_CHANGED",
        "Something of an object changed, not its status.",
        ("reason", "status"),
        ("job_id",),
    ),
    EventKind(
        "OBJECT",
        "OBJECT_MOVED",
        "An object's status changed.",
        ("reason", "from", "status"),
        ("job_id",),
    ),
    EventKind(
        "OBJECT",
        "ENQUEUE_REFUSED",
        "A verification was refused: the object's limit is reached.",
        ("reason", "action", "verify_count", "verify_limit"),
    ),
    EventKind(
        "GATE",
        "GATE_CHANGED",
        "A gate was set.",
        ("gate", "scope", "from", "state", "reason"),
    ),
)
