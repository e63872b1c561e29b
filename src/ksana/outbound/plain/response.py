"""Reading one HTTP/1.1 answer from bytes as they come, however they are cut. No sockets here.

The head is read whole, by one expression that knows the grammar; a head in an older or looser form
(a bare line feed, a folded line, an interim answer) is put straight first. Whatever leaves a doubt
about where the answer ends makes the connection unfit for another call. Chunked bodies are taken
apart by httptools.
"""

import re
from functools import lru_cache
from typing import Any, Final

import httptools
import pycurl

MAX_HEAD: Final = 300 * 1024
"""Bytes of headers read, interim answers and trailers included; libcurl draws the line at the same
origin."""
_HUGE: Final = 1 << 62
_NO_BODY: Final = frozenset({204, 304})

_HEADS_KEPT: Final = 256
_LONGEST_KEPT: Final = 512
"""Heads are remembered, so many of up to so many bytes: a target's answers differ in little but
their date, and the same head is found at a quarter of the cost of reading it."""

_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]++"
_VALUE: Final = rb"[^\r\n\0]*+"
# Possessive throughout: a hostile head costs one pass, never a search.
_HEAD = re.compile(
    rb"HTTP/1\.1 ([2-9]\d\d)(?: "
    + _VALUE
    + rb")?+((?:\r\n"
    + _TOKEN
    + rb":"
    + _VALUE
    + rb")*+)\r\n\r\n"
)
_TELLS: Final = rb"(?i:content-length|transfer-encoding|connection|retry-after|location)"
_COMMON_HEAD = re.compile(
    rb"HTTP/1\.1 ([2-9]\d\d)(?: "
    + _VALUE
    + rb")?+(?:\r\n(?:(?![CTRLctrl])"
    + _TOKEN
    + rb":"
    + _VALUE
    + rb"|(?i:content-length: )(?(2)(?!))(\d{1,15}+)(?=\r)|(?i:connection: keep-alive)(?=\r)"
    + rb"|(?!"
    + _TELLS
    + rb"[ \t:])"
    + _TOKEN
    + rb":"
    + _VALUE
    + rb"))*+\r\n\r\n"
)
"""The head of nearly every answer: one Content-Length, and no other header that we heed. It is a
subset of `_HEAD`."""
_LOOSE_STATUS = re.compile(rb"HTTP/1\.([01]) ([1-9]\d\d)(?: " + _VALUE + rb")?+\Z")
_LOOSE_LINE = re.compile(_TOKEN + rb":" + _VALUE + rb"\Z")
_BLANK_LINE = re.compile(rb"\n\r?\n")
_FOLD = re.compile(rb"\r?\n[ \t]++")
_LINE_END = re.compile(rb"\r?\n")
_TELLING = re.compile(rb"\r\n(" + _TELLS + rb"):[ \t]*+([^\r\n]*+)")
"""The headers that we heed, among all."""

_CHUNKED_HEAD: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
"""Puts httptools where a chunked body begins; the true head was read by then."""


