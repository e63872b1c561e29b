"""The caller's trace, as W3C traceparent says it. Nothing here makes one."""

import re
from collections.abc import Mapping

import msgspec


class Trace(msgspec.Struct, frozen=True):
    """A W3C traceparent as it came."""

    trace_id: str
    span_id: str
    flags: str

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"


_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?\Z")


def find_trace(headers: Mapping[bytes, bytes]) -> Trace | None:
    """Find the caller's trace, if it sent a sound one."""
    match = _TRACEPARENT.match(headers.get(b"traceparent", b""))
    if match is None or match[1] == b"ff" or (match[1] == b"00" and match[5]):
        return None
    if not match[2].strip(b"0") or not match[3].strip(b"0"):
        return None
    return Trace(match[2].decode(), match[3].decode(), match[4].decode())
