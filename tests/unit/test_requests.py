"""From a run to the request that is sent: headers, placeholders, body, and the way back."""

from typing import Any

import msgspec
import pytest

from ksana.base.instant import SECOND, format_instant
from ksana.domain.tasks.call_records import span_id_of
from ksana.engine.tasks.requests import values_of
from ksana.ports.caller import Request
from tests.unit.request_ground import (
    BASE,
    OURS,
    SCHEDULED,
    SENT_AT,
    TOKEN,
    TRACE,
    UID,
    URL,
    a_called_task,
    asynchronous,
    build,
    held,
    request_of,
    sent_headers,
    shown_headers,
)


def test_the_plainest_request_says_who_calls_and_why() -> None:
    built = build(held())
    assert built.request == Request(
        method="GET",
        url=URL,
        headers=tuple(OURS.items()),
        body=None,
        timeout_us=10 * SECOND,
        connect_timeout_us=5 * SECOND,
        follow_redirects=0,
        max_body=65_536,
        may_resend=True,
        secrets=None,
    )
    assert shown_headers(built) == OURS


def test_what_a_task_says_of_its_call_is_done() -> None:
    request = request_of(
        http_method="PUT",
        headers={"X-One": "1", "Content-Type": "text/csv"},
        body="a,b",
        timeout_us=3 * SECOND,
        connect_timeout_us=SECOND,
        follow_redirects=4,
        response_limit=None,
        delivery="at_most_once",
    )
    assert request == Request(
        method="PUT",
        url=URL,
        headers=(("X-One", "1"), ("Content-Type", "text/csv"), *OURS.items()),
        body=b"a,b",
        timeout_us=3 * SECOND,
        connect_timeout_us=SECOND,
        follow_redirects=4,
        max_body=None,
        may_resend=False,
        secrets=None,
    )


def test_connecting_takes_no_longer_than_the_whole_call() -> None:
    assert request_of(timeout_us=2 * SECOND).connect_timeout_us == 2 * SECOND
    long = request_of(timeout_us=2 * SECOND, connect_timeout_us=9 * SECOND)
    assert long.connect_timeout_us == 2 * SECOND


def test_a_run_whose_task_has_no_url_any_more_cannot_be_sent() -> None:
    with pytest.raises(ValueError, match="is of type queue since this run was made"):
        build(held(a_called_task(target_url="", type="queue")))


@pytest.mark.parametrize(
    ("attempt", "span"),
    [(0, "00112233445566ff"), (1, "00112233445566ff"), (2, "00112233445566fd")],
)
def test_each_attempt_is_a_span_of_its_own_in_the_trace_of_its_run(attempt: int, span: str) -> None:
    sent = sent_headers(build(held(attempt=attempt)))
    assert (sent["traceparent"], sent["X-Ksana-Attempt"]) == (f"00-{TRACE}-{span}-01", str(attempt))
    assert span_id_of(UID, attempt) == span


@pytest.mark.parametrize(
    ("body", "given", "content_type"),
    [
        (None, {}, None),
        ("", {}, None),
        ('{"a":1}', {}, "application/json"),
        ("plain", {}, "text/plain; charset=utf-8"),
        ("plain", {"content-TYPE": "text/csv"}, None),
    ],
)
def test_a_body_has_the_type_its_task_says_or_it_looks_like(
    body: str | None, given: dict[str, str], content_type: str | None
) -> None:
    request = request_of(body=body, headers=given)
    assert request.body == (body.encode() if body else None)
    assert dict(request.headers) == given | OURS | (
        {} if content_type is None else {"Content-Type": content_type}
    )


def test_a_run_may_have_a_body_of_its_own() -> None:
    task = a_called_task(body="of the task")
    assert build(held(task, override_body="of the run")).request.body == b"of the run"
    assert build(held(task, override_body="")).request.body is None


# Placeholders


def test_every_placeholder_has_its_value() -> None:
    run = held(a_called_task(id=9, job_id="jj"), run_id=61, attempt=3, callback_token=TOKEN)
    values = {
        "run_id": "61",
        "run_uid": UID,
        "task_id": "9",
        "job_id": "jj",
        "task_name": "t",
        "scheduled_at": SCHEDULED,
        "triggered_at": format_instant(SENT_AT),
        "attempt": "3",
        "trace_id": TRACE,
        "callback_url": f"{BASE}/{TOKEN}",
        "callback_token": TOKEN,
    }
    assert values_of(run, SENT_AT, SCHEDULED, BASE) == values
    timer = held(a_called_task(id=9, job_id="jj", dialect="T"), attempt=3)
    assert values_of(timer, SENT_AT, SCHEDULED, BASE) == values | {
        "run_id": UID,
        "callback_url": "",
        "callback_token": "",
    }


