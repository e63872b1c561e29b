"""What a run keeps of its calls is read again as it was shown before it was kept."""

from typing import Any

import msgspec
import pytest

from ksana.base.instant import format_instant
from ksana.domain.tasks.call_records import (
    CallEntry,
    name_call,
    read_attempts,
    read_headers,
    span_id_of,
    write_call,
    write_headers,
)
from ksana.domain.tasks.outcome import append_attempt
from ksana.domain.tasks.records import Run
from tests.unit.task_ground import NOW, a_run

UID = "0123456789abcdef00112233445566ff"
TRACE = "fedcba98765432100123456789abcdef"
AGENT = "ksana/9"

OLDER: dict[str, Any] = {
    "attempt": 1,
    "started_at": "2025-01-01T00:00:00Z",
    "ended_at": "2025-01-01T00:00:00.0015Z",
    "status": "RETRYING",
    "response_code": 503,
    "error": "HTTP 503 Service Unavailable",
    "instance": "one",
    "timing": {
        "dns_ms": 0.0,
        "connect_ms": 0.25,
        "tls_ms": 0.0,
        "first_byte_ms": 1.4567,
        "total_ms": 1.5,
    },
}
"""An entry of a run that is older than the arrays."""

LOST = {"attempt": 1, "started_at": None, "status": "LOST", "error": "gone", "instance": "two"}


def an_entry(**members: Any) -> CallEntry:
    given: dict[str, Any] = {
        "attempt": 3,
        "started_at": NOW + 1,
        "took_us": 1_234_567,
        "status": "RETRYING",
        "response_code": 503,
        "error": 'HTTP 503 "später" 漢',
        "instance": "one",
        "sends": 1,
        "dns_us": 1,
        "connect_us": 2_020,
        "tls_us": 0,
        "first_byte_us": 1_234_000,
        "total_us": 1_234_560,
    }
    return CallEntry(**given | members)


def kept(*entries: CallEntry | dict[str, Any]) -> str:
    """Attempts as they are stored."""
    texts = [
        write_call(one) if isinstance(one, CallEntry) else msgspec.json.encode(one)
        for one in entries
    ]
    return f"[{b','.join(texts).decode()}]"


def run_of(headers: str | None, **members: Any) -> Run:
    return a_run(**{"uid": UID, "trace_id": TRACE, "request_headers": headers, **members})


def ours(attempt: int = 1, span: str = "00112233445566ff") -> dict[str, str]:
    """The headers of every call, in their order."""
    return {
        "User-Agent": AGENT,
        "X-Ksana-Run-Id": UID,
        "X-Ksana-Job-Id": "j",
        "X-Ksana-Scheduled-At": format_instant(NOW),
        "X-Ksana-Attempt": str(attempt),
        "traceparent": f"00-{TRACE}-{span}-01",
    }


# Attempts


def test_an_attempt_is_shown_with_every_member_in_its_place() -> None:
    [shown] = read_attempts(kept(an_entry()))
    expected = {
        "attempt": 3,
        "started_at": "1970-01-01T00:16:40.000001Z",
        "ended_at": "1970-01-01T00:16:41.234568Z",
        "status": "RETRYING",
        "response_code": 503,
        "error": 'HTTP 503 "später" 漢',
        "instance": "one",
        "timing": {
            "dns_ms": 0.001,
            "connect_ms": 2.02,
            "tls_ms": 0.0,
            "first_byte_ms": 1234.0,
            "total_ms": 1234.56,
        },
    }
    assert msgspec.json.encode(shown) == msgspec.json.encode(expected), "in this order"


def test_an_attempt_without_an_answer_has_neither_code_nor_error() -> None:
    [shown] = read_attempts(kept(an_entry(response_code=None, error=None)))
    assert (shown["response_code"], shown["error"]) == (None, None)


@pytest.mark.parametrize(("sends", "told"), [(0, [0]), (1, []), (2, [2])])
def test_how_often_a_request_was_sent_is_told_where_it_is_not_once(
    sends: int, told: list[int]
) -> None:
    [shown] = read_attempts(kept(an_entry(sends=sends)))
    assert [value for name, value in shown.items() if name == "sends"] == told
    assert list(shown)[-1] == ("sends" if told else "timing")


def test_an_attempt_is_kept_without_the_names_of_its_members() -> None:
    assert kept(an_entry(error=None)) == (
        '[[3,1000000001,1234567,"RETRYING",503,null,"one",1,1,2020,0,1234000,1234560]]'
    )


def test_attempts_of_older_runs_and_of_another_kind_are_shown_as_they_are() -> None:
    entries: list[dict[str, Any]] = [
        OLDER,
        LOST,
        {"attempt": 3, "job_id": "j", "timing": {"total_ms": 7}},
    ]
    assert read_attempts(kept(*entries)) == entries


