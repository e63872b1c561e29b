"""The events of nodes, sessions and node jobs."""

from typing import Final

from ksana.domain.events import EventKind

KINDS: Final = (
    EventKind(
        "NODE",
        "NODE_MESSAGE_REPLAYED",
        "A dead letter between instances was put back into its inbox.",
        ("reason", "actor"),
    ),
    EventKind(
        "NODE",
        "NODE_MESSAGE_DISMISSED",
        "A dead letter between instances was dismissed.",
        ("reason", "actor"),
    ),
    EventKind(
        "NODE",
        "NODE_CONNECTED",
        "A node registered.",
        ("instance", "slots", "models"),
        ("replaced",),
        log="info",
    ),
    EventKind(
        "NODE", "NODE_DISCONNECTED", "A node's socket ended.", ("instance", "reason"), log="info"
    ),
    EventKind(
        "NODE",
        "NODE_ID_CONFLICT",
        "A second node came with the id of one that lives, and was refused.",
        ("instance", "holder"),
        log="warning",
    ),
    EventKind("NODE", "NODE_DRAINING", "A node gets no more jobs."),
    EventKind("NODE", "NODE_UNDRAINED", "A node gets jobs again."),
    EventKind(
        "NODE",
        "NODE_MODEL_AWAY",
        "A node said that it does not have a model at the moment; it is not asked for a while.",
        ("model", "until"),
    ),
    EventKind(
        "NODE",
        "NODE_ERROR",
        "A node reported a problem of its own.",
        ("code", "message"),
        log="warning",
    ),
    EventKind("SESSION", "SESSION_CONNECTED", "A session began.", ("instance",), ("resumed",)),
    EventKind("SESSION", "SESSION_DISCONNECTED", "A session ended.", ("instance", "reason")),
    EventKind(
        "NODE_JOB",
        "NODE_JOB_CREATED",
        "A request became a node job.",
        ("model", "priority"),
        ("session_id", "request_id", "trace_id"),
    ),
    EventKind(
        "NODE_JOB",
        "NODE_JOB_WAITING",
        "No node could take the job at once, and it waits.",
        ("reason", "until"),
    ),
    EventKind(
        "NODE_JOB",
        "NODE_JOB_DISPATCHED",
        "An attempt was sent to a node.",
        ("attempt", "node_id", "deadline"),
    ),
    EventKind("NODE_JOB", "NODE_JOB_ACCEPTED", "The node took it.", ("attempt", "node_id")),
    EventKind("NODE_JOB", "NODE_JOB_RUNNING", "The node began.", ("attempt", "node_id")),
    EventKind(
        "NODE_JOB",
        "NODE_JOB_RETRIED",
        "An attempt failed, and another node is tried.",
        ("attempt", "node_id", "reason"),
        ("error",),
        log="warning",
    ),
    EventKind(
        "NODE_JOB",
        "NODE_JOB_FINISHED",
        "The job has its outcome.",
        ("attempt", "success"),
        ("node_id", "error", "alert"),
        log="warning",
        log_if='"success":false',
    ),
    EventKind("NODE_JOB", "NODE_JOB_RELEASED", "Its slot is free again.", ("attempt",)),
    EventKind(
        "NODE_JOB",
        "NODE_JOB_REFUSED",
        "A request did not become a job.",
        ("reason", "model"),
        ("session_id", "request_id"),
    ),
)