@pytest.mark.parametrize(
    ("given", "url", "header", "body"),
    [
        ({"target_url": f"{URL}/{{{{run_id}}}}"}, f"{URL}/60", "plain", b"plain"),
        ({"headers": {"X-Two": "2", "X-One": "{{run_id}}"}}, URL, "60", b"plain"),
        ({"body": "{{run_id}}"}, URL, "plain", b"60"),
        (
            {"body": '{"run_id": "<filled-by-service>"}'},
            URL,
            "plain",
            b'{"run_id": "60"}',
        ),
        ({"body": "{{run_id}}", "template": False}, URL, "plain", b"{{run_id}}"),
        ({}, URL, "plain", b"plain"),
    ],
    ids=["url", "header", "body", "word of old", "switched off", "none"],
)
def test_placeholders_are_filled_wherever_one_stands(
    given: dict[str, Any], url: str, header: str, body: bytes
) -> None:
    request = request_of(**{"headers": {"X-One": "plain"}, "body": "plain", **given})
    assert (request.url, dict(request.headers)["X-One"], request.body) == (url, header, body)


def test_a_url_is_filled_for_a_task_without_a_body() -> None:
    assert request_of(target_url=f"{URL}?at={{{{attempt}}}}").url == f"{URL}?at=1"


@pytest.mark.parametrize(
    ("content_type", "body", "filled"),
    [
        ("application/JSON", "[{{task_name}}]", b'[a\\"b]'),
        ("text/plain", "[{{task_name}}]", b'[a"b]'),
        (None, "[{{task_name}}]", b'[a\\"b]'),
        (None, "={{task_name}}", b'=a"b'),
    ],
)
def test_a_value_is_escaped_where_the_body_is_json(
    content_type: str | None, body: str, filled: bytes
) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    task = a_called_task(headers=headers, body=body)
    named = msgspec.structs.replace(
        task, definition=msgspec.structs.replace(task.definition, name='a"b')
    )
    assert build(held(named)).request.body == filled


# Runs that are called back


def test_a_target_that_calls_back_is_told_where_and_by_which_token() -> None:
    built = build(asynchronous(a_called_task(http_method="POST", body="x")))
    ours = {"Content-Type": "text/plain; charset=utf-8"} | OURS
    assert sent_headers(built) == ours | {
        "X-Callback-Url": f"{BASE}/{TOKEN}",
        "X-Callback-Token": TOKEN,
    }
    assert shown_headers(built) == ours | {"X-Callback-Url": "***", "X-Callback-Token": "***"}
    assert built.request.secrets is not None
    assert {TOKEN.encode(), TOKEN.upper().encode()} < set(built.request.secrets.values)


@pytest.mark.parametrize(
    ("exec_type", "token"), [("SYNC", TOKEN), ("ASYNC", None)], ids=["waits", "no token"]
)
def test_no_other_target_hears_of_callbacks(exec_type: str, token: str | None) -> None:
    built = build(held(a_called_task(body="x"), exec_type=exec_type, callback_token=token))
    assert "X-Callback-Url" not in sent_headers(built)
    assert built.request.secrets is None


@pytest.mark.parametrize(("dialect", "run_id"), [("C", 60), ("T", UID)])
def test_without_a_body_of_its_own_such_a_call_tells_the_facts(
    dialect: str, run_id: int | str
) -> None:
    task = a_called_task(dialect=dialect, http_method="POST")
    request = build(asynchronous(task, attempt=2)).request
    assert msgspec.json.decode(request.body or b"") == {
        "run_id": run_id,
        "run_uid": UID,
        "task_id": 7,
        "job_id": "j",
        "task_name": "t",
        "scheduled_at": SCHEDULED,
        "triggered_at": format_instant(SENT_AT),
        "attempt": 2,
        "trace_id": TRACE,
        "callback_url": f"{BASE}/{TOKEN}",
        "callback_token": TOKEN,
    }
    assert dict(request.headers)["Content-Type"] == "application/json"


@pytest.mark.parametrize(
    ("members", "body"),
    [
        ({"http_method": "GET"}, None),
        ({"http_method": "HEAD"}, None),
        ({"http_method": "POST", "body": ""}, None),
        ({"http_method": "POST", "body": "own"}, b"own"),
        ({"http_method": "POST", "target_url": f"{URL}/{{{{run_id}}}}"}, None),
    ],
    ids=["GET", "HEAD", "an empty one", "its own", "the URL says it"],
)
def test_such_a_call_has_no_body_where_it_has_its_own_or_can_have_none(
    members: dict[str, Any], body: bytes | None
) -> None:
    assert build(asynchronous(a_called_task(**members))).request.body == body