class ResponseError(Exception):
    """The answer cannot be read. `code` is what libcurl would say, for the same text."""

    def __init__(self, code: int, message: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def read_common(data: bytes) -> tuple[int, bytes] | None:
    """Read an answer that comes whole, in one piece and in the common form: its status and body.
    None for all others.

    The connection may be kept. An answer to a HEAD request is never read here.
    """
    end = data.find(b"\r\n\r\n") + 4
    head = data[:end]
    found = _read_head(head) if end <= _LONGEST_KEPT else _read_head.__wrapped__(head)
    if found is None:
        return None
    status, length = found
    body = data[end:]
    return (status, body) if len(body) == length else None


@lru_cache(maxsize=_HEADS_KEPT)
def _read_head(head: bytes) -> tuple[int, int] | None:
    """The status and the length of the body by a head in the common form; None for all others."""
    found = _COMMON_HEAD.fullmatch(head)
    if found is None or found[2] is None:
        return None
    status = int(found[1])
    return None if status in _NO_BODY else (status, int(found[2]))


class ResponseParser:
    """An answer on its way: `feed` it until it says True, or `finish` it when the connection has
    ended."""

    __slots__ = (
        "_body",
        "_buffer",
        "_chunks",
        "_hard_cap",
        "_in_body",
        "_is_head",
        "_left",
        "_overhead",
        "can_keep",
        "is_capped",
        "is_whole",
        "location",
        "received",
        "retry_after",
        "room",
        "status",
    )

    def __init__(self, is_head: bool, max_body: int | None, hard_cap: int) -> None:
        """Expect an answer; to a HEAD request it has no body."""
        self._is_head = is_head
        self._hard_cap = hard_cap
        self.room = hard_cap if max_body is None else min(max_body, hard_cap)
        self._buffer: bytearray | None = None
        self._chunks: Any = None
        self._in_body = self.is_whole = self.is_capped = False
        self._left: int | None = None
        self._overhead = self.received = self.status = 0
        self.can_keep = True
        self._body: bytes | bytearray = b""
        self.location = self.retry_after = b""

    def feed(self, data: bytes) -> bool:
        """Take bytes; tell whether the answer is whole. Raise ResponseError if it never will be."""
        if self._in_body:
            return self._take_body(data)
        if self._buffer is not None:
            data = self._join(self._buffer, data)
            if not data:
                return False
        head = _HEAD.match(data)
        if head is None:
            return self._take_loose(data)
        self._limit_head(head.end())
        self._heed(int(head[1]), head[2], False)
        return self._begin_body(data[head.end() :])

    def finish(self) -> None:
        """Take it that no more bytes come. Raise ResponseError unless the answer is whole now."""
        self.can_keep = False
        if not self._in_body:
            # A head that broke off says nothing that can be relied on.
            raise ResponseError(pycurl.E_PARTIAL_FILE if self._buffer else pycurl.E_GOT_NOTHING)
        if self._chunks is not None or self._left is not None:
            raise ResponseError(pycurl.E_PARTIAL_FILE)
        self.is_whole = True

    @property
    def body(self) -> bytes:
        """ResponseParser what was kept of the body."""
        return bytes(self._body)

    # --- the head ---

    def _join(self, buffer: bytearray, data: bytes) -> bytes:
        """Add to a head begun before. Answer all of it once a blank line is there.

        Only the new bytes are searched: a head that drips in byte by byte costs no more than one
        that comes at once.
        """
        seen = max(0, len(buffer) - 2)
        buffer += data
        if _BLANK_LINE.search(buffer, seen) is None:
            self._check_start(buffer)
            return b""
        self._buffer = None
        return bytes(buffer)

    def _take_loose(self, data: bytes) -> bool:
        """Read a head that is not in the common form, or not whole yet, and interim answers before
        it."""
        at = 0
        while True:
            end = _BLANK_LINE.search(data, at)
            if end is None:
                if at < len(data):
                    self._buffer = bytearray(data[at:])
                    self._check_start(self._buffer)
                return False
            self._limit_head(end.end() - at)
            status, lines, is_old = self._put_straight(data[at : end.start()].removesuffix(b"\r"))
            if status >= 200:
                self.can_keep = self.can_keep and b"\n\n" not in end[0]
                self._heed(status, lines, is_old)
                return self._begin_body(data[end.end() :])
            if status == 101:
                raise ResponseError(8)  # we never ask to switch protocols
            self._overhead += end.end() - at
            at = end.end()
            head = _HEAD.match(data, at)
            if head is not None:
                self._limit_head(head.end() - at)
                self._heed(int(head[1]), head[2], False)
                return self._begin_body(data[head.end() :])

    def _check_start(self, buffer: bytearray) -> None:
        if not b"HTTP/".startswith(buffer[:5]):
            raise ResponseError(8)
        self._limit_head(len(buffer))

    def _limit_head(self, size: int) -> None:
        if self._overhead + size > MAX_HEAD:
            raise ResponseError(
                pycurl.E_RECV_ERROR, f"Too large response headers: more than {MAX_HEAD} bytes"
            )

    def _put_straight(self, head: bytes) -> tuple[int, bytes, bool]:
        """Write a loose head in the common form: the status, the header lines, and whether it is
        HTTP/1.0."""
        first, *rest = _LINE_END.split(head, maxsplit=1)
        match = _LOOSE_STATUS.match(first)
        if match is None or (rest and rest[0][:1] in (b" ", b"\t")):
            raise ResponseError(8)
        if b"\n" in head.replace(b"\r\n", b""):
            self.can_keep = False
        lines = _LINE_END.split(_FOLD.sub(b" ", rest[0])) if rest else []
        if not all(map(_LOOSE_LINE.match, lines)):
            raise ResponseError(8)
        return int(match[2]), b"".join(b"\r\n" + line for line in lines), match[1] == b"0"

    def _heed(self, status: int, lines: bytes, is_old: bool) -> None:
        """Take from the head where the body ends and whether the connection outlives it."""
        length: int | None = None
        was_old = is_old
        is_chunked = is_other = is_last = False
        for name, value in _TELLING.findall(lines):
            first = name[:3].lower()
            value = value.rstrip(b" \t")
            if first == b"con" and len(name) == 14:
                length = _read_length(value, length)
            elif first == b"con":
                words = {word.strip(b" \t") for word in value.lower().split(b",")}
                is_last = is_last or b"close" in words
                is_old = is_old and b"keep-alive" not in words
            elif first == b"tra":
                is_chunked, is_other = _read_coding(value, is_chunked), True
            elif first == b"ret":
                self.retry_after = value
            else:
                self.location = self.location or value
        self.status = status
        # Two ways to tell the end, or a chunked answer of an old server: read as the standard says,
        # but only once.
        self.can_keep = self.can_keep and not (
            is_last or is_old or (is_other and (length is not None or was_old))
        )
        if self._is_head or status in _NO_BODY:
            length, is_chunked = 0, False
        if is_chunked:
            self._chunks = httptools.HttpResponseParser(self)
            self._chunks.feed_data(_CHUNKED_HEAD)
        elif length is not None and (not is_other or length == 0):
            self._left = length
        else:
            self.can_keep = False  # it ends with the connection

    # --- the body ---

    def _begin_body(self, rest: bytes) -> bool:
        self._in_body = True
        self._overhead = 0
        if rest or self._left == 0:
            return self._take_body(rest)
        return False

    def _take_body(self, data: bytes) -> bool:
        if self._chunks is not None:
            return self._take_chunks(data)
        left = self._left
        if left is not None:
            if len(data) > left:
                self.can_keep = False  # bytes that nobody asked for
                data = data[:left]
            self._left = left = left - len(data)
        if data:
            self.on_body(data)
        if left == 0 or self.is_capped:
            self.is_whole = True
        return self.is_whole

    def _take_chunks(self, data: bytes) -> bool:
        before = self.received
        try:
            self._chunks.feed_data(data)
        except httptools.HttpParserError:
            self.can_keep = False
            if not self.is_whole and not self.is_capped:
                raise ResponseError(
                    pycurl.E_RECV_ERROR, "Malformed encoding found in chunked-encoding"
                ) from None
        # Chunk extensions and trailers are not kept, but they must not go on for ever.
        self._overhead = self._overhead + len(data) if self.received == before else 0
        if not self.is_whole:
            self._limit_head(0)
        if self.is_whole or self.is_capped:
            self.is_whole = True
            self._chunks = None
        return self.is_whole

    def on_body(self, data: bytes) -> None:
        """Keep what there is room for and count the rest; httptools calls this too."""
        if self.is_capped:
            return
        self.received += len(data)
        if self.room > 0:
            kept = data if len(data) <= self.room else data[: self.room]
            if self._body:
                self._body = _extend(self._body, kept)
            else:
                self._body = kept
            self.room -= len(data)
        else:
            self.room = -1
        if self.received > self._hard_cap:
            self.is_capped = True
            self.can_keep = False

    def on_message_complete(self) -> None:
        """Called by httptools after the last chunk."""
        self.is_whole = True


def _extend(body: bytes | bytearray, data: bytes) -> bytearray:
    """Add to a body in place: a list would cost a hundred times what tiny pieces hold."""
    if isinstance(body, bytes):
        body = bytearray(body)
    body += data
    return body


def _read_length(value: bytes, before: int | None) -> int:
    """Read a Content-Length; the same number may be said again, another may not."""
    for part in value.split(b","):
        digits = part.strip(b" \t")
        if not digits.isdigit():
            raise ResponseError(8)
        length = int(digits) if len(digits) <= 18 else _HUGE
        if before is not None and before != length:
            raise ResponseError(8)
        before = length
    assert before is not None
    return before


def _read_coding(value: bytes, is_chunked: bool) -> bool:
    """Read a Transfer-Encoding: chunked, once, or identity; we asked for no other."""
    coding = value.lower()
    if coding == b"identity" and not is_chunked:
        return False
    if coding != b"chunked" or is_chunked:
        raise ResponseError(
            61, f"Unsolicited Transfer-Encoding ({value[:40].decode('ascii', 'replace')}) found"
        )
    return True
