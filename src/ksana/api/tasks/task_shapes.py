"""Tasks as dialect C writes them: the way from the body people send to the domain."""

from typing import Any, Final

import msgspec
from msgspec import UNSET

from ksana.api.tasks.job_shapes import (
    JobWork,
    default_timeout,
    drop_members_of,
    read_timeout,
    read_work,
    refuse_foreign,
)
from ksana.api.tasks.members import (
    Defaults,
    align_names,
    check_name,
    check_placeholders,
    given,
    merge,
    read_span,
    sent_members,
)
from ksana.api.tasks.schedule_shapes import (
    SHORT_MEMBERS,
    Chosen,
    base_of,
    merge_schedule,
    read_chosen,
)
from ksana.api.tasks.secret_members import (
    Stored,
    find_stored,
    read_body,
    read_headers,
    read_signing_secret,
)
from ksana.api.tasks.task_bodies import RetryBody, TaskBody
from ksana.api.tasks.task_views import view_task
from ksana.base.errors import InvalidError
from ksana.base.instant import DAY, HOUR, MILLISECOND, SECOND, Instant, Micros
from ksana.domain.cron_spread import seed_of
from ksana.domain.schedule import Cron
from ksana.domain.tasks import headers as header_rules
from ksana.domain.tasks.records import (
    MAX_CATCHUP,
    Definition,
    Dialect,
    MisfirePolicy,
    Options,
    RetryPolicy,
    Task,
    TaskType,
)

MAX_TAGS_TEXT: Final = 1000
LONGEST_WAIT: Final[Micros] = 30 * DAY


def read_task(
    body: TaskBody,
    defaults: Defaults,
    now: Instant,
    *,
    dialect: Dialect = "C",
    old: Task | None = None,
) -> Definition:
    """Read a whole task and check all of it. `old` lends its secrets and its interval's anchor."""
    kind: TaskType = given(body.type, "http")
    refuse_foreign(kind, body)
    work = None
    if kind != "http":
        is_template = given(body.template, True) and dialect == "C"
        work = read_work(
            kind, given(body.queue, None), given(body.node, None), is_template=is_template
        )
    chosen = _read_schedule(body, defaults, now, old)
    name = given(body.name, "")
    check_name(name, may_be_empty=dialect == "T")
    stored = find_stored(None if old is None else old.definition, given(body.target_url, ""), name)
    options = _read_options(body, defaults, chosen.max_runs, stored, work)
    misfire_policy: MisfirePolicy = given(body.misfire_policy, "FIRE_NOW")
    catchup_limit = given(body.catchup_limit, 0)
    if misfire_policy == "CATCH_UP_LIMITED" and not catchup_limit:
        raise InvalidError(
            f"catchup_limit must lie between 1 and {MAX_CATCHUP} "
            "where misfire_policy is CATCH_UP_LIMITED",
            field="catchup_limit",
        )
    definition = Definition(
        name=name,
        description=given(body.description, ""),
        schedule=chosen.schedule,
        retry=_read_retry(given(body.retry_policy, None), defaults),
        max_concurrency=given(body.max_concurrency, 1),
        concurrency_policy=given(body.concurrency_policy, "QUEUE"),
        misfire_policy=misfire_policy,
        catchup_limit=catchup_limit,
        tags=_read_tags(given(body.tags, [])),
        options=options,
    )
    if work is not None:
        timeout_us = read_timeout(given(body.timeout_seconds, None), work)
        return msgspec.structs.replace(definition, body=work.payload, timeout_us=timeout_us)
    definition = _read_call(body, defaults, definition, stored)
    if options.template and dialect == "C":
        check_placeholders(definition, "target_url", "headers", "body_template")
    return definition


