"""What the store has, and whether it is what the model says: jobs, objects and gates, row by
row."""

from collections.abc import Iterable
from typing import Any

from ksana.domain.governance.records import GovernanceJob, GovernedObject
from ksana.ports.governance.tables import GovernanceJobFilter
from tests.properties.governance_model import JobTwin, Model

KEYS = ("memory:a", "experience:b", "cognition:c")


def ids_of(jobs: Iterable[JobTwin]) -> set[str | None]:
    return {job.id for job in jobs}


def _lane_of(twin: JobTwin) -> int | None:
    return None if twin.status != "queued" else int(twin.kept_by is not None)


def read_all(tx: Any) -> tuple[list[GovernanceJob], dict[str, GovernedObject], dict[str, str]]:
    jobs = tx.governance.list_jobs(GovernanceJobFilter(), None, 10_000)
    return (
        list(reversed(jobs)),
        tx.objects.read(list(KEYS)),
        {gate.key: gate.state for gate in tx.gates.list_gates()},
    )


def bind(model: Model, jobs: list[GovernanceJob]) -> str | None:
    """Give twins without an id the rows that nobody knows; then each twin its row's number and
    token. None if that is possible."""
    known = ids_of(model.jobs)
    for job in [job for job in jobs if job.job_id not in known]:
        twin = next((twin for twin in model.jobs if twin.id is None and twin.key == job.key), None)
        if twin is None:
            return f"{job.job_id} of {job.key} is one too many"
        twin.id = job.job_id
    rows = {job.job_id: job for job in jobs}
    for twin in model.jobs:
        row = rows.get(twin.id or "")
        if row is None:
            return f"a job of {twin.key}, {twin.status}, is missing"
        twin.seq = row.seq
        if twin.token == -1:
            twin.token = row.lease_token
    return None


def differ(
    model: Model,
    jobs: list[GovernanceJob],
    objects: dict[str, GovernedObject],
    gates: dict[str, str],
) -> str | None:
    rows = {job.job_id: job for job in jobs}
    for twin in model.jobs:
        row = rows[twin.id or ""]
        shown = {
            "status": (row.status, twin.status),
            "action": (row.action, twin.action),
            "run_at": (row.run_at, twin.run_at),
            "attempt": (row.attempt, twin.attempt),
            "token": (row.lease_token, twin.token),
            "deferrals": (row.deferrals, twin.deferrals),
            "gate": (row.gate_key, twin.kept_by),
            "position": (row.position, _lane_of(twin)),
            "follow-up": (row.follow_key is not None, twin.is_follow_up),
            "planned": (bool(row.is_follow_up), twin.is_planned),
            "lease": (row.lease_expires_at, twin.until if twin.status == "running" else None),
        }
        for name, (is_so, must_be) in shown.items():
            if is_so != must_be:
                return f"{twin.id} has {name} {is_so}, not {must_be}"
    if set(objects) != set(model.objects):
        return f"there are {sorted(objects)}, not {sorted(model.objects)}"
    for key, expected in model.objects.items():
        governed = objects[key]
        is_so = (
            governed.status,
            governed.epistemic_state,
            governed.auto_verify_budget,
            governed.verify_count,
            governed.next_action_at,
        )
        must_be = (
            expected.status,
            expected.epistemic,
            expected.budget,
            expected.verified,
            expected.next_at,
        )
        if is_so != must_be:
            return f"{key} is {is_so}, not {must_be}"
    return None if gates == model.gates else f"gates are {gates}, not {model.gates}"
