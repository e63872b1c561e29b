"""Reading answers: however the bytes are cut, and whatever they say, the reading is the same and
ends."""

import itertools

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ksana.outbound.plain.response import read_common
from tests.outbound.plain_reading import Read, read

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({origin % (len(data) + 1) for origin in places}), len(data)]
    return [piece for piece in (data[a:b] for a, b in itertools.pairwise(edges)) if piece]


LINES = st.sampled_from(
    [
        b"Content-Length: 5",
        b"content-length:5",
        b"CONTENT-LENGTH:  5 ",
        b"Content-Length: 3",
        b"Content-Length: 5, 5",
        b"Content-Length: -5",
        b"Content-Length: 5x",
        b"Content-Length: 99999999999999999999",
        b"Content-Length:",
        b"Transfer-Encoding: chunked",
        b"transfer-encoding: CHUNKED",
        b"Transfer-Encoding: gzip, chunked",
        b"Transfer-Encoding: identity",
        b"Connection: close",
        b"Connection: keep-alive",
        b"connection: x, Close",
        b"Server: s",
        b"X-A: b\r\n c",
        b"X-B: b\n\tc",
        b"X : y",
        b"no colon",
        b"",
        b": nameless",
        b"X-Nul: \0",
        b"X-Cr: a\rb",
        b"Retry-After: 7",
        b"Location: /x",
        b"Content-Length-Not: 9",
        b"Date: now",
        b"Content-Type: text/plain",
    ]
)


STATUS = st.sampled_from(
    [
        b"HTTP/1.1 200 OK",
        b"HTTP/1.1 200",
        b"HTTP/1.0 200 OK",
        b"HTTP/1.1 204 No",
        b"HTTP/1.1 304 No",
        b"HTTP/1.1 503 Wait",
        b"HTTP/1.1 302 Found",
        b"HTTP/1.2 200 OK",
        b"HTTP/1.1 2000 OK",
        b"HTTP/1.1  200 OK",
        b"SSH-2.0",
        b"HTTP/1.1 101 Up",
    ]
)