def test_a_run_that_began_before_an_upgrade_shows_all_its_attempts() -> None:
    text = append_attempt(kept(OLDER, LOST), write_call(an_entry(attempt=2)))
    text = append_attempt(text, write_call(an_entry(attempt=3, status="SUCCESS")))
    shown = read_attempts(text)
    assert shown[:2] == [OLDER, LOST]
    assert [(one["attempt"], one["status"]) for one in shown[2:]] == [
        (2, "RETRYING"),
        (3, "SUCCESS"),
    ]


@pytest.mark.parametrize("text", ["", "[", "no json", "[[1,2", '{"a":1', "null", "7", "[[1,2]]"])
def test_attempts_that_cannot_be_read_are_none(text: str) -> None:
    assert read_attempts(text) == []


def test_a_run_that_was_never_called_has_no_attempts() -> None:
    assert read_attempts("[]") == []


# Headers


def test_the_headers_of_every_call_are_not_kept_and_are_shown() -> None:
    text = write_headers(AGENT, 1, "", "")
    assert text == '["ksana/9",1,{}]'
    assert list(read_headers(run_of(text), "j").items()) == list(ours().items())
    assert name_call(UID, "j", format_instant(NOW), 1, TRACE, AGENT) == tuple(ours().items())


def test_own_headers_stand_before_those_of_every_call_and_the_others_behind() -> None:
    own = {"X-Team": "ops", "Authorization": "***", "Content-Type": "application/json"}
    behind = {"X-Callback-Url": "***", "X-Callback-Token": "***", "webhook-signature": "***"}
    text = write_headers(AGENT, 1, inside(own), inside(behind))
    shown = read_headers(run_of(text), "j")
    assert list(shown.items()) == [*own.items(), *ours().items(), *behind.items()]
    text = write_headers(AGENT, 1, "", inside(behind))
    shown = read_headers(run_of(text), "j")
    assert list(shown.items()) == [*ours().items(), *behind.items()]


def test_headers_are_shown_letter_by_letter() -> None:
    own = {"X-Quoted": 'a "b" \\ c', "X-Far": "漢 ☃ \u2028", "X-Odd": "[,{}]", "X-Empty": ""}
    shown = read_headers(run_of(write_headers(AGENT, 1, inside(own), "")), "j")
    assert list(shown.items()) == [*own.items(), *ours().items()]


def test_a_name_that_is_given_twice_is_shown_once_with_the_value_that_came_last() -> None:
    own = {"User-Agent": "mine", "X-Team": "ops", "webhook-id": "mine"}
    text = write_headers(AGENT, 1, inside(own), '"webhook-id":"theirs"')
    shown = read_headers(run_of(text), "j")
    # As a reader of JSON takes an object in which a name is repeated.
    as_json = f"{{{inside(own)},{inside(ours())},{inside({'webhook-id': 'theirs'})}}}"
    assert list(shown.items()) == list(msgspec.json.decode(as_json).items())
    assert (shown["User-Agent"], shown["webhook-id"]) == (AGENT, "theirs")


def test_each_attempt_is_shown_with_its_number_and_its_span() -> None:
    text = write_headers(AGENT, 2, "", "")
    assert read_headers(run_of(text), "j") == ours(2, "00112233445566fd")
    assert span_id_of(UID, 2) == "00112233445566fd"


def test_while_the_second_attempt_is_under_way_the_headers_are_those_of_the_first() -> None:
    run = run_of(write_headers(AGENT, 1, "", ""), attempt=2, status="RUNNING")
    assert read_headers(run, "j") == ours()


def test_headers_keep_the_agent_that_sent_them() -> None:
    shown = read_headers(run_of(write_headers("ksana/8", 1, "", "")), "j")
    assert shown == ours() | {"User-Agent": "ksana/8"}


def test_headers_of_older_runs_are_shown_as_they_are() -> None:
    older = {"X-Team": "ops", "User-Agent": "ksana/1", "X-Ksana-Attempt": "1"}
    shown = read_headers(run_of(msgspec.json.encode(older).decode()), "j")
    assert list(shown.items()) == list(older.items())


@pytest.mark.parametrize("text", [None, "", "null", '["ksana/9",1,{', "no json", "[1]", "[1,2,3]"])
def test_a_run_without_a_call_or_with_headers_that_cannot_be_read_shows_none(
    text: str | None,
) -> None:
    assert read_headers(run_of(text), "j") is None


def test_a_run_whose_task_is_unknown_shows_no_id_of_it() -> None:
    assert read_headers(run_of(write_headers(AGENT, 1, "", "")), None) == ours() | {
        "X-Ksana-Job-Id": ""
    }


def inside(headers: dict[str, str]) -> str:
    """The inside of a JSON object."""
    return msgspec.json.encode(headers).decode()[1:-1]
