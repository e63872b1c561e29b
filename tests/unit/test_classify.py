"""What an answer means."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksana.base.instant import HOUR, SECOND, parse_instant
from ksana.domain.tasks.outcome import Verdict, classify, clip_error, parse_retry_after

NOW = parse_instant("2026-02-21T00:00:00Z")


@pytest.mark.spec("T11")
@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_any_2xx_is_success(status: int) -> None:
    assert classify("answered", status, None, NOW) == Verdict("success")


@pytest.mark.spec("T11")
@pytest.mark.parametrize(
    ("status", "line"),
    [
        (408, "HTTP 408 Request Timeout"),
        (429, "HTTP 429 Too Many Requests"),
        (500, "HTTP 500 Internal Server Error"),
        (503, "HTTP 503 Service Unavailable"),
        (599, "HTTP 599"),
    ],
)
def test_busy_and_broken_answers_are_tried_again(status: int, line: str) -> None:
    assert classify("answered", status, None, NOW) == Verdict("retry", line)
    assert classify("answered", status, "7", NOW) == Verdict("retry", line, 7 * SECOND)


@pytest.mark.spec("T11")
@pytest.mark.parametrize(
    "status", [100, 199, 300, 301, 302, 304, 400, 401, 403, 404, 409, 410, 422, 425, 499]
)
def test_any_other_answer_fails_at_once(status: int) -> None:
    verdict = classify("answered", status, "7", NOW)
    assert verdict.outcome == "fail" and verdict.retry_after_us is None
    assert verdict.error is not None and verdict.error.startswith(f"HTTP {status}")


@pytest.mark.spec("T11", "T12")
def test_no_answer_is_judged_by_its_kind() -> None:
    assert classify("timeout", None, None, NOW, "no answer within 10s") == Verdict(
        "timeout-retry", "no answer within 10s"
    )
    assert classify("unreachable", None, None, NOW, "name not found: x") == Verdict(
        "retry", "name not found: x"
    )
    assert classify("refused", None, None, NOW).outcome == "fail"
    assert classify("aborted", None, None, NOW).outcome == "retry"
    assert classify("answered", None, None, NOW).outcome == "fail"


@pytest.mark.spec("T11")
@pytest.mark.parametrize(
    ("text", "wait"),
    [
        ("120", 120 * SECOND),
        (" 5 ", 5 * SECOND),
        ("0", None),
        ("3600", HOUR),
        ("999999", HOUR),
        ("Sat, 21 Feb 2026 00:00:30 GMT", 30 * SECOND),
        ("Saturday, 21-Feb-26 00:00:30 GMT", 30 * SECOND),
        ("Sat Feb 21 00:00:30 2026", 30 * SECOND),
        ("Sun, 22 Feb 2026 00:00:00 GMT", HOUR),
        ("Fri, 20 Feb 2026 00:00:00 GMT", None),
        ("Sat, 31 Feb 2026 00:00:00 GMT", None),
        ("Sat, 21 Foo 2026 00:00:00 GMT", None),
        ("-5", None),
        ("1.5", None),
        ("soon", None),
        ("", None),
        ("٣", None),
        ("9" * 65, None),
        ("0" * 63 + "5", 5 * SECOND),
        ("0" * 64 + "5", None),
        ("1", SECOND),
        # Two digits of a year: the one that is not more than 50 years ahead.
        ("Saturday, 21-Feb-76 00:00:30 GMT", HOUR),
        ("Saturday, 21-Feb-77 00:00:30 GMT", None),
        (None, None),
    ],
)
def test_retry_after_in_all_its_forms(text: str | None, wait: int | None) -> None:
    assert parse_retry_after(text, NOW) == wait


@given(st.text(max_size=80))
def test_no_retry_after_breaks_us(text: str) -> None:
    wait = parse_retry_after(text, NOW)
    assert wait is None or 0 < wait <= HOUR


@pytest.mark.spec("X13")
def test_an_error_is_one_line_of_at_most_1024_characters() -> None:
    verdict = classify("unreachable", None, None, NOW, "a\r\nb " + "x" * 5000)
    assert (
        verdict.error is not None
        and len(verdict.error) == 1024
        and verdict.error.startswith("a b xxx")
    )
    assert clip_error("short") == "short"
    assert clip_error("x" * 1024) == "x" * 1024
    assert clip_error("x" * 1025) == "x" * 1023 + "…"


@pytest.mark.spec("X13", "X16")
def test_what_could_steer_a_terminal_is_shown_as_unprintable() -> None:
    assert clip_error("a\x1b[31mb\x00 ü") == "a�[31mb� ü"
