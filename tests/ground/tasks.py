"""Tasks on the real program: made, read back, and held against what the target saw. Set arithmetic,
no luck.

ledger = Ledger(program)                   # every run and event, over the API
ledger.check_slots(task, SECOND)           # each slot has one run, or stands in a misfire event
ledger.check_deliveries(target.requests()) # each run arrived; each repeat has its recorded reason
"""

import os
import time
from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.ground.child import ChildError, wait_for
from tests.ground.process import Program
from tests.ground.target import Request

FULL = os.environ.get("KSANA_FULL") == "1"
"""The sizes of the contract instead of those that fit into a coffee break."""

SECOND = 1_000_000
FINAL = frozenset(
    {"SUCCESS", "FAILED", "TIMEOUT", "CALLBACK_SUCCESS", "FAILED_TIMEOUT", "CANCELED", "SKIPPED"}
)
OPEN = ("SCHEDULED", "RUNNING", "RETRYING", "CALLBACK_PENDING")
PAGE = 500

Json = dict[str, Any]


def note_figures(what: str, figures: str) -> None:
    """Keep what was measured, in the file that KSANA_FIGURES names, if it does."""
    name = os.environ.get("KSANA_FIGURES")
    if name:
        with Path(name).open("a", encoding="utf-8") as file:
            file.write(f"{what}: {figures}\n")


def instant_of(text: str) -> int:
    """An answered time as µs UTC, exactly."""
    found = datetime.fromisoformat(text)
    return int(found.replace(microsecond=0).timestamp()) * SECOND + found.microsecond


def make_task(
    program: Program, name: str, url: str, every: str | None = None, **members: Any
) -> Json:
    """Make a task through dialect C. Without `every` it only runs when triggered."""
    schedule = {"kind": "every", "every": every or "24h"}
    body = {"name": name, "target_url": url, "schedule": schedule, **members}
    answer = program.post("/api/v1/tasks", body)
    assert answer.status_code == 201, answer.text
    made: Json = answer.json()
    return made


def trigger(program: Program, task: Json, **body: Any) -> int:
    """Run a task by hand; the run's id."""
    answer = program.post(f"/api/v1/tasks/{task['id']}/trigger", body or None)
    assert answer.status_code == 202, answer.text
    return int(answer.json()["run_id"])


def _get(program: Program, path: str, **members: Any) -> Any:
    """Read from a program whose store may just have come back: each of its readers notices that for
    itself."""
    answers: list[Any] = []

    def answered() -> bool:
        answers.append(program.get(path, **members))
        return bool(answers[-1].status_code != 503)

    wait_for(answered, f"{path} is answered", within_s=15, every_s=0.05)
    return answers[-1]


def get_run(program: Program, run_id: int) -> Json:
    answer = _get(program, f"/api/v1/runs/{run_id}")
    assert answer.status_code == 200, answer.text
    run: Json = answer.json()
    return run


def wait_for_run(program: Program, run_id: int, *statuses: str, within_s: float = 20.0) -> Json:
    """Wait until a run is in one of the states (any final one if none is named)."""
    wanted = set(statuses) or FINAL
    wait_for(
        lambda: get_run(program, run_id)["status"] in wanted,
        f"run {run_id} is {wanted}",
        within_s=within_s,
        every_s=0.05,
    )
    return get_run(program, run_id)


def disable(program: Program, tasks: Iterable[Json]) -> None:
    """Arm nothing more."""
    for task in tasks:
        answer = program.request("PATCH", f"/api/v1/tasks/{task['id']}/disable")
        assert answer.status_code == 200, answer.text


def list_runs(program: Program, **filters: Any) -> list[Json]:
    """Every run that meets the filters, oldest first."""
    runs: list[Json] = []
    where: dict[str, Any] = {}
    while True:
        asked = {"page_size": PAGE, **where, **filters}
        answer = _get(program, "/api/v1/runs", params=asked)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        runs += page["items"]
        if page["next_cursor"] is None:
            return runs[::-1]
        where = {"cursor": page["next_cursor"]}


def list_events(program: Program, kind: str) -> list[Json]:
    """Every event of a kind."""
    events: list[Json] = []
    after = 0
    while True:
        answer = _get(
            program, "/api/v1/events", params={"type": kind, "after": after, "limit": PAGE}
        )
        assert answer.status_code == 200, answer.text
        page = answer.json()
        events += page["events"]
        if len(page["events"]) < PAGE:
            return events
        after = page["next_after"]


def count_open(program: Program) -> int:
    """How many runs are not finished."""
    return sum(_count(program, status) for status in OPEN)


def _count(program: Program, status: str) -> int:
    answer = _get(program, "/api/v1/runs", params={"status": status, "page_size": 1})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["total"])


