"""The events of tasks and runs."""

from typing import Final

from ksana.domain.events import EventKind

_LIMITS: Final = ("max_concurrency", "max_queued", "policy")

KINDS: Final = (
    EventKind(
        "TASK",
        "TASK_CREATED",
        "The task was made.",
        ("name", "job_id", "dialect", "status"),
    ),
    EventKind(
        "TASK",
        "TASK_IMPORTED",
        "The task came from a JSON file.",
        ("name", "job_id", "dialect", "from"),
    ),
    EventKind(
        "TASK",
        "TASK_CHANGED",
        "The task was changed. `schedule_was` is there if its schedule changed, `ended` if it had"
        " no slot left before.",
        ("version", "status", "schedule"),
        ("schedule_was", "ended"),
    ),
    EventKind("TASK", "TASK_ENABLED", "The task was enabled.", ("version",)),
    EventKind(
        "TASK",
        "TASK_DISABLED",
        "The task was disabled. `ended` is there if it had no slot left before.",
        ("version",),
        ("ended",),
    ),
    EventKind(
        "TASK",
        "TASK_DELETED",
        "The task was deleted. `ended` is there if it had no slot left before.",
        ("name",),
        ("ended",),
    ),
    EventKind(
        "TASK",
        "TASK_MISFIRED",
        "Slots fell due while no instance ran, or were later than their grace allows.",
        ("first", "last", "count", "policy"),
    ),
    EventKind(
        "TASK",
        "TASK_BACKFILLED",
        "Somebody asked for past slots to be fired: a range, or, with `resumed`, what passed while"
        " the task was disabled.",
        ("from", "to", "count", "first", "last", "per_minute"),
        ("resumed",),
    ),
    EventKind(
        "TASK",
        "BACKFILL_CANCELED",
        "Somebody cancelled the runs of a backfill that waited.",
        ("count",),
    ),
    EventKind(
        "TASK",
        "TASK_REARMED",
        "The task is due at another slot than before: the clock was set back and had jumped over "
        "it, or the rules of its zone changed.",
        ("slot", "was", "reason"),
    ),
    EventKind(
        "TASK",
        "TASK_MISSED",
        "The only slot of a one-time task passed and is not made up.",
        ("slot", "reason", "alert"),
        log="warning",
    ),
    EventKind(
        "TASK",
        "TRIGGER_REFUSED",
        "A trigger was refused at the task's concurrency limit.",
        ("reason", "active", "waiting", *_LIMITS),
    ),
    EventKind(
        "RUN",
        "RUN_SCHEDULED",
        "The run was made and is about to start, or waits for its turn.",
        ("task_id", "trigger", "reason"),
        ("slot",),
    ),
    EventKind(
        "RUN",
        "RUN_STARTED",
        "An instance took the run, or its job was submitted (`job_id`). A run that starts as soon"
        " as it is made has `slot` and `trigger`, one that was made before has `attempt`.",
        ("task_id", "reason"),
        ("slot", "trigger", "attempt", "job_id"),
    ),
    EventKind(
        "RUN",
        "RUN_SKIPPED",
        "The slot was recorded as a skipped run.",
        ("task_id", "slot", "trigger", "reason", *_LIMITS),
        log="info",
    ),
    EventKind("RUN", "RUN_PROMOTED", "The turn of a waiting run has come.", ("task_id", "reason")),
    EventKind(
        "RUN",
        "RUN_SUCCESS",
        "The target answered with success, or the job it waited for was done.",
        ("task_id", "attempt", "reason"),
        ("response_code", "job_id"),
    ),
    EventKind(
        "RUN",
        "RUN_CALLBACK_PENDING",
        "The target accepted the call and is to call back.",
        ("task_id", "attempt", "reason", "response_code"),
    ),
    EventKind(
        "RUN",
        "RUN_RETRYING",
        "The run is tried again. `attempt` is there if an attempt ended, `from` if the run was"
        " moved without its holder.",
        ("task_id", "reason", "next_retry_time"),
        ("attempt", "response_code", "error", "from", "instance", "job_id"),
        log="warning",
        log_unless='"attempt":',
    ),
    EventKind(
        "RUN",
        "RUN_FAILED",
        "The run failed for good.",
        ("task_id", "reason", "alert"),
        ("attempt", "response_code", "error", "from", "instance", "job_id"),
        log="warning",
        log_unless='"attempt":',
    ),
    EventKind(
        "RUN",
        "RUN_TIMEOUT",
        "The last attempt got no answer in time.",
        ("task_id", "attempt", "reason", "error", "alert"),
        ("job_id",),
    ),
    EventKind(
        "RUN",
        "RUN_CALLBACK_SUCCESS",
        "The callback said that the run succeeded.",
        ("task_id", "from", "reason"),
    ),
    EventKind(
        "RUN",
        "RUN_FAILED_TIMEOUT",
        "No callback came by the deadline.",
        ("task_id", "from", "reason", "error", "alert"),
        log="warning",
    ),
    EventKind(
        "RUN",
        "RUN_CANCELED",
        "The run was cancelled, or the job it waited for, or its task was deleted.",
        ("task_id", "reason"),
        ("from", "attempt", "error", "job_id"),
        log="info",
        log_unless='"attempt":',
    ),
    EventKind(
        "RUN",
        "RUN_REPLAYED",
        "The failed run was run again as another.",
        ("task_id", "as", "actor"),
    ),
    EventKind(
        "RUN", "RUN_DISMISSED", "The dead letter of the run was dismissed.", ("reason", "actor")
    ),
    EventKind(
        "RUN",
        "RUN_RESULT_REFUSED",
        "The result of an attempt came when the run was no longer its holder's.",
        ("task_id", "attempt", "reason", "kind", "response_code"),
    ),
    EventKind(
        "RUN",
        "CALLBACK_IGNORED",
        "A callback came for a finished run.",
        ("task_id", "status", "sent"),
    ),
    EventKind(
        "RUN",
        "CALLBACKS_CAPPED",
        "A run keeps no more callbacks: it has as many as it may, by number or by size.",
        ("task_id", "kept", "bytes"),
    ),
)
