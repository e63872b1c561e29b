"""Small rules of the client: what an error answer becomes, what is sent again, which address."""

import json
from typing import Any

import pytest

from ksana.client import wire
from ksana.client.errors import (
    ApiConflictError,
    ApiError,
    BusyError,
    ClientError,
    TransportError,
    from_answer,
    from_body,
)
from ksana.client.handlers import MAX_ERROR_CHARS, describe, one_line
from ksana.client.node_socket import _socket_url
from ksana.client.transport import MAX_SERVER_ERRORS, _may_repeat, _seconds

pytestmark = pytest.mark.spec("Q16")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("one\ntwo", "one"),
        ("  ", "ValueError"),
        ("x" * MAX_ERROR_CHARS, "x" * MAX_ERROR_CHARS),
        ("x" * (MAX_ERROR_CHARS + 1), "x" * (MAX_ERROR_CHARS - 1) + "…"),
        ("half \ud800", "half ?"),
    ],
)
def test_an_exception_is_told_in_one_line(text: str, line: str) -> None:
    assert one_line(ValueError(text)) == line
    told = describe(ValueError(text))
    assert told == (line if line == "ValueError" else f"ValueError: {line}")


@pytest.mark.parametrize("body", [b"<html>", b"[]", b"{}", b'{"code":1}', b"\xff", b'"code"'])
def test_a_body_that_is_not_the_servers_gives_an_empty_code(body: bytes) -> None:
    error = from_answer(502, body, 3.0)
    assert (error.status, error.code, error.retry_after_sec) == (502, "", 3.0)


def test_an_error_body_becomes_its_exception() -> None:
    body = {"code": "ILLEGAL_TRANSITION", "message": "no", "field": "f"}
    error = from_answer(409, json.dumps(body).encode())
    assert isinstance(error, ApiConflictError)
    assert (error.code, error.status) == ("ILLEGAL_TRANSITION", 409)
    assert "no" in str(error)
    assert "why" in str(from_body(400, {"code": "X", "detail": "why"}))
    assert "first" in str(from_body(400, {"code": "X", "message": "first", "detail": "why"}))
    assert from_body(None, {"code": "STORE_DOWN"}).status == 503
    assert from_body(None, {"code": "UNHEARD_OF"}).status == 409
    assert from_body(None, {"code": "UNHEARD_OF", "status": 418}).status == 418
    assert from_body(None, {"code": "STORE_DOWN", "status": "x"}).status == 503


@pytest.mark.parametrize("body", [b"", b"<html>", b'{"job":1}', b"\xff"])
def test_an_answer_that_cannot_be_read_may_have_been_acted_on(body: bytes) -> None:
    with pytest.raises(TransportError, match="is not what the API promises") as unread:
        wire.decode(body, wire.JobAnswer)
    assert unread.value.is_outcome_unknown is True


def test_an_error_keeps_what_the_server_said_of_it() -> None:
    body = {"code": "X", "message": "no", "field": "f", "current": {"a": 1}, "request_id": "r"}
    error = from_body(400, body)
    assert str(error) == "400 X: no"
    assert (error.field, error.current, error.request_id) == ("f", {"a": 1}, "r")
    assert error.extra == {"field": "f", "current": {"a": 1}, "request_id": "r"}
    assert from_body(400, {"code": "X", "detail": "why"}).extra == {}
    odd = from_body(400, {"code": "X", "field": 1, "request_id": 2})
    assert (odd.field, odd.request_id) == (None, None)


def test_a_page_of_a_proxy_is_told_in_its_first_words() -> None:
    assert str(from_answer(502, b"  bad gateway\n")) == "502: bad gateway"
    assert str(from_answer(502, b"")) == "502: no body"
    assert from_answer(502, b"x" * 201).message == "x" * 200


def api(status: int) -> ApiError:
    return from_body(status, {"code": "X"})


@pytest.mark.parametrize(
    ("failure", "is_repeatable", "failures", "most", "is_sent_again"),
    [
        (api(500), True, 1, None, True),
        (api(499), True, 1, None, False),
        (api(500), False, 1, None, False),
        (api(500), True, MAX_SERVER_ERRORS, None, False),
        (api(500), True, 2, 2, False),
        (api(500), True, 1, 2, True),
        (TransportError("x", is_outcome_unknown=True), False, 1, None, False),
        (TransportError("x", is_outcome_unknown=True), True, 1, None, True),
        (TransportError("x", is_outcome_unknown=False), False, 1, None, True),
        (from_answer(429, b""), False, 1, None, True),
        (from_answer(503, b""), False, 1, None, True),
        (from_answer(502, b""), False, 1, None, False),
        (from_answer(504, b""), True, 1, None, True),
    ],
)
def test_a_request_is_sent_again_where_it_cannot_be_done_twice(
    failure: ClientError, is_repeatable: bool, failures: int, most: int | None, is_sent_again: bool
) -> None:
    assert _may_repeat(failure, is_repeatable, failures, most) is is_sent_again
    assert isinstance(from_answer(503, b""), BusyError)


@pytest.mark.parametrize(
    ("header", "seconds"), [("5", 5.0), (" 5 ", 5.0), ("soon", None), (None, None), ("", None)]
)
def test_retry_after_is_read_in_seconds(header: Any, seconds: float | None) -> None:
    assert _seconds(header) == seconds


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("http://h:1/p/", "ws://h:1/p/s"),
        ("https://u:p@h", "wss://h/s"),
        ("ftp://h", None),
        ("http://", None),
        ("h:80", None),
    ],
)
def test_a_socket_has_the_address_of_the_server(base: str, url: str | None) -> None:
    if url is not None:
        assert _socket_url(base, "/s") == url
        return
    with pytest.raises(ValueError, match="is not an http"):
        _socket_url(base, "/s")