def _read_call(
    body: TaskBody, defaults: Defaults, definition: Definition, stored: Stored
) -> Definition:
    """The definition with the call that its runs make."""
    url = given(body.target_url, "")
    if not url:
        raise InvalidError("target_url is needed", field="target_url")
    header_rules.check_url(url, field="target_url")
    headers = {name: value for name, value in given(body.headers, {}).items() if value is not None}
    timeout_us = defaults.request_timeout_us
    callback_timeout_us = 300 * SECOND
    if (callback_timeout := given(body.callback_timeout_sec, None)) is not None:
        callback_timeout_us = read_span(
            callback_timeout, "callback_timeout_sec", least=MILLISECOND, most=LONGEST_WAIT
        )
    if (timeout := given(body.timeout_seconds, None)) is not None:
        timeout_us = read_span(timeout, "timeout_seconds", least=MILLISECOND)
    return msgspec.structs.replace(
        definition,
        exec_type=given(body.exec_type, "SYNC"),
        http_method=given(body.http_method, "GET"),
        target_url=url,
        headers=read_headers(headers, definition.options.secret_headers, stored, "headers"),
        body=read_body(
            given(body.body_template, ""),
            definition.options.secret_body,
            stored,
            "body_template",
        ),
        timeout_us=timeout_us,
        callback_method=given(body.callback_method, "POST"),
        callback_timeout_us=callback_timeout_us,
    )


def change_task(patch: TaskBody, defaults: Defaults, now: Instant, old: Task) -> Definition:
    """Merge a change into a task and read the whole again."""
    sent = sent_members(patch)
    base = {
        name: value
        for name, value in sent_members(view_task(old)).items()
        if name in _WRITABLE and value is not None
    }
    base |= {"schedule": base_of(old.definition.schedule, old.definition.options.max_runs)}
    _follow_type(base, sent, old.definition)
    if isinstance(sent.get("headers"), dict):
        sent["headers"] = align_names(sent["headers"], old.definition.headers)
    merged = merge(base, {name: value for name, value in sent.items() if name != "schedule"})
    if "schedule" in sent:
        merged["schedule"] = merge_schedule(base["schedule"], sent["schedule"])
    elif (
        "cron_expr" in sent
        and sent["cron_expr"] is None
        and isinstance(old.definition.schedule, Cron)
    ):
        raise InvalidError("cron_expr or schedule is needed", field="cron_expr")
    for name in ("cron_expr", "timezone"):
        # Shown twice, in the schedule and beside it: only what was sent is meant.
        if name not in sent:
            merged.pop(name, None)
    for name in SHORT_MEMBERS:
        if name in sent:  # a null too: it sets the schedule's member back
            merged[name] = sent[name]
    for name in ("dst_gap", "dst_overlap"):
        if name not in sent and merged["schedule"].get("kind", "cron") != "cron":
            merged.pop(name, None)
    return read_task(msgspec.convert(merged, TaskBody), defaults, now, dialect=old.dialect, old=old)


def _follow_type(base: dict[str, Any], sent: dict[str, Any], old: Definition) -> None:
    """A changed type drops the members of the former one; a timeout nobody chose follows the job
    it was worked out from."""
    kind = old.options.type
    if "type" in sent and (sent["type"] or "http") != kind:
        drop_members_of(kind, base)
    elif kind != "http" and old.timeout_us == default_timeout(old.options.node):
        base.pop("timeout_seconds", None)


_WRITABLE: Final = frozenset(TaskBody.__struct_fields__) - {"version"}


def _read_schedule(body: TaskBody, defaults: Defaults, now: Instant, old: Task | None) -> Chosen:
    members = {} if body.schedule is None or body.schedule is UNSET else sent_members(body.schedule)
    short = {name: value for name in SHORT_MEMBERS if (value := getattr(body, name)) is not UNSET}
    dst_gap, dst_overlap = given(body.dst_gap, None), given(body.dst_overlap, None)
    chosen = read_chosen(
        members,
        short,
        now,
        dst_gap=dst_gap or defaults.dst_gap,
        dst_overlap=dst_overlap or defaults.dst_overlap,
        old=None
        if old is None
        else Chosen(old.definition.schedule, old.definition.options.max_runs),
        seed=seed_of(given(body.name, ""), "" if old is None else old.job_id),
    )
    if not isinstance(chosen.schedule, Cron):
        for name, value in (("dst_gap", dst_gap), ("dst_overlap", dst_overlap)):
            if value is not None:
                raise InvalidError(f"{name} goes with a cron schedule only", field=name)
    return chosen


