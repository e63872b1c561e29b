"""The client of the Queue surface: one method per endpoint, typed answers, errors as exceptions. No
loops, no threads."""

from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from ksana.client import shapes, wire
from ksana.client.api_client import ApiClient
from ksana.client.errors import ApiConflictError, ApiError, ClientError, DuplicateRequestError

MAX_SUBMIT_BATCH = 1_000
MAX_CLAIM = 500
MAX_LEASE_BATCH = 500
MAX_WAIT_SEC = 30.0


class QueueClient(ApiClient):
    """Calls to `/api/scheduler` of one server. Use it on one event loop, and close it."""

    base = "/api/scheduler"

    # --- jobs ---

    async def submit(
        self,
        addon_id: str,
        job_type: str,
        payload: Any = msgspec.UNSET,
        *,
        cost_units: int = 1,
        priority: str | None = None,
        constraints: Mapping[str, bool] | None = None,
        client_request_id: str | None = None,
        max_attempts: int | None = None,
        run_at: datetime | None = None,
        fairness_key: str | None = None,
    ) -> shapes.Job:
        """Submit a job. It is sent under a request id, yours or a fresh one, so that a repeat after
        a lost answer finds the job instead of making another. Raise DuplicateRequestError when the
        id was used before this call."""
        job = shapes.NewJob(
            addon_id=addon_id,
            job_type=job_type,
            payload=payload,
            cost_units=cost_units,
            priority=priority or msgspec.UNSET,
            constraints=dict(constraints) if constraints else msgspec.UNSET,
            client_request_id=client_request_id or wire.new_request_id(),
            max_attempts=max_attempts or msgspec.UNSET,
            run_at=run_at or msgspec.UNSET,
            fairness_key=fairness_key or msgspec.UNSET,
        )
        try:
            return (await self._post("/jobs/submit", job, wire.JobAnswer)).job
        except DuplicateRequestError as error:
            if error.unknown_tries and error.job is not None:
                return msgspec.convert(error.job, shapes.Job)
            raise

    async def submit_batch(self, jobs: Sequence[shapes.NewJob]) -> list[shapes.Job]:
        """Submit up to 1,000 jobs, all or none, safe to repeat like `submit`."""
        wire.check_size(jobs, MAX_SUBMIT_BATCH)
        own = {at for at, job in enumerate(jobs) if job.client_request_id is msgspec.UNSET}
        named = wire.with_request_ids(jobs) if own else list(jobs)
        try:
            return (await self._post("/jobs/submit-batch", {"jobs": named}, wire.JobsAnswer)).jobs
        except DuplicateRequestError as error:
            # An id made here a moment ago can only be a duplicate of this very batch, whose answer
            # was lost.
            if error.unknown_tries and error.index in own:
                return [await self._find_submitted(job) for job in named]
            raise

    async def _find_submitted(self, job: shapes.NewJob) -> shapes.Job:
        try:
            return (await self._post("/jobs/submit", job, wire.JobAnswer)).job
        except DuplicateRequestError as error:
            if error.job is None:
                raise
            return msgspec.convert(error.job, shapes.Job)

    async def claim(
        self,
        addon_id: str,
        worker_id: str,
        *,
        limit: int = 1,
        wait_sec: float = 0.0,
        lease: bool = False,
        ahead: int = 0,
        ttl_sec: int | None = None,
        accept_job_types: Sequence[str] | None = None,
        max_cost_units: int | None = None,
        capabilities: Mapping[str, bool] | None = None,
        tries: int | None = None,
    ) -> list[shapes.Job]:
        """Claim up to `limit` jobs, waiting up to `wait_sec` for the first. With `lease` they come
        RUNNING, each with its `lease_id`; `ahead` says how many of them you begin later: only jobs
        with an attempt to spare are handed out so. A claim is never repeated after an unknown
        outcome: what it took shows in `list_jobs`. `tries=1` makes it leave now or not at all, so
        that the caller knows from when a lease counts."""
        body: dict[str, Any] = {"addon_id": addon_id, "worker_id": worker_id, "limit": limit}
        if wait_sec:
            body["wait_sec"] = int(wait_sec) if wait_sec == int(wait_sec) else wait_sec
        if lease:
            of_lease = {"brief": limit > 1 or None, "ttl_sec": ttl_sec, "ahead": ahead or None}
            body |= {"lease": True, **wire.without_none(of_lease)}
        body |= wire.claim_filters(accept_job_types, max_cost_units, capabilities)
        found = await self._take("/jobs/claim", body, wire.ClaimAnswer, wait_sec, tries)
        if found is None:
            return []
        if found.jobs is not None:
            return found.jobs
        if found.job is None:
            return []
        if found.claim_token is not None and found.job.claim_token is None:
            return [msgspec.structs.replace(found.job, claim_token=found.claim_token)]
        return [found.job]

    async def get_job(self, job_id: str) -> shapes.JobStatus:
        """Get a job and its result."""
        return await self._get(f"/jobs/{wire.path_part(job_id)}", shapes.JobStatus)

    async def list_jobs(
        self,
        *,
        state: str | None = None,
        addon_id: str | None = None,
        job_type: str | None = None,
        created_after: datetime | None = None,
        created_before: datetime | None = None,
        page_size: int = 100,
    ) -> AsyncIterator[shapes.Job]:
        """Go through all jobs that match, page after page."""
        query = {
            "state": state,
            "addon_id": addon_id,
            "job_type": job_type,
            "limit": page_size,
            "created_after": wire.to_rfc3339(created_after),
            "created_before": wire.to_rfc3339(created_before),
        }
        cursor: str | None = None
        while True:
            page = await self._get(
                f"/jobs{wire.query_string({**query, 'cursor': cursor})}", shapes.JobPage
            )
            for job in page.jobs:
                yield job
            cursor = page.next_cursor
            if cursor is None:
                return

    async def status(
        self,
        job_id: str,
        state: str,
        *,
        note: str | None = None,
        progress: float | None = None,
        worker_id: str | None = None,
        claim_token: str | None = None,
    ) -> shapes.Job:
        """Tell that a claimed job is PREPARING or LEASE_PENDING, with a note or progress; extends
        the claim. Prove the claim by its token, or by the worker's id."""
        members = {"state": state, "note": note, "progress": progress}
        body = wire.without_none({**members, "worker_id": worker_id, "claim_token": claim_token})
        return (
            await self._post(f"/jobs/{wire.path_part(job_id)}/status", body, wire.JobAnswer)
        ).job

    async def cancel(self, job_id: str, reason: str | None = None) -> shapes.Job:
        """Cancel a job: at once, or when it runs by asking its worker."""
        try:
            return (
                await self._post(
                    f"/jobs/{wire.path_part(job_id)}/cancel",
                    wire.without_none({"reason": reason}),
                    wire.JobAnswer,
                )
            ).job
        except ApiConflictError as error:
            if error.unknown_tries:  # perhaps our own first try did it
                job = (await self.get_job(job_id)).job
                if job.state == "CANCELED" or job.cancel_requested:
                    return job
            raise

    async def events(self, job_id: str) -> list[shapes.Event]:
        """List what happened to a job and its leases, in order."""
        return (await self._get(f"/jobs/{wire.path_part(job_id)}/events", wire.EventsAnswer)).events

    async def explain(self, job_id: str) -> dict[str, Any]:
        """Ask why a job did, did not, or has not yet run."""
        return await self._get(f"/jobs/{wire.path_part(job_id)}/explain", dict[str, Any])

    # --- leases ---

    async def request_lease(
        self,
        job_id: str,
        *,
        worker_id: str | None = None,
        claim_token: str | None = None,
        ttl_sec: int | None = None,
    ) -> shapes.LeaseDecision:
        """Ask for a lease on a claimed job. Prove the claim by its token, or by the worker's id. A
        denial is an answer, not an error: see `approved`, `reason`."""
        proof = {"worker_id": worker_id, "claim_token": claim_token}
        body = wire.without_none({"job_id": job_id, **proof, "ttl_sec": ttl_sec})
        found = await self._post("/lease/request", body, shapes.LeaseDecision)
        lease = found.lease
        if lease is None or lease.lease_token is not None or found.lease_token is None:
            return found
        lease = msgspec.structs.replace(lease, lease_token=found.lease_token)
        return msgspec.structs.replace(found, lease=lease)

    async def heartbeat(
        self,
        lease_id: str,
        *,
        job_id: str,
        worker_id: str,
        lease_token: str | None = None,
        progress: float | None = None,
        message: str | None = None,
    ) -> shapes.Beat:
        """Keep a lease. Raise LeaseLostError when it is ours no longer."""
        proof = {"job_id": job_id, "worker_id": worker_id, "lease_token": lease_token}
        body = wire.without_none({**proof, "progress": progress, "message": message})
        return await self._post(f"/lease/{wire.path_part(lease_id)}/heartbeat", body, shapes.Beat)

    async def release(
        self,
        lease_id: str,
        *,
        job_id: str,
        worker_id: str,
        lease_token: str | None = None,
        status: str = "SUCCEEDED",
        result_data: Any = None,
        error: str | None = None,
        metrics: Mapping[str, Any] | None = None,
        retry: bool = True,
    ) -> shapes.Release:
        """End the job with its result. The same release sent again is answered the same. With
        `retry=False` a FAILED job stays so, whatever attempts are left."""
        proof = {"job_id": job_id, "worker_id": worker_id, "lease_token": lease_token}
        members = {"status": status, "result_data": result_data, "error": error, "metrics": metrics}
        body = wire.without_none({**proof, **members, "retry": None if retry else False})
        return await self._post(f"/lease/{wire.path_part(lease_id)}/release", body, shapes.Release)

    async def get_lease(self, lease_id: str) -> shapes.Lease:
        """Get a lease."""
        return (await self._get(f"/lease/{wire.path_part(lease_id)}", wire.LeaseAnswer)).lease

    async def heartbeat_batch(
        self, items: Sequence[shapes.BeatItem]
    ) -> list[shapes.Beat | ApiError]:
        """Keep up to 500 leases; each item is answered on its own, in order."""
        return await self._batch("/lease/heartbeat-batch", items, shapes.Beat)

    async def release_batch(
        self, items: Sequence[shapes.ReleaseItem]
    ) -> list[shapes.Release | ApiError]:
        """Release up to 500 leases; each item is answered on its own, in order."""
        return await self._batch("/lease/release-batch", items, shapes.Release)

    async def release_batch_briefly(
        self, items: Sequence[shapes.ReleaseItem]
    ) -> list[ApiError | None]:
        """Release up to 500 leases and learn only what was refused: cheaper where the jobs are not
        looked at again."""
        return await self._batch_briefly("/lease/release-batch", items, brief=True)

    async def release_and_claim(
        self,
        items: Sequence[shapes.ReleaseItem],
        addon_id: str,
        worker_id: str,
        *,
        limit: int = 1,
        ahead: int = 0,
        ttl_sec: int | None = None,
        accept_job_types: Sequence[str] | None = None,
        max_cost_units: int | None = None,
        capabilities: Mapping[str, bool] | None = None,
    ) -> shapes.Exchange:
        """Release up to 500 leases and claim what to go on with, RUNNING under leases, in one call
        and one commit. It does not wait: without jobs, go on with `claim`. If the answer is lost
        the releases are sent again by themselves, and what was claimed shows in `list_jobs`. A
        server that does not know of it releases, and hands out nothing."""
        wire.check_size(items, MAX_LEASE_BATCH)
        members = {"addon_id": addon_id, "worker_id": worker_id, "limit": limit, "brief": True}
        more = wire.without_none({"lease": True, "ttl_sec": ttl_sec, "ahead": ahead or None})
        filters = wire.claim_filters(accept_job_types, max_cost_units, capabilities)
        body = {"items": items, "brief": True, "next": {**members, **more, **filters}}
        try:
            answer = await self._take(
                "/lease/release-batch", body, wire.ExchangeAnswer, 0.0, tries=None
            )
            results = [] if answer is None else answer.results
            wire.check_count(results, items)
            refused = wire.refusals_in(results)
        except ClientError as error:
            if not wire.is_outcome_unknown(error):
                raise
            refused = await self.release_batch_briefly(items)
            return shapes.Exchange(refused=refused, is_claim_lost=True)
        found = None if answer is None else answer.next
        return shapes.Exchange(refused=refused, jobs=(found and found.jobs) or [])

    # --- stats ---

    async def snapshot(self) -> shapes.Snapshot:
        """Get capacity, jobs and leases as they are now."""
        return await self._get("/stats/snapshot", shapes.Snapshot)

    async def timeseries(
        self, metric: str, *, bucket: str = "5m", span: str = "24h"
    ) -> shapes.Timeseries:
        """Get a metric over time; `span` is the API's `range`."""
        query = wire.query_string({"metric": metric, "bucket": bucket, "range": span})
        return await self._get(f"/stats/timeseries{query}", shapes.Timeseries)
