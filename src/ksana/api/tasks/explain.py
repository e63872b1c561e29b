"""Why, over HTTP: `/api/v1/tasks/{id}/explain` and `/api/v1/runs/{id}/explain` (B1); and what
enabling a task would do (B7)."""

from typing import Annotated, Any

import msgspec

from ksana.api.core.explain import ReasonView, show_reasons, summarize_reasons
from ksana.api.core.routing import Call, Route
from ksana.api.tasks.backfill import Backfilled, CatchUpQuery, read_caps, show_filled
from ksana.api.tasks.members import read_time, show_time
from ksana.api.tasks.runs import to_run_ref
from ksana.domain.tasks.explain_runs import Moment, Waiting
from ksana.domain.tasks.explain_tasks import Decision
from ksana.service.tasks.backfill import BackfillService
from ksana.service.tasks.explain import ExplainService


class ExplainQuery(msgspec.Struct, frozen=True):
    """The instant asked about, past or to come; now if absent."""

    at: Annotated[str, msgspec.Meta(max_length=64)] | None = None


class TaskExplained(msgspec.Struct, frozen=True):
    """Why the task did, did not, or has not yet run. `slot` is the slot the verdict is about, `run`
    what became of it. `next_run_at` is the slot the task is armed for now."""

    task_id: int
    job_id: str
    at: str
    verdict: str
    summary: str
    reasons: list[ReasonView]
    slot: str | None
    run: dict[str, Any] | None
    next_run_at: str | None
    decision: Decision | None


class ResumePreview(msgspec.Struct, frozen=True):
    """What enabling the task now would do. Slots that passed meanwhile are not made up unless that
    is asked for: with `count` it says what `catch_up` would make up."""

    task_id: int
    status: str
    disabled_at: str | None
    passed: int
    first_passed: str | None
    last_passed: str | None
    fires: int
    next_run_at: str | None
    fires_at: str | None
    misfire_policy: str
    catch_up: Backfilled | None


class RunExplained(msgspec.Struct, frozen=True):
    """Why the run is in its state. `waits_for` is null once it is finished."""

    run_id: int
    uid: str
    task_id: int
    at: str
    status: str
    summary: str
    reasons: list[ReasonView]
    waits_for: Waiting | None
    attempts: dict[str, Any]
    timeline: list[Moment]


def routes(explainer: ExplainService, backfills: BackfillService) -> list[Route]:
    """The questions."""

    async def explain_task(call: Call) -> TaskExplained:
        query: ExplainQuery = call.query
        at = None if query.at is None else read_time(query.at, "at")
        found = await explainer.explain_task(call.params["id"], at)
        run, why = found.slot_run, found.why
        reasons = show_reasons(why.reasons)
        shown = (
            None
            if run is None
            else {"id": run.id, "uid": run.uid, "status": run.status, "attempt": run.attempt}
        )
        return TaskExplained(
            task_id=found.task.id,
            job_id=found.task.job_id,
            at=show_time(found.at) or "",
            verdict=why.verdict,
            summary=summarize_reasons(reasons),
            reasons=reasons,
            slot=show_time(found.slot),
            run=shown,
            next_run_at=show_time(why.next_run_at),
            decision=why.decision,
        )

    async def explain_run(call: Call) -> RunExplained:
        found = await explainer.explain_run(call.params["id"])
        run, why = found.run, found.why
        reasons = show_reasons(why.reasons)
        return RunExplained(
            run_id=run.id,
            uid=run.uid,
            task_id=run.task_id,
            at=show_time(found.at) or "",
            status=run.status,
            summary=summarize_reasons(reasons),
            reasons=reasons,
            waits_for=why.waits_for,
            attempts=why.attempts,
            timeline=why.timeline,
        )

    return [
        Route(
            "GET",
            "/api/v1/tasks/{id:int}/explain",
            explain_task,
            scope="tasks:read",
            tags=("tasks",),
            query=ExplainQuery,
            summary="Say why a task did, did not, or has not yet run",
            answers={200: TaskExplained},
        ),
        _resume_route(explainer, backfills),
        Route(
            "GET",
            "/api/v1/runs/{id}/explain",
            explain_run,
            scope="tasks:read",
            tags=("runs",),
            summary="Say why a run is in its state",
            answers={200: RunExplained},
            converters={"id": to_run_ref},
        ),
    ]


def _resume_route(explainer: ExplainService, backfills: BackfillService) -> Route:
    async def preview_resume(call: Call) -> ResumePreview:
        query: CatchUpQuery = call.query
        task, bill = await explainer.preview_resume(call.params["id"])
        filled = None
        if query.count is not None:
            caps = read_caps(query.count, query.max_age, query.per_minute)
            filled = await backfills.preview_resume(call.params["id"], caps)
        return ResumePreview(
            task_id=task.id,
            status=task.status,
            disabled_at=show_time(bill.disabled_at),
            passed=bill.passed,
            first_passed=show_time(bill.first_passed),
            last_passed=show_time(bill.last_passed),
            fires=bill.fires,
            next_run_at=show_time(bill.next_slot_at),
            fires_at=show_time(bill.fire_at),
            misfire_policy=task.definition.misfire_policy,
            catch_up=None if filled is None else show_filled(filled, is_dry=True),
        )

    return Route(
        "GET",
        "/api/v1/tasks/{id:int}/resume-preview",
        preview_resume,
        scope="tasks:read",
        tags=("tasks",),
        query=CatchUpQuery,
        summary="Say what enabling a task would do",
        answers={200: ResumePreview},
    )
