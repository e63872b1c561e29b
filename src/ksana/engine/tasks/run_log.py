"""Failed attempts in the log, one line each. Ends that no attempt made are logged from their
events."""

from typing import Final

import structlog

from ksana.domain.tasks.changes import ALERTING
from ksana.engine.tasks.claimed_run import AttemptOver

_WELL: Final = frozenset({"SUCCESS", "CALLBACK_PENDING", "CALLBACK_SUCCESS"})
_log = structlog.get_logger("ksana.tasks")


class RunLog:
    """Logs attempts that failed, once they are recorded."""

    def recorded(self, over: AttemptOver, status: str) -> None:
        """An attempt is on disk, and its run has this status now."""
        if status in _WELL:
            return
        held, reply = over.held, over.reply
        members = {"alert": True} if status in ALERTING else {}
        _log.warning(
            "attempt failed",
            run_id=held.run_id,
            task_id=held.task.id,
            job_id=held.task.job_id,
            attempt=held.attempt,
            status=status,
            err=reply.error or f"HTTP {reply.status}",
            latency_ms=round(reply.timing.total_ms, 3),
            target_url=held.task.definition.target_url,
            trace_id=held.trace_id,
            **members,
        )
