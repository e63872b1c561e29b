"""What the plain client sends, and what it leaves to libcurl."""

import pytest

from ksana.domain.tasks.headers import Target, split_url
from ksana.outbound.plain import call
from ksana.outbound.plain.call import encode_request, find_route, read_wait
from ksana.ports.caller import Request


@pytest.mark.parametrize(
    ("url", "start"),
    [
        ("http://a.test", "GET / HTTP/1.1\r\nHost: a.test\r\n"),
        ("http://A.test:80?q=%c3#f", "GET /?q=%c3 HTTP/1.1\r\nHost: A.test\r\n"),
        ("http://a.test:8080/%c3/x?/../y", "GET /%C3/x?/../y HTTP/1.1\r\nHost: a.test:8080\r\n"),
        ("http://a.test./é", "GET /%C3%A9 HTTP/1.1\r\nHost: a.test\r\n"),
        ("http://[::1]:81/", "GET / HTTP/1.1\r\nHost: [::1]:81\r\n"),
        ("HTTP://127.0.0.1:/x//y", "GET /x//y HTTP/1.1\r\nHost: 127.0.0.1\r\n"),
    ],
)
def test_the_first_lines_are_those_that_libcurl_sends(url: str, start: str) -> None:
    route = find_route(url)
    assert route is not None
    assert (
        encode_request(route, Request("GET", url))
        == (start + "User-Agent: ksana\r\nAccept: */*\r\n\r\n").encode()
    )


@pytest.mark.parametrize(
    "url",
    [
        "https://a.test/",
        "http://a.test/x/../y",
        "http://a.test/%2e%2E/",
        "http://a.test/.",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://127.1/",
        "http://[0:0::1]/",
        "http://08.0.0.1/",
    ],
)
def test_what_libcurl_would_rewrite_is_left_to_libcurl(url: str) -> None:
    assert find_route(url) is None


@pytest.mark.spec("T14")
def test_urls_beyond_those_that_are_remembered_have_their_host_looked_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at: list[str] = []

    def count(url: str) -> Target:
        looked_at.append(url)
        return split_url(url)

    monkeypatch.setattr(call, "split_url", count)
    routes = [find_route(f"http://many.test:81/{n}?%c3") for n in range(100)]
    assert looked_at == ["http://many.test:81"]
    assert {route.origin for route in routes if route} == {("many.test", 81)}
    assert len({route.write_start("GET") for route in routes if route}) == 100


@pytest.mark.parametrize("name", ["Expect", "TE", "connection", "Host", "Transfer-Encoding"])
def test_a_header_that_changes_how_a_request_is_sent_is_left_to_libcurl(name: str) -> None:
    route = find_route("http://a.test/")
    assert (
        route is not None
        and encode_request(route, Request("GET", "http://a.test/", ((name, "x"),))) is None
    )


@pytest.mark.spec("T18")
@pytest.mark.parametrize(
    "pair", [("X-A", "a\r\nX-Evil: 1"), ("X\r\nY", "z"), ("X-A", "\x7f"), ("X-%s", "a\0")]
)
def test_no_control_byte_is_written_into_a_request(pair: tuple[str, str]) -> None:
    route = find_route("http://a.test/")
    assert route is not None
    with pytest.raises(ValueError, match="control character"):
        encode_request(route, Request("GET", "http://a.test/", (pair,)))


def test_a_percent_sign_in_a_header_is_sent_as_it_is() -> None:
    route = find_route("http://a.test/")
    assert route is not None
    sent = encode_request(
        route,
        Request(
            "PUT",
            "http://a.test/",
            (("X-%s", "100%d"), ("Accept", "x"), ("user-agent", "y")),
            b"%s",
        ),
    )
    assert (
        sent == b"PUT / HTTP/1.1\r\nHost: a.test\r\nX-%s: 100%d\r\nAccept: x\r\nuser-agent: y\r\n"
        b"Content-Length: 2\r\n\r\n%s"
    )


@pytest.mark.parametrize(
    ("raw", "wait"),
    [
        (b"5", "5"),
        (b"5x", "5"),
        (b"0", None),
        (b"-5", None),
        (b"+5", None),
        (b"99999999999999999999", None),
        (b"100000", "21600"),
        (b"Fri, 31 Dec 2100 23:59:59 GMT", "21600"),
        (b"Fri, 31 Dec 1999 23:59:59 GMT", None),
        (b"soon", None),
        (b"\xff", None),
    ],
)
def test_a_wait_is_read_as_libcurl_reads_it(raw: bytes, wait: str | None) -> None:
    assert read_wait(raw) == wait
