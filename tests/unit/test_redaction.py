"""Logs: one line per event, secrets masked, nothing that fools a terminal."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksana.base import log
from ksana.base.clock import VirtualClock
from ksana.boot.logs import start_logging
from ksana.boot.redaction import (
    escape_controls,
    mask_url,
    redact_headers,
    redact_member,
    redact_text,
)

pytestmark = pytest.mark.spec("X16")

KEY = "ksana_42d4a53c25e7_5169638ae22309e9ec4bb2dece0699f5"
TOKEN = "0123456789abcdef0123456789abcdef"
HIDDEN = "hunter2-secret"


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """Logging set up on a buffer, and taken down again."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    output = log.current()
    yield io.StringIO()
    log.redirect(output)
    root.handlers = handlers
    root.setLevel(level)
    logging.getLogger("uvicorn").setLevel(logging.NOTSET)


def read(lines: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines.getvalue().splitlines()]


@pytest.mark.parametrize(
    "text",
    [
        f"Authorization: Bearer {HIDDEN}",
        f"proxy-authorization: Basic {HIDDEN}",
        f"'Cookie': '{HIDDEN}'",
        f"X-API-Key={HIDDEN}",
        f"sent with bearer {HIDDEN}, refused",
        f"connect to mysql://app:{HIDDEN}@db/x failed",
        f"GET http://h/x?a=1&token={HIDDEN}&b=2",
    ],
)
def test_secrets_in_free_text_are_masked(text: str) -> None:
    clean = redact_text(text)
    assert HIDDEN not in clean
    assert "***" in clean


def test_keys_and_callback_tokens_are_masked_wherever_they_stand() -> None:
    assert KEY not in redact_text(f"the key ({KEY}) was used")
    assert redact_text(f"POST /api/v1/callbacks/{TOKEN}") == "POST /api/v1/callbacks/***"


def test_plain_text_is_left_alone() -> None:
    for text in (
        "basic training",
        "mail a@b.c",
        "http://h/p?page=1&status=FAILED#y",
        "ksana_store_up",
        "bearer of news",
        "key=1",
    ):
        assert redact_text(text) == text


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("mysql://u:p@h:1/d", "mysql://***@h:1/d"),
        ("postgresql://u:p@ss/w#rd@h/d", "postgresql://***@h/d"),
        ("redis://:p@h/0", "redis://***@h/0"),
        ("http://u:p@h/x?mail=a@b", "http://***@h/x?mail=***"),
        ("postgresql://h/d?user=u&password=p&x=1", "postgresql://h/d?user=***&password=***&x=***"),
        ("mysql://h/d?charset=utf8mb4", "mysql://h/d?charset=utf8mb4"),
        ("sqlite:////srv/a.db", "sqlite:////srv/a.db"),
        ("memory", "memory"),
    ],
)
def test_urls_lose_their_login(url: str, masked: str) -> None:
    assert mask_url(url) == masked


@pytest.mark.parametrize("name", ["token", "sessionId", "x-amz-signature", "code", "k%5B%5D", "q"])
def test_values_of_a_query_are_shown_by_a_list_of_names_not_hidden_by_one(name: str) -> None:
    clean = redact_text(f"calling https://h/p?page=2&{name}={HIDDEN}&limit=10 failed")
    assert clean == f"calling https://h/p?page=2&{name}=***&limit=10 failed"
    assert redact_member("query", f"{name}={HIDDEN}&page=2") == f"{name}=***&page=2"


def test_members_with_secret_names_are_masked_at_any_depth() -> None:
    value = {
        "a": [{"Authorization": HIDDEN}],
        "headers": [("X-API-Key", HIDDEN), ("X-Mine", "open")],
        "ok": 1,
    }
    clean = redact_member("request", value)
    assert HIDDEN not in json.dumps(clean)
    assert clean["headers"][1] == ["X-Mine", "open"]
    assert clean["ok"] == 1


def test_the_headers_a_task_calls_secret_are_masked() -> None:
    clean = redact_headers(
        [("X-Vault", HIDDEN), ("Accept", "a/b"), ("authorization", HIDDEN)], ["x-vault"]
    )
    assert clean == [("X-Vault", "***"), ("Accept", "a/b"), ("authorization", "***")]


