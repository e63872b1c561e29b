"""Runs as they are sent, for tests of their requests."""

from typing import Any

from ksana.base.instant import SECOND, format_instant
from ksana.domain.tasks.call_records import read_headers
from ksana.domain.tasks.records import ClaimedRun, Task
from ksana.engine.tasks.requests import (
    Built,
    build_request,
)
from ksana.ports.caller import Request
from tests.unit.task_ground import NOW, a_claimed_run, a_run, a_task

UID = "0123456789abcdef00112233445566ff"
TRACE = "fedcba98765432100123456789abcdef"
BASE = "http://ksana/callbacks"
SENT_AT = NOW + 3 * SECOND
SCHEDULED = format_instant(NOW)
URL = "http://target/hook"
TOKEN = "ab" * 16
SIGNING = "whsec_c2VjcmV0LWtleS1vZi10aGUtdGVzdA=="

OURS = {
    "User-Agent": "ksana/9",
    "X-Ksana-Run-Id": UID,
    "X-Ksana-Job-Id": "j",
    "X-Ksana-Scheduled-At": SCHEDULED,
    "X-Ksana-Attempt": "1",
    "traceparent": f"00-{TRACE}-00112233445566ff-01",
}
"""The headers of every first attempt."""


def a_called_task(**members: Any) -> Task:
    return a_task(**{"target_url": URL, **members})


def held(task: Task | None = None, **members: Any) -> ClaimedRun:
    given: dict[str, Any] = {"uid": UID, "trace_id": TRACE, "attempt": 1}
    return a_claimed_run(task or a_called_task(), **given | members)


def build(run: ClaimedRun) -> Built:
    return build_request(run, SENT_AT, BASE, "ksana/9")


def request_of(**members: Any) -> Request:
    """The request of a first attempt at a task with these members."""
    return build(held(a_called_task(**members))).request


def sent_headers(built: Built) -> dict[str, str]:
    return dict(built.request.headers)


def shown_headers(built: Built) -> dict[str, str]:
    """What a run says of its call that was kept with these headers."""
    run = a_run(uid=UID, trace_id=TRACE, request_headers=built.kept_headers)
    shown: dict[str, str] = read_headers(run, "j")
    return shown


def asynchronous(task: Task, **members: Any) -> ClaimedRun:
    return held(task, exec_type="ASYNC", callback_token=TOKEN, **members)
