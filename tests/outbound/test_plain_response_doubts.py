"""Answers of the plain client that are doubtful, endless or broken off."""

import re

import pytest

from ksana.outbound.plain.response import MAX_HEAD
from tests.outbound.plain_reading import Read, read

NOT_HTTP = 8


OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "body"),
    [
        (
            b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2\r\nok\r\n0\r\n\r\n",
            b"ok",
        ),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n"
            b"2\r\nok\r\n0\r\n\r\n",
            b"ok",
        ),
        (
            b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n"
            b"2\r\nok\r\n0\r\n\r\n",
            b"ok",
        ),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", b"ok"),
        (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", b"ok"),
        (
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nConnection: keep-alive\r\n"
            b"Content-Length: 2\r\n\r\nok",
            b"ok",
        ),
        (OK + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", b"ok"),
        (OK + b"\r\n", b"ok"),
        (CHUNKED + b"2\r\nok\r\n0\r\n\r\nevil", b"ok"),
        (b"HTTP/1.1 204 No\r\nContent-Length: 2\r\n\r\nok", b""),
    ],
)
def test_an_answer_with_a_doubtful_end_is_read_but_its_connection_is_not_kept(
    data: bytes, body: bytes
) -> None:
    found = read(data)
    assert found.was_whole and found.answer.body == body and not found.can_keep


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2, 3",
        b"HTTP/1.1 200 OK\r\nContent-Length: -2",
        b"HTTP/1.1 200 OK\r\nContent-Length: +2",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0x2",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2 2",
        b"HTTP/1.1 200 OK\r\nContent-Length : 2",
        b"HTTP/1.1 200 OK\r\nContent-Length:",
        b"HTTP/1.1 200 OK\r\n Content-Length: 2",
        b"HTTP/1.1 200 OK\r\nX: a\rContent-Length: 2",
        b"HTTP/1.1 200 OK\r\nX: \0",
        "HTTP/1.1 200 OK\r\nContent-Length: ²".encode(),
        b"HTTP/1.1 20 OK",
        b"HTTP/1.1 2000 OK",
        b"HTTP/2 200",
        b"\r\nHTTP/1.1 200 OK",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x",
        b"ICY 200 OK",
        b"HTTP/1.1 099 OK",
    ],
)
def test_an_answer_that_could_be_read_in_two_ways_is_not_read_at_all(head: bytes) -> None:
    assert read(head + b"\r\n\r\nokk").error == NOT_HTTP


def test_a_folded_line_is_one_line() -> None:
    found = read(b"HTTP/1.1 302 Found\r\nLocation:\r\n /there\r\nContent-Length:\r\n\t2\r\n\r\nok")
    assert (found.answer.location, found.answer.body, found.can_keep) == (b"/there", b"ok", True)


def test_a_length_beyond_all_bounds_is_never_reached() -> None:
    found = read(b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\nok")
    assert not found.was_whole and found.error == 18, "cut short"
    capped = read(
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 30 + b"\r\n\r\n" + b"k" * 99, cap=10
    )
    assert (
        capped.was_whole
        and capped.answer.body == b"k" * 10
        and capped.answer.room < 0
        and not capped.can_keep
    )


@pytest.mark.parametrize("step", [1460, 65_536, 10_000_000])
@pytest.mark.parametrize(
    "flood",
    [
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 2 * MAX_HEAD,
        b"HTTP/1.1 200 OK\r\n" + b"a:\r\n" * MAX_HEAD,
        b"HTTP/1.1 200 OK\r\n" + b"X-Many: x\r\n" * MAX_HEAD + b"\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * MAX_HEAD,
        CHUNKED + b"1;" + b"x" * 3 * MAX_HEAD,
        CHUNKED + b"0\r\n" + b"X: y\r\n" * MAX_HEAD,
    ],
    ids=["one line", "short lines", "whole", "interim", "extension", "trailers"],
)
def test_headers_without_end_are_cut_off(flood: bytes, step: int) -> None:
    found = Read([flood[at : at + step] for at in range(0, len(flood), step)])
    assert found.error is not None and "headers" in found.message
    assert re.search(r"more than \d+ bytes", found.message)


def test_a_head_that_drips_in_costs_no_more_than_its_length() -> None:
    line = b"X-Drip: y\r\n"
    head = b"HTTP/1.1 200 OK\r\n" + line * 20_000
    found = Read([bytes([byte]) for byte in head] + [b"Content-Length: 2\r\n\r\n", b"ok"])
    assert found.was_whole and found.can_keep and found.answer.body == b"ok"


def test_tiny_chunks_take_no_more_room_than_what_they_hold() -> None:
    found = read(CHUNKED + b"2\r\nab\r\n" * 50_000 + b"0\r\n\r\n")
    assert found.was_whole and found.answer.body == b"ab" * 50_000 and found.can_keep


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok",
        CHUNKED + b"2\r\nok\r\n",
        CHUNKED,
    ],
)
def test_an_answer_that_breaks_off_is_not_an_answer(data: bytes) -> None:
    assert read(data).error == 18


def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    found = read(b"HTTP/1.1 200 OK\r\n\r\nhello")
    assert found.error is None and found.answer.body == b"hello" and not found.can_keep
    assert read(b"HTTP/1.1 100 Continue\r\n\r\n").error == 52, "an interim answer is no answer"
