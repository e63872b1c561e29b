"""What users may ask us to send."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ksana.base.errors import InvalidError
from ksana.domain.tasks.headers import (
    METHODS,
    check_headers,
    check_method,
    check_url,
    find_url_fault,
    split_url,
)


@pytest.mark.spec("T9")
def test_methods() -> None:
    for method in METHODS:
        check_method(method)
    for bad in ("get", "TRACE", "CONNECT", "", "GET ", "POST\r\n"):
        with pytest.raises(InvalidError) as caught:
            check_method(bad)
        assert caught.value.field == "method"


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com",
        "https://example.com:8443/a?b=c#d",
        "HTTP://Example.COM/",
        "http://[::1]:8080/x",
        "http://127.0.0.1",
        "http://a_b.test/",
        "http://localhost:9000",
        "http://刹那.example/路径",
        "http://x/{{run_id}}?t={{ scheduled_at }}",
        "http://{{host}}:{{port}}/",
        "http://x/{not-a-placeholder}",
        "http://x./",
        "http://x:/",
        "http://x/a@b",
        "http://x?u=a@b:c",
        "http://x/" + "a" * (2048 - 9),
    ],
)
def test_good_urls(url: str) -> None:
    check_url(url)


@pytest.mark.spec("T18", "X13", "X20")
@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "/path",
        "ftp://x/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "http:/x",
        "http:x",
        "http://",
        "http:///x",
        "http://user@x/",
        "http://user:pw@x/",
        "http://@x/",
        "http://x:0/",
        "http://x:65536/",
        "http://x:abc/",
        "http://x:8 0/",
        "http://x/a b",
        "http://x/a\r\nb",
        "http://x/\x00",
        "http://x\t/",
        "http://a\\b/",
        "http://good.test\\@evil.test/",
        "http://[::1/",
        "http://[zz]/",
        "http://[fe80::1%25eth0]/",
        "http://./",
        "http://x/" + "a" * 2048,
        "{{scheme}}://x/",
        " http://x/",
        "http://x/\ud800",
        "http://a<b/",
        "http://" + "a" * 300 + "/",
        "http://::1/",
        "http://x/\u2028",
    ],
)
def test_bad_urls_name_the_field(url: str) -> None:
    with pytest.raises(InvalidError) as caught:
        check_url(url, field="url")
    assert caught.value.field == "url" and caught.value.message


def test_a_url_is_taken_apart() -> None:
    assert split_url("HTTPS://Example.COM.:8443/A?b") == (
        "https",
        "example.com",
        8443,
        "https://example.com:8443/A?b",
    )
    assert split_url("http://[::1]/")[:3] == ("http", "::1", 80)
    assert split_url("http://刹那.test/é?q=%20")[1:] == (
        "xn--0crp53m.test",
        80,
        "http://xn--0crp53m.test/%C3%A9?q=%20",
    )


@given(st.text(max_size=60))
def test_no_text_breaks_the_url_check(text: str) -> None:
    fault = find_url_fault("http://" + text)
    assert fault is None or isinstance(fault, str)


@pytest.mark.spec("T18", "X20")
@pytest.mark.parametrize(
    "name",
    [
        "Host",
        "host",
        "Content-Length",
        "Transfer-Encoding",
        "Connection",
        "Proxy-Authorization",
        "proxy-connection",
        "X-Ksana-Run-Id",
        "x-ksana-anything",
        "webhook-id",
        "Webhook-Signature",
        "",
        "a b",
        "a:b",
        "a\r\nb",
        "ä",
        "a\x00",
        "x" * 300,
    ],
)
def test_forbidden_and_impossible_header_names(name: str) -> None:
    with pytest.raises(InvalidError) as caught:
        check_headers({name: "v"})
    assert caught.value.field == "headers"


@pytest.mark.spec("T18")
@pytest.mark.parametrize(
    "value", ["a\rb", "a\nb", "a\r\nX-Evil: 1", "a\x00b", "\x1b[0m", "\x7f", "\ud800"]
)
def test_no_control_byte_in_a_value(value: str) -> None:
    with pytest.raises(InvalidError):
        check_headers({"X-A": value})


@pytest.mark.spec("X13")
def test_good_headers_and_their_number() -> None:
    check_headers(
        {
            "Content-Type": "application/json",
            "Authorization": "Bearer x",
            "X-Empty": "",
            "X-Tab": "a\tb",
            "X-名".encode().hex(): "名",
        }
    )
    check_headers({f"X-{n}": "v" for n in range(64)})
    with pytest.raises(InvalidError, match="64"):
        check_headers({f"X-{n}": "v" for n in range(65)})
    with pytest.raises(InvalidError, match="must be a string"):
        check_headers({"X-A": 5})  # type: ignore[dict-item]
