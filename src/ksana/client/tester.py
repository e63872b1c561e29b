"""Handlers without a server: run one in a test and look at how it ended."""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from ksana.base.ids import new_uuid
from ksana.client.context import CancelSignal, JobContext
from ksana.client.handlers import HandlerOutcome
from ksana.client.shapes import Job
from ksana.client.worker import Worker


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """How a handler ended, and what it reported on the way."""

    status: str
    result: Any
    error: str | None
    metrics: dict[str, Any]
    reports: list[tuple[float | None, str | None]]
    is_final: bool = False
    """A failure after which no other attempt is made, whatever attempts are left."""


class WorkerTester:
    """Calls the handlers of a worker as the worker would."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def run_one(
        self,
        job_type: str,
        payload: Any = None,
        *,
        attempt: int = 1,
        max_attempts: int = 1,
        cancel: bool = False,
        cancel_on_report: int | None = None,
        job: Mapping[str, Any] | None = None,
    ) -> Tried:
        """Run the handler of `job_type` once. The payload goes through JSON, as it would on its
        way.

        `cancel`: the job is cancelled before it starts. `cancel_on_report`: it is cancelled at its
        n-th progress report. `job`: other members of the job.
        """
        registered = self._worker.handlers.get(job_type)
        if registered is None:
            known = ", ".join(sorted(self._worker.handlers)) or "none"
            raise ValueError(f"no handler for {job_type!r}; there are: {known}")
        members = {"attempts": attempt, "max_attempts": max_attempts, "payload": payload}
        parsed = self._make_job(job_type, {**members, **(job or {})})
        signal = CancelSignal()
        reports: list[tuple[float | None, str | None]] = []
        loop = asyncio.get_running_loop()
        task: asyncio.Task[HandlerOutcome] | None = None

        def tell_cancel() -> None:
            if not signal.is_set():
                signal.set("the job was cancelled")
                if registered.is_async and registered.is_interrupted and task is not None:
                    task.cancel()

        def report(fraction: float | None, message: str | None) -> None:
            reports.append((fraction, message))
            if cancel_on_report == len(reports):
                if registered.is_async:
                    tell_cancel()
                else:
                    signal.set("the job was cancelled")

        ctx = JobContext(parsed, parsed.payload, self._worker.worker_id, signal, report)
        with ThreadPoolExecutor(max_workers=1) as executor:
            task = loop.create_task(registered.run(ctx, executor))
            if cancel:
                tell_cancel()
            try:
                outcome = await task
            except asyncio.CancelledError:
                if not signal.is_set():
                    raise
                outcome = HandlerOutcome(status="CANCELED", error=signal.reason, is_given_up=True)
        return Tried(
            status=outcome.status,
            result=outcome.result(),
            error=outcome.error,
            metrics=outcome.metrics or {},
            reports=reports,
            is_final=outcome.is_final,
        )

    def _make_job(self, job_type: str, members: Mapping[str, Any]) -> Job:
        made = {
            "job_id": new_uuid(),
            "lease_id": new_uuid(),
            "addon_id": self._worker.addon_id,
            "job_type": job_type,
            "state": "RUNNING",
            "claimed_by": self._worker.worker_id,
            **members,
        }
        return msgspec.json.decode(msgspec.json.encode(made), type=Job)
