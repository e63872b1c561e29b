"""Failed attempts in the log, one line each."""

import structlog

from ksana.engine.tasks.claimed_run import AttemptOver

_log = structlog.get_logger("ksana.tasks")


class RunLog:
    """Logs attempts that failed, once they are recorded."""

    def recorded(self, over: AttemptOver, status: str) -> None:
        """An attempt is on disk, and its run has this status now."""
        if over.reply.kind == "answered" and status not in ("FAILED", "TIMEOUT"):
            return
        _log.warning(
            "attempt failed",
            run_id=over.held.run_id,
            task_id=over.held.task.id,
            job_id=over.held.task.job_id,
            attempt=over.held.attempt,
            status=status,
            err=over.reply.error or f"HTTP {over.reply.status}",
            latency_ms=over.reply.timing.total_ms,
            target_url=over.held.task.definition.target_url,
            trace_id=over.held.trace_id,
        )
