"""From a run to the job it is handed over to: its payload, placeholders filled, and its order."""

from ksana.base.instant import Instant, format_instant
from ksana.domain.handover import MAX_PAYLOAD, job_id_of, request_id_of
from ksana.domain.tasks import template
from ksana.domain.tasks.records import ClaimedRun
from ksana.engine.tasks.requests import values_of
from ksana.ports.handover import NodeOrder, QueueOrder

NO_PAYLOAD = "{}"


def build_payload(run: ClaimedRun, now: Instant) -> str:
    """The payload of a run's job, as JSON. Raise ValueError if it is too large once filled."""
    definition = run.task.definition
    text = run.override_body if run.override_body is not None else definition.body
    if text is None:
        return NO_PAYLOAD
    if definition.options.template and "{{" in text:
        values = values_of(run, now, format_instant(run.scheduled_time), callback_base="")
        text = template.fill_body(text, values, is_json=True)
    if len(text) > MAX_PAYLOAD // 4 and len(text.encode()) > MAX_PAYLOAD:
        raise ValueError(f"the payload has more than {MAX_PAYLOAD} bytes once it is filled")
    return text


def build_node_order(run: ClaimedRun, now: Instant) -> NodeOrder:
    """The node job of one attempt. Raise ValueError if it cannot be made."""
    spec = run.task.definition.options.node
    if spec is None:
        raise ValueError(_other_type(run))
    return NodeOrder(
        job_id=job_id_of(run.uid, run.attempt),
        request_id=request_id_of(run.uid, run.attempt),
        model=spec.model,
        labels=spec.labels,
        priority=spec.priority,
        payload_json=build_payload(run, now),
        wait_us=spec.wait_us,
        timeout_us=spec.timeout_us,
        trace_id=run.trace_id,
    )


def _other_type(run: ClaimedRun) -> str:
    return f"the task is of type {run.task.definition.options.type} since this run was made"


def build_queue_order(run: ClaimedRun, now: Instant) -> QueueOrder:
    """The queue job of one attempt. Raise ValueError if it cannot be made."""
    spec = run.task.definition.options.queue
    if spec is None:
        raise ValueError(_other_type(run))
    return QueueOrder(
        job_id=job_id_of(run.uid, run.attempt),
        request_id=request_id_of(run.uid, run.attempt),
        addon_id=spec.addon_id,
        job_type=spec.job_type,
        cost_units=spec.cost_units,
        priority=spec.priority,
        constraints_json=spec.constraints,
        payload_json=build_payload(run, now),
        max_attempts=spec.max_attempts,
        fairness_key=spec.fairness_key,
    )
