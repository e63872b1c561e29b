"""The rules of the fake server: jobs, leases, tokens and results in memory."""

import asyncio
import contextlib
import itertools
from typing import Any

from ksana.base.ids import new_uuid

NOW = "2026-01-01T00:00:00Z"
FINAL = {"SUCCEEDED": "DONE", "FAILED": "FAILED", "CANCELED": "CANCELED", "TIMEOUT": "TIMEOUT"}


class Refused(Exception):
    def __init__(self, status: int, code: str, **extra: Any) -> None:
        super().__init__(code)
        self.status = status
        self.body = {
            "code": code,
            "message": f"refused: {code}",
            "detail": f"refused: {code}",
            "request_id": "r-1",
            **extra,
        }


class FakeRules:
    """What a client depends on: a job has one holder, a lease that is over is refused, the same
    release again is answered the same, a request id makes one job, a wrong token is refused."""

    def __init__(self) -> None:
        self.has_tokens = True
        """False: an older server, which answers no tokens and knows none."""
        self.tokens: dict[str, str] = {}
        """By job id the token of its claim, by lease id that of the lease."""
        self.jobs: dict[str, dict[str, Any]] = {}
        self.leases: dict[str, dict[str, Any]] = {}
        self.results: dict[str, dict[str, Any]] = {}
        self.releases: dict[str, dict[str, Any]] = {}
        self.accepted: list[str] = []
        """Job ids whose result was taken, in order; a job twice in it is a doubled result."""
        self.capacity = 1_000
        self._changed = asyncio.Condition()
        self._counter = itertools.count()

    def _new_token(self, owner: str) -> dict[str, str]:
        """Make a token for a job's claim or for a lease, as a member of the answer."""
        if not self.has_tokens:
            return {}
        self.tokens[owner] = token = new_uuid()
        return {"lease_token" if owner in self.leases else "claim_token": token}

    def _prove(self, owner: str, member: str, body: dict[str, Any], code: str) -> None:
        """Refuse a token that is not the one given out; an older server refuses to be sent one."""
        if member in body and not self.has_tokens:
            raise Refused(400, "INVALID_ARGUMENT", field=member)
        if member in body and body[member] != self.tokens.get(owner):
            raise Refused(409, code)

    def _submit(self, body: dict[str, Any]) -> dict[str, Any]:
        asked = body.get("client_request_id")
        for job in self.jobs.values():
            if asked is not None and job.get("client_request_id") == asked:
                raise Refused(409, "DUPLICATE_REQUEST", job=job)
        if body["cost_units"] < 1:
            raise Refused(400, "INVALID_ARGUMENT", field="cost_units")
        job = {
            "priority": "NORMAL",
            "constraints": {},
            "payload": None,
            "max_attempts": 1,
            "client_request_id": None,
            **body,
            "job_id": new_uuid(),
            "state": "QUEUED",
            "created_at": NOW,
            "updated_at": NOW,
            "claimed_by": None,
            "lease_id": None,
            "attempts": 0,
            "cancel_requested": False,
            "order": next(self._counter),
            "a_later_member": [1],
        }
        self.jobs[job["job_id"]] = job
        return job

    def _submit_batch(self, bodies: list[dict[str, Any]]) -> list[dict[str, Any]]:
        known = {job["client_request_id"] for job in self.jobs.values()} - {None}
        for index, body in enumerate(bodies):
            if body.get("client_request_id") in known:
                raise Refused(409, "DUPLICATE_REQUEST", index=index)
        return [self._submit(body) for body in bodies]

    async def _claim(self, body: dict[str, Any]) -> tuple[int, Any]:
        found = self._take(body)
        if not found and body.get("wait_sec"):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(body["wait_sec"]), self._changed:
                    await self._changed.wait_for(lambda: bool(self._eligible(body)))
            found = self._take(body)
        if not found:
            return 204, None
        return 200, {"job": found[0], **({"jobs": found} if body["limit"] > 1 else {})}

    def _set_status(self, job_id: str, body: dict[str, Any]) -> dict[str, Any]:
        job = self._job(job_id)
        self._prove(job_id, "claim_token", body, "CLAIM_LOST")
        return job | {"state": body["state"]}

    def _eligible(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        types = body.get("accept_job_types")
        used = sum(lease["state"] == "ACTIVE" for lease in self.leases.values())
        room = min(body["limit"], self.capacity - used) if body.get("lease") else body["limit"]
        ready = (
            job
            for job in self.jobs.values()
            if job["state"] == "QUEUED"
            and job["addon_id"] == body["addon_id"]
            and (types is None or job["job_type"] in types)
        )
        found = list(itertools.islice(ready, max(0, room)))
        at_once = body["limit"] - body.get("ahead", 0)
        has_spare = (job["attempts"] + 1 < job["max_attempts"] for job in found[at_once:])
        return found[: at_once + len(list(itertools.takewhile(bool, has_spare)))]

    def _take(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        found = self._eligible(body)
        answer = []
        for job in found:
            job |= {"state": "CLAIMED", "claimed_by": body["worker_id"]}
            shown = self._new_token(job["job_id"])
            if body.get("lease"):
                lease = self._grant(job, body["ttl_sec"])
                shown |= self._new_token(lease["lease_id"])
            answer.append(job | shown)
        return answer

    def _grant(self, job: dict[str, Any], ttl_sec: int) -> dict[str, Any]:
        lease = {
            "lease_id": new_uuid(),
            "job_id": job["job_id"],
            "state": "ACTIVE",
            "ttl_sec": ttl_sec,
            "granted_at": NOW,
        }
        self.leases[lease["lease_id"]] = lease
        job |= {"state": "RUNNING", "lease_id": lease["lease_id"], "attempts": job["attempts"] + 1}
        return lease

    def _request(self, body: dict[str, Any]) -> dict[str, Any]:
        job = self._job(body["job_id"])
        self._prove(job["job_id"], "claim_token", body, "CLAIM_LOST")
        if job["state"] == "RUNNING":
            return {"approved": True, "lease": self.leases[job["lease_id"]]}
        if sum(lease["state"] == "ACTIVE" for lease in self.leases.values()) >= self.capacity:
            return {
                "approved": False,
                "retry_after_sec": 10,
                "reason": "Capacity exceeded",
                "position": 1,
                "holders": [],
            }
        lease = self._grant(job, body["ttl_sec"])
        return {"approved": True, "lease": lease | self._new_token(lease["lease_id"])}

    def _active(self, lease_id: str, body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        lease = self._lease(lease_id)
        job = self.jobs[lease["job_id"]]
        self._prove(lease_id, "lease_token", body, "LEASE_LOST")
        if lease["state"] != "ACTIVE" or job["claimed_by"] != body["worker_id"]:
            raise Refused(409, "LEASE_LOST", current={"state": lease["state"]})
        return lease, job

    def _beat(self, lease_id: str, body: dict[str, Any]) -> dict[str, Any]:
        lease, job = self._active(lease_id, body)
        lease["beats"] = lease.get("beats", 0) + 1
        job |= {name: body[name] for name in ("progress", "message") if name in body}
        return {"lease": lease, "job": job}

    def _release(self, lease_id: str, body: dict[str, Any]) -> dict[str, Any]:
        told = {name: value for name, value in body.items() if name != "lease_id"}
        if lease_id in self.releases and self.releases[lease_id] == told:
            job = self.jobs[self.leases[lease_id]["job_id"]]
            return {
                "lease": self.leases[lease_id],
                "job": job,
                "result": self.results.get(job["job_id"]),
            }
        lease, job = self._active(lease_id, body)
        if "poison" in str(body.get("result_data")):
            raise Refused(400, "INVALID_ARGUMENT", field="result_data")
        lease["state"] = "RELEASED"
        if body["status"] == "RETURNED":
            job |= {"state": "QUEUED", "attempts": job["attempts"] - 1}
            self.releases[lease_id] = told
            return {"lease": lease, "job": job, "result": None}
        job["state"] = FINAL[body["status"]]
        is_final = self.has_tokens and body.get("retry") is False
        if body["status"] == "FAILED" and job["attempts"] < job["max_attempts"] and not is_final:
            job["state"] = "QUEUED"
        self.releases[lease_id] = told
        self.accepted.append(job["job_id"])
        self.results[job["job_id"]] = {
            "job_id": job["job_id"],
            "status": body["status"],
            "result_data": body.get("result_data"),
            "error": body.get("error"),
            "metrics": body.get("metrics"),
            "attempts": job["attempts"],
        }
        return {"lease": lease, "job": job, "result": self.results[job["job_id"]]}

    def _cancel(self, job_id: str) -> dict[str, Any]:
        job = self._job(job_id)
        if job["state"] in FINAL.values():
            raise Refused(409, "ILLEGAL_TRANSITION", current={"state": job["state"]})
        job |= {"cancel_requested": True} if job["state"] == "RUNNING" else {"state": "CANCELED"}
        return job

    def _list(self, query: dict[str, str]) -> dict[str, Any]:
        kept = [
            job
            for job in self.jobs.values()
            if all(
                job[name] == query[name]
                for name in ("state", "addon_id", "job_type")
                if name in query
            )
            and job["order"] >= int(query.get("cursor", 0))
        ]
        limit = int(query["limit"])
        return {
            "jobs": kept[:limit],
            "next_cursor": str(kept[limit]["order"]) if len(kept) > limit else None,
        }

    def _job(self, job_id: str) -> dict[str, Any]:
        if job_id not in self.jobs:
            raise Refused(404, "NOT_FOUND")
        return self.jobs[job_id]

    def _lease(self, lease_id: str) -> dict[str, Any]:
        if lease_id not in self.leases:
            raise Refused(404, "NOT_FOUND")
        return self.leases[lease_id]
