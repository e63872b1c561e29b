"""A task's row: how a definition becomes its columns. `definitions` makes a row a task again."""

from functools import lru_cache

import msgspec

from ksana.base.instant import SECOND
from ksana.domain.schedule import Cron
from ksana.domain.tasks.records import Definition, Options, RetryPolicy
from ksana.domain.tasks.sealing import find_seal
from ksana.store.sql.core.session import Row

_encode = msgspec.json.Encoder().encode
GONE_MARK = "#"
"""Stands before the id in the job id of a deleted task."""
DEFINITION_COLUMNS = (
    "name",
    "description",
    "cron_expr",
    "timezone",
    "schedule_json",
    "exec_type",
    "http_method",
    "target_url",
    "headers_json",
    "body_template",
    "timeout_seconds",
    "retry_policy_json",
    "max_concurrency",
    "concurrency_policy",
    "misfire_policy",
    "catchup_limit",
    "callback_method",
    "callback_timeout_sec",
    "tags",
    "options_json",
    "sealed_by",
)


@lru_cache(maxsize=1024)
def _write_once(part: RetryPolicy | Options) -> str:
    """Encode a part that most tasks have in common."""
    return _encode(part).decode()


def definition_row(definition: Definition) -> Row:
    schedule = definition.schedule
    return (
        definition.name,
        definition.description,
        schedule.expr if isinstance(schedule, Cron) else None,
        schedule.timezone if isinstance(schedule, Cron) else "UTC",
        _encode(schedule).decode(),
        definition.exec_type,
        definition.http_method,
        definition.target_url,
        _encode(definition.headers).decode() if definition.headers else "{}",
        definition.body,
        definition.timeout_us / SECOND,
        _write_once(definition.retry),
        definition.max_concurrency,
        definition.concurrency_policy,
        definition.misfire_policy,
        definition.catchup_limit,
        definition.callback_method,
        definition.callback_timeout_us / SECOND,
        "," + ",".join(definition.tags) + "," if definition.tags else "",
        _write_once(definition.options),
        find_seal(definition),
    )


def write_secrets(definition: Definition) -> dict[str, str | None]:
    """The columns that hold a task's secrets."""
    return {
        "headers_json": _encode(definition.headers).decode() if definition.headers else "{}",
        "body_template": definition.body,
        "options_json": _write_once(definition.options),
        "sealed_by": find_seal(definition),
    }