def _read_options(
    body: TaskBody,
    defaults: Defaults,
    max_runs: int | None,
    stored: Stored,
    work: JobWork | None,
) -> Options:
    if work is not None:
        return _read_job_options(body, defaults, max_runs, work)
    connect = given(body.connect_timeout, None)
    secret_headers = tuple(given(body.secret_headers, []))
    for name in secret_headers:
        fault = header_rules.find_header_fault(name, "")
        if fault is not None:
            raise InvalidError(fault, field="secret_headers")
    return Options(
        template=given(body.template, True),
        connect_timeout_us=None
        if connect is None
        else read_span(connect, "connect_timeout", least=MILLISECOND),
        follow_redirects=given(body.follow_redirects, defaults.follow_redirects),
        signing_secret=read_signing_secret(given(body.signing_secret, None), stored),
        secret_headers=secret_headers,
        secret_body=given(body.secret_body, False),
        max_queued=given(body.max_queued, defaults.max_queued),
        misfire_grace_us=_read_grace(body, defaults),
        retry_on_callback_failure=given(
            body.retry_on_callback_failure, defaults.retry_on_callback_failure
        ),
        on_orphan=given(body.on_orphan, defaults.on_orphan),
        delivery=given(body.delivery, defaults.delivery),
        max_runs=max_runs,
        history_limit=given(body.history_limit, defaults.history_limit),
        response_limit=_read_limit(body, defaults),
    )


def _read_job_options(
    body: TaskBody, defaults: Defaults, max_runs: int | None, work: JobWork
) -> Options:
    delivery = given(body.delivery, defaults.delivery)
    if delivery == "at_most_once" and work.queue is not None and work.queue.max_attempts > 1:
        raise InvalidError(
            "a task that is delivered at most once cannot have a job with several attempts",
            field="queue.max_attempts",
        )
    if work.node is not None:
        if given(body.delivery, "at_least_once") == "at_most_once":
            raise InvalidError(
                "a node job is tried on other nodes when one falls silent: "
                "delivery must be at_least_once where type is node",
                field="delivery",
            )
        delivery = "at_least_once"
    return Options(
        type="queue" if work.queue is not None else "node",
        queue=work.queue,
        node=work.node,
        template=given(body.template, True),
        max_queued=given(body.max_queued, defaults.max_queued),
        misfire_grace_us=_read_grace(body, defaults),
        on_orphan=given(body.on_orphan, defaults.on_orphan),
        delivery=delivery,
        max_runs=max_runs,
        history_limit=given(body.history_limit, defaults.history_limit),
        response_limit=_read_limit(body, defaults),
    )


def _read_grace(body: TaskBody, defaults: Defaults) -> Micros:
    grace = given(body.misfire_grace, None)
    if grace is None:
        return defaults.misfire_grace_us
    return read_span(grace, "misfire_grace", most=LONGEST_WAIT)


def _read_limit(body: TaskBody, defaults: Defaults) -> int | None:
    limit = given(body.response_limit, None)
    return defaults.response_limit if limit is None else limit or None


def _read_retry(body: RetryBody | None, defaults: Defaults) -> RetryPolicy:
    if body is None:
        return RetryPolicy(max_retries=defaults.max_retries)

    def span(value: Any, name: str, default: Micros) -> Micros:
        sent = given(value, None)
        return (
            default if sent is None else read_span(sent, f"retry_policy.{name}", most=LONGEST_WAIT)
        )

    return RetryPolicy(
        max_retries=given(body.max_retries, defaults.max_retries),
        initial_delay_us=span(body.initial_delay, "initial_delay", 5 * SECOND),
        strategy=given(body.strategy, "fixed"),
        max_delay_us=span(body.max_delay, "max_delay", HOUR),
        jitter_us=span(body.jitter, "jitter", 0),
    )


def _read_tags(tags: list[str]) -> tuple[str, ...]:
    unique = tuple(dict.fromkeys(tags))
    if len(",".join(unique)) > MAX_TAGS_TEXT:
        raise InvalidError(f"tags may have {MAX_TAGS_TEXT} characters together", field="tags")
    return unique