INTERIM = st.sampled_from(
    [b"", b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\nLink: x\n\n" * 2]
)


BODIES = st.sampled_from(
    [
        b"hello",
        b"",
        b"hello world",
        b"5\r\nhello\r\n0\r\n\r\n",
        b"2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nTrailer: 1\r\n\r\n",
        b"5\r\nhel",
        b"zz\r\n",
        b"hello" + OK,
        b"5\r\nhello\r\n0\r\n\r\nmore",
        b"ffffffffffffffffffff\r\n",
        b"\r\n\r\n",
        b"\n\nhello",
    ]
)


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    end = draw(st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n"]))
    lines = [draw(STATUS), *draw(st.lists(LINES, max_size=4))]
    return draw(INTERIM) + end.join(lines) + end + end + draw(BODIES)


@settings(max_examples=600, deadline=None)
@given(
    answers(),
    st.lists(st.integers(0, 400), max_size=6),
    st.booleans(),
    st.sampled_from([None, 0, 3, 100]),
)
def test_an_answer_reads_the_same_however_it_is_cut(
    data: bytes, places: list[int], is_head: bool, keep: int | None
) -> None:
    whole = read(data, is_head=is_head, max_body=keep, cap=8)
    assert Read(cut(data, places), is_head=is_head, max_body=keep, cap=8).outcome == whole.outcome
    assert (
        Read([bytes([byte]) for byte in data], is_head=is_head, max_body=keep, cap=8).outcome
        == whole.outcome
    )


@settings(max_examples=300, deadline=None)
@given(
    st.binary(max_size=80),
    st.lists(st.integers(0, 100), max_size=3),
    st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", CHUNKED]),
)
def test_no_bytes_make_reading_fail_in_a_way_of_its_own(
    noise: bytes, places: list[int], start: bytes
) -> None:
    assert Read(cut(start + noise, places)).outcome == read(start + noise).outcome


@settings(max_examples=600, deadline=None)
@given(answers())
def test_the_short_way_reads_as_the_long_way_does(data: bytes) -> None:
    common = read_common(data)
    if common is not None:
        status, body = common
        assert read(data).outcome == (status, body, False, b"", b"", True)


COMMON = b"HTTP/1.1 %b OK\r\nServer: x\r\nDate: y\r\nContent-Type: z\r\n%b\r\n\r\nok"


@pytest.mark.parametrize(
    ("status", "lines", "is_common"),
    [
        (b"200", b"Content-Length: 2\r\nConnection: keep-alive", True),
        (b"503", b"content-length: 2", True),
        (
            b"200",
            b"Content-Length: 2\r\nContent-Length-Not: 3\r\nLocations: 4\r\nConnections: 5",
            True,
        ),
        (b"200", b"Content-Length: 3", False),
        (b"200", b"Content-Length: 1", False),
        (b"200", b"X: y", False),
        (b"200", b"Content-Length: 2\r\nContent-Length: 2", False),
        (b"200", b"Content-Length: 2\r\nConnection: close", False),
        (b"200", b"Content-Length: 2\r\nTransfer-Encoding: chunked", False),
        (b"204", b"Content-Length: 2", False),
        (b"302", b"Content-Length: 2\r\nLocation: /", False),
        (b"503", b"Retry-After: 1\r\nContent-Length: 2", False),
        (b"200", b"Content-Length: 2\r\nTransfer-Encoding : x", False),
        (b"200", b"Content-Length: 2\nX: y", False),
        (b"200", b"Content-Length: 2\r\n X: y", False),
        (b"200", b"Content-Length: 0002", True),
        (b"200", b"Content-Length: 2\r\nX: a\rb", False),
        (b"100", b"Content-Length: 2", False),
    ],
)
def test_the_short_way_is_for_answers_without_a_doubt(
    status: bytes, lines: bytes, is_common: bool
) -> None:
    assert read_common(COMMON % (status, lines)) == ((int(status), b"ok") if is_common else None)


@pytest.mark.parametrize("filler", [b"f", b"f" * 600], ids=["remembered", "too long for it"])
def test_a_head_that_comes_again_is_read_the_same(filler: bytes) -> None:
    data = COMMON % (b"200", b"X-Filler: %b\r\nContent-Length: 2" % filler)
    assert read_common(data) == read_common(data) == (200, b"ok")
    assert read_common(data[:-1]) is None, "its body may be another"
    assert read_common(data + b"!") is None
    assert read_common(data[:-2] + b"no") == (200, b"no")


class Judge:
    """The same answer as httptools reads it."""

    def __init__(self, data: bytes) -> None:
        self.body = b""
        self.is_whole = self.can_keep = False
        self.parser = httptools.HttpResponseParser(self)
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.is_whole = True
        self.can_keep = self.parser.should_keep_alive()


@settings(max_examples=300, deadline=None)
@given(
    st.integers(200, 599).filter(lambda status: status not in (204, 304)),
    st.lists(
        st.tuples(
            st.from_regex(r"X-[a-z!~]{1,9}", fullmatch=True),
            st.from_regex(r"[ -~]{0,20}", fullmatch=True),
        ),
        max_size=5,
    ),
    st.lists(st.binary(min_size=1, max_size=40), max_size=5),
    st.booleans(),
    st.booleans(),
)
def test_httptools_reads_a_sound_answer_the_same_way(
    status: int, headers: list[tuple[str, str]], parts: list[bytes], is_chunked: bool, is_last: bool
) -> None:
    body = b"".join(parts)
    lines = [f"HTTP/1.1 {status} Because", *(f"{name}: {value}" for name, value in headers)]
    lines.append("Transfer-Encoding: chunked" if is_chunked else f"Content-Length: {len(body)}")
    lines += ["Connection: close"] if is_last else []
    if is_chunked:
        body = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
    data = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
    ours, theirs = read(data), Judge(data)
    assert ours.was_whole and theirs.is_whole
    assert (ours.answer.status, ours.answer.body) == (theirs.parser.get_status_code(), theirs.body)
    assert ours.can_keep == theirs.can_keep == (not is_last)
