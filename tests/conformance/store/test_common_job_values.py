"""The same of rows of jobs: those that have values in common are written as they would be one by
one, and each is guarded by its own values, on every SQL store."""

from typing import Any

import pytest

from ksana.base.ids import new_uuid
from ksana.base.instant import SECOND
from ksana.domain.queue.changes import JobChange
from ksana.domain.queue.jobs import Job
from ksana.store.sql import SqlStore
from tests.conformance.store.ground import Database
from tests.conformance.store.test_common_values import (
    COUNT,
    NONE,
    SOME,
    Members,
    at,
    by_turns,
    none,
)

pytestmark = pytest.mark.spec("X2")

FAR = 4_000_000_000 * SECOND

JOB_COLUMNS = (
    "addon_id, job_type, priority, cost_units, constraints_json, payload_json, state, attempts, "
    "max_attempts, created_at, run_at, fairness_key, cancel_requested, position, urgency, "
    "class_id, turn, due_at, claims, claim_token, claimed_by, claim_expires_at, next_retry_at, "
    "progress, note, started_at, finished_at, final_status, error_text, result_json, metrics_json, "
    "lease_id, lease_token, lease_ttl_sec, heartbeat_at, lease_expires_at, release_status, "
    "release_digest, updated_at"
)

JOBS: dict[str, Members] = {
    "all in common": none,
    "an alike one is NULL in all": lambda _: {"fairness_key": None},
    "alike ones differ": by_turns(job_type="other", cost_units=3, fairness_key="other"),
    "an alike one differs in the last of a statement": at(31, addon_id="other"),
    "same ones differ": by_turns(state="SCHEDULED", position=0, due_at=FAR, run_at=FAR),
    "a same one differs in the first": at(0, attempts=2),
    "all differ": lambda n: {"class_id": n, "created_at": 5 + n, "max_attempts": n},
}


def a_job(number: int, **members: Any) -> Job:
    given: dict[str, Any] = {
        "seq": 0,
        "job_id": new_uuid(),
        "addon_id": "a",
        "job_type": "t",
        "priority": "NORMAL",
        "cost_units": 1,
        "constraints_json": "{}",
        "payload_json": f'{{"n":{number}}}',
        "state": "QUEUED",
        "max_attempts": 4,
        "created_at": 5,
        "updated_at": 5,
        "position": 1,
        "urgency": 1,
        "class_id": 9,
        "turn": 1_000 + number,
        "due_at": 5,
        "fairness_key": "k",
        "client_request_id": new_uuid(),
    }
    return Job(**given | members)


def jobs_of(database: Database, where: str) -> list[tuple[Any, ...]]:
    return database.ask(
        f"SELECT {JOB_COLUMNS} FROM scheduler_job_runs WHERE {where} ORDER BY turn, seq"
    )


def listed(jobs: list[Job]) -> str:
    ids = ", ".join(f"'{job.job_id}'" for job in jobs)
    return f"job_id IN ({ids})"


@pytest.mark.spec("Q1")
@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("case", JOBS)
async def test_new_jobs_are_written_as_one_by_one(
    store: SqlStore, database: Database, case: str, once: bool
) -> None:
    def insert(tx: Any, jobs: list[Job]) -> int:
        entered: int = tx.jobs.insert(jobs, once=once)
        return entered

    one, many = ([a_job(n, **JOBS[case](n)) for n in range(COUNT)] for _ in range(2))
    for job in one:
        assert await store.transact(insert, [job]) == 1
    assert await store.transact(insert, many) == COUNT
    written = jobs_of(database, listed(many))
    assert len(written) == COUNT
    assert written == jobs_of(database, listed(one))
    requests = database.ask("SELECT client_request_id FROM scheduler_job_runs ORDER BY seq")
    assert sorted(row[0] for row in requests) == sorted(
        str(job.client_request_id) for job in one + many
    )


MOVES: dict[str, dict[str, Any]] = {
    "claim": {"position": 1},
    "start": {"position": 1, "attempts": 3},
    "grant": {"position": 2, "state": "CLAIMED", "claim_expires_at": FAR, "attempts": 3},
    "finish": {"position": 4, "state": "RUNNING"},
}
"""The rows that each move expects."""

CHANGES: dict[str, Members] = {
    "all in common": none,
    "alike ones differ": lambda n: {
        "worker_id": f"w{n % 3}",
        "claims": n,
        "ttl_sec": 1 + n / 2,
        "metrics_json": None if n % 2 else f"[{n}]",
    },
    "an alike one differs in the last of a statement": at(31, worker_id="x", metrics_json="{}"),
    "same ones differ": lambda n: {
        "until": FAR + n,
        "error": None if n % 2 else f"e{n}",
        "new": "FAILED" if n % 3 else "DONE",
        "release_status": "FAILED" if n % 3 else "SUCCEEDED",
    },
    "a same one differs in the first": at(0, until=FAR + 1, error="e"),
}


@pytest.mark.fault("F37")
@pytest.mark.spec("Q2", "X12")
@pytest.mark.parametrize("case", CHANGES)
@pytest.mark.parametrize("move", MOVES)
async def test_moves_of_jobs_are_written_as_one_by_one_each_under_its_own_guard(
    store: SqlStore, database: Database, move: Any, case: str
) -> None:
    lease_id = new_uuid()
    one, many = ([a_job(n) for n in range(COUNT)] for _ in range(2))
    await store.transact(lambda tx: tx.jobs.insert(one + many, once=True))
    seqs = dict(database.ask("SELECT job_id, seq FROM scheduler_job_runs"))
    fitting = ", ".join(f"{name} = {value!r}" for name, value in MOVES[move].items())
    held = f"claim_token = turn, lease_token = turn, lease_id = '{lease_id}'"

    def change(job: Job, number: int) -> JobChange:
        given: dict[str, Any] = {
            "move": move,
            "seq": seqs[job.job_id],
            "job_id": job.job_id,
            "old": "CLAIMED",
            "new": "DONE" if move == "finish" else "RUNNING",
            "claim_token": job.turn,
            "lease_token": job.turn,
            "lease_id": lease_id,
            "old_attempts": 3,
            "attempts": 4,
            "claims": 1,
            "worker_id": "w",
            "until": FAR,
            "ttl_sec": 30.0,
            "result_json": f'{{"n":{number}}}',
            "release_digest": f"d{number}",
        }
        return JobChange(**given | CHANGES[case](number))

    def write(tx: Any) -> tuple[list[int], int]:
        write_all = getattr(tx.job_changes, move)
        alone = [write_all([change(job, number)]) for number, job in enumerate(one)]
        return alone, write_all([change(job, number) for number, job in enumerate(many)])

    for refused in NONE, SOME:
        database.ask(f"UPDATE scheduler_job_runs SET {fitting}, {held}")
        turns = ", ".join([str(one[number].turn) for number in refused]) or "NULL"
        database.ask(f"UPDATE scheduler_job_runs SET position = 0 WHERE turn IN ({turns})")
        alone, together = await store.transact(write)
        assert alone == [number not in refused for number in range(COUNT)]
        assert together == COUNT - len(refused)
        assert jobs_of(database, listed(many)) == jobs_of(database, listed(one))
