"""libcurl's error numbers in one clear line each. Pure: it is handed what was measured."""

import errno
from typing import Final

import msgspec
import pycurl

from ksana.base.durations import format_duration
from ksana.base.instant import MILLISECOND, Micros
from ksana.domain.tasks.outcome import clip_error
from ksana.ports.caller import ReplyKind, Timing


class Failure(msgspec.Struct, frozen=True):
    """What is known about a call that got no whole answer."""

    code: int
    message: str
    host: str
    port: int
    ip: str
    os_errno: int
    received: int
    has_status: bool
    is_connected: bool
    timing: Timing
    timeout_us: Micros
    connect_timeout_us: Micros


_REFUSED_CODES: Final = frozenset({pycurl.E_URL_MALFORMAT, pycurl.E_UNSUPPORTED_PROTOCOL})
_NOT_HTTP_CODES: Final = frozenset({pycurl.E_UNSUPPORTED_PROTOCOL, 8})
"""8 is CURLE_WEIRD_SERVER_REPLY. HTTP/0.9 answers come as 'unsupported protocol', told apart by the
first byte."""
_CONNECT_ERRORS: Final = {
    errno.ECONNREFUSED: "connection refused by {peer}",
    errno.EHOSTUNREACH: "no route to {peer}",
    errno.ENETUNREACH: "no network leads to {peer}",
    errno.ETIMEDOUT: "no connection to {peer}: the network gave up",
    errno.ECONNRESET: "connection reset by {peer}",
    errno.EMFILE: "no free file descriptor to connect to {peer}",
}


def describe(failure: Failure) -> tuple[ReplyKind, str]:
    """Choose the kind of the reply and write its line."""
    kind, line = _choose(failure)
    return kind, clip_error(line)


def _choose(failure: Failure) -> tuple[ReplyKind, str]:
    code, peer = failure.code, _peer(failure)
    if code == pycurl.E_OPERATION_TIMEDOUT:
        return "timeout", _describe_timeout(failure)
    if code == pycurl.E_COULDNT_RESOLVE_HOST:
        return "unreachable", f"name not found: {failure.host}"
    if code == pycurl.E_COULDNT_CONNECT:
        text = _CONNECT_ERRORS.get(failure.os_errno, "no connection to {peer}")
        return "unreachable", text.format(peer=peer)
    if code in _NOT_HTTP_CODES and failure.is_connected:
        return "unreachable", "the answer is not HTTP"
    if code in _REFUSED_CODES:
        return "refused", f"the URL cannot be called: {failure.message}"
    if code == pycurl.E_GOT_NOTHING:
        return "unreachable", f"{peer} closed the connection without an answer"
    if code == pycurl.E_PARTIAL_FILE:
        return "unreachable", f"the answer was cut short after {failure.received} bytes"
    if code in (pycurl.E_RECV_ERROR, pycurl.E_SEND_ERROR):
        return "unreachable", _describe_break(failure)
    if code in (
        pycurl.E_SSL_CONNECT_ERROR,
        pycurl.E_PEER_FAILED_VERIFICATION,
        pycurl.E_SSL_CACERT_BADFILE,
    ):
        return "unreachable", f"TLS with {failure.host}:{failure.port} failed: {failure.message}"
    return "unreachable", f"{failure.message or 'the call failed'} (curl {code})"


def _describe_timeout(failure: Failure) -> str:
    timing, limit = failure.timing, format_duration(failure.timeout_us)
    ended_us = timing.total_ms * MILLISECOND
    if not failure.is_connected:
        if ended_us + 50 * MILLISECOND < failure.timeout_us:
            limit = format_duration(failure.connect_timeout_us)
        if not failure.ip and timing.dns_ms == 0:
            return f"the name {failure.host} was not found within {limit}"
        return f"no connection to {_peer(failure)} within {limit}"
    what = "no whole answer" if failure.received or failure.has_status else "no answer"
    reached = f"connected after {timing.connect_ms:.0f} ms, {failure.received} bytes received"
    return f"{what} within {limit} ({reached})"


def _describe_break(failure: Failure) -> str:
    if (
        failure.os_errno in (0, errno.ECONNRESET, errno.EPIPE)
        and "reset" in failure.message.lower()
    ):
        return f"connection reset after {failure.received} bytes"
    return f"the connection broke after {failure.received} bytes: {failure.message}"


def _peer(failure: Failure) -> str:
    ip = failure.ip or failure.host
    return f"[{ip}]:{failure.port}" if ":" in ip else f"{ip}:{failure.port}"