def wait_until_quiet(program: Program, within_s: float = 30.0) -> None:
    """Wait until every run has come to its end. How long a line takes that was long is no fault:
    `within_s` is for runs of which none ends.

    The counts are read one after the other: a run that goes back from RETRYING to RUNNING meanwhile
    stands in none of them. So none open is believed of the runs themselves: an end is for good."""
    fewest, give_up_at = count_open(program), time.monotonic() + within_s
    while fewest or any(run["status"] not in FINAL for run in list_runs(program)):
        time.sleep(0.2)
        if (now := count_open(program)) < fewest:
            fewest, give_up_at = now, time.monotonic() + within_s
        elif time.monotonic() > give_up_at:
            open_runs = [
                (run["id"], run["task_id"], run["status"], run["reason"])
                for status in OPEN
                for run in list_runs(program, status=status)[:5]
            ]
            raise ChildError(f"{fewest} runs do not end, among them {open_runs}")


class Ledger:
    """What the server recorded, held against what must be."""

    def __init__(self, program: Program) -> None:
        self.runs = list_runs(program)
        self.totals = {status: _count(program, status) for status in (*OPEN, *sorted(FINAL))}
        self.misfires = list_events(program, "TASK_MISFIRED")

    def of(self, task: Json) -> list[Json]:
        return [run for run in self.runs if run["task_id"] == task["id"]]

    def check_slots(self, task: Json, every_us: int, until: int | None = None) -> int:
        """Each slot from the first on has exactly one run, or stands in a misfire event; answer how
        many there were."""
        runs = Counter(
            instant_of(run["scheduled_time"]) for run in self.of(task) if run["trigger"] != "manual"
        )
        assert not [slot for slot, n in runs.items() if n > 1], "a slot with two runs"
        missed: set[int] = set()
        for event in self.misfires:
            if event["entity_id"] == str(task["id"]):
                data = event["data"]
                span = range(instant_of(data["first"]), instant_of(data["last"]) + 1, every_us)
                assert len(span) == data["count"], data
                assert missed.isdisjoint(span), f"counted twice as missed: {data}"
                missed.update(span)
        known = set(runs) | missed
        last = max(known) if until is None else max(slot for slot in known if slot <= until)
        expected = set(range(instant_of(task["next_run_at"]), last + 1, every_us))
        lost = sorted(expected - known)
        assert not lost, (
            f"{len(lost)} slots of task {task['id']} have neither a run nor a misfire: {lost[:5]}"
        )
        assert not (until is None and known - expected), "a run or a misfire beside the schedule"
        return len(expected)

    def check_finished(self) -> None:
        """Nothing hangs between two states."""
        stuck = [(run["id"], run["status"]) for run in self.runs if run["status"] not in FINAL]
        assert not stuck, stuck
        found = Counter(run["status"] for run in self.runs)
        assert {status: n for status, n in self.totals.items() if n} == found, "the kept totals"

    def check_deliveries(self, requests: Iterable[Request], *, may_fail: bool = False) -> int:
        """Each run that succeeded arrived at the target, no attempt came twice, and each further
        attempt has the record of the one before that did not do; answer how many deliveries were
        repeats."""
        sent: dict[str, Counter[str]] = {}
        for request in requests:
            sent.setdefault(request.headers["x-ksana-run-id"], Counter())[
                request.headers["x-ksana-attempt"]
            ] += 1
        repeats = 0
        for run in self.runs:
            seen = sent.pop(run["uid"], Counter())
            if run["status"] in ("SKIPPED", "CANCELED"):
                continue
            assert may_fail or run["status"] in ("SUCCESS", "CALLBACK_SUCCESS"), (
                run["status"],
                run["error_message"],
            )
            assert seen or run["status"] not in ("SUCCESS", "CALLBACK_SUCCESS"), (
                f"run {run['id']} was never delivered"
            )
            doubled = {attempt: n for attempt, n in seen.items() if n > 1}
            assert not doubled, f"attempts of run {run['id']} were sent more than once: {doubled}"
            reasons = {str(one["attempt"]): one["status"] for one in run["attempts"]}
            unexplained = [
                attempt
                for attempt in seen
                if attempt != str(run["attempt"]) and attempt not in reasons
            ]
            assert not unexplained, (
                f"run {run['id']}: attempts {unexplained} were sent and nobody wrote why again"
            )
            repeats += max(0, len(seen) - 1)
        assert not sent, f"{len(sent)} deliveries belong to no run"
        return repeats

    def lost_attempts(self) -> list[Json]:
        """Attempts whose holder died."""
        return [one for run in self.runs for one in run["attempts"] if one["status"] == "LOST"]