@given(st.text(alphabet="ab:/?#@.%-é", max_size=20))
def test_a_password_in_a_database_url_never_shows(noise: str) -> None:
    assert HIDDEN not in mask_url(f"mysql://app:{noise}{HIDDEN}@db.example/ksana")


@pytest.mark.parametrize("form", ["json", "console"])
def test_every_event_is_one_line_without_terminal_tricks(lines: io.StringIO, form: str) -> None:
    start_logging("info", form, VirtualClock(), lines)
    tricks = "a\nb\r\x1b[31mred\x7f\x9b2J\u202edlrow\u2066x\u2028y\x00 \ud800"
    log.info(tricks, target_url=tricks, **{"odd\nkey": tricks})
    text = lines.getvalue()
    assert text.count("\n") == 1
    assert all(char.isprintable() for char in text.removesuffix("\n"))


def test_a_json_line_has_its_members_in_order_and_masked(lines: io.StringIO) -> None:
    clock = VirtualClock()
    start_logging("info", "json", clock, lines)
    log.warning(
        "sent", zeta=1, target_url=f"http://u:{HIDDEN}@h/", token=TOKEN, run_id=7, task_id=3
    )
    (line,) = read(lines)
    assert list(line)[:6] == ["ts", "level", "msg", "task_id", "run_id", "target_url"]
    assert line == {
        "ts": "2026-01-01T00:00:00Z",
        "level": "warning",
        "msg": "sent",
        "task_id": 3,
        "run_id": 7,
        "target_url": "http://***@h/",
        "zeta": 1,
        "token": "***",
    }


def test_a_fault_is_told_with_its_stack_masked(lines: io.StringIO) -> None:
    start_logging("info", "json", VirtualClock(), lines)
    try:
        raise ValueError(f"cannot reach redis://:{HIDDEN}@h")
    except ValueError as error:
        log.error("fell", exc_info=error)
    (line,) = read(lines)
    assert line["err"] == "ValueError: cannot reach redis://***@h"
    assert "test_redaction.py" in line["stack"]
    assert HIDDEN not in lines.getvalue()


def test_a_level_that_is_off_writes_nothing(lines: io.StringIO) -> None:
    start_logging("warning", "json", VirtualClock(), lines)
    log.info("quiet")
    logging.getLogger("some.library").info("quiet too")
    assert lines.getvalue() == ""


def test_the_standard_library_logs_the_same_way(lines: io.StringIO) -> None:
    start_logging("info", "json", VirtualClock(), lines)
    logging.getLogger("uvicorn.error").error("broken %s", f"Bearer {HIDDEN}")
    (line,) = read(lines)
    assert (line["level"], line["msg"], line["logger"]) == (
        "error",
        "broken Bearer ***",
        "uvicorn.error",
    )


def test_endless_text_is_cut(lines: io.StringIO) -> None:
    start_logging("info", "json", VirtualClock(), lines)
    log.info("x" * 100_000, err="y" * 100_000)
    assert len(lines.getvalue()) < 10_000


def test_escapes_leave_other_languages_readable() -> None:
    assert escape_controls("刹那 é ok") == "刹那 é ok"


def test_a_fraction_has_three_digits(lines: io.StringIO) -> None:
    start_logging("info", "json", VirtualClock(), lines)
    log.info("slow", latency_ms=1.2345678, data={"share": 2 / 3}, whole=3.0)
    (line,) = read(lines)
    assert (line["latency_ms"], line["data"], line["whole"]) == (1.235, {"share": 0.667}, 3.0)


def test_the_level_changes_while_the_server_runs(lines: io.StringIO) -> None:
    switch = start_logging("info", "json", VirtualClock(), lines)
    log.debug("not yet")
    switch.change(level="debug")
    log.debug("now")
    logging.getLogger("some.library").debug("this too")
    switch.change(level="error")
    log.warning("not any more")
    assert [line["msg"] for line in read(lines)] == ["now", "this too"]
