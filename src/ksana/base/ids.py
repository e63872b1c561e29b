"""Ids and tokens. Chance is from a secure source; nothing derives from the machine, and time only
where it is handed in."""

import os
import re
import struct
import threading
import uuid
from collections.abc import Sequence
from typing import Final

from ksana.base.instant import Instant

JOB_ID: Final = re.compile(r"[A-Za-z0-9._~-]{1,128}\Z", re.ASCII)
"""What a timer's own id may look like."""

_VARIANT: Final = {digit: "89ab"[int(digit, 16) & 3] for digit in "0123456789abcdef"}
_UUID_LENGTH: Final = 36
_VERSION_AT: Final = 14
"""The place of the version in the text of a UUID."""
_AHEAD: Final = 8192
NO_TOKEN: Final = 0
"""Of a claim or a lease older than tokens: no token fits it."""
_MOST_DIGITS: Final = 16
_UID = re.compile(r"[0-9a-f]{32}\Z", re.ASCII)


class _Pool(threading.local):
    """Random bytes drawn ahead, by thread. A question to the system gives the interpreter's lock
    away: on a busy event loop one for every id costs more than all the rest of the id."""

    drawn = b""
    place = 0


_pool = _Pool()


def _draw(count: int) -> bytes:
    start, end = _pool.place, _pool.place + count
    if end > len(_pool.drawn):
        _pool.drawn = os.urandom(max(_AHEAD, count))
        start, end = 0, count
    _pool.place = end
    return _pool.drawn[start:end]


def _forget_drawn() -> None:
    """After a fork two processes must not draw the same."""
    _pool.drawn, _pool.place = b"", 0


if hasattr(os, "register_at_fork"):  # there is no fork on Windows
    os.register_at_fork(after_in_child=_forget_drawn)


def new_bytes(count: int) -> bytes:
    """Make random bytes: a key, a nonce."""
    return _draw(count)


def new_uid() -> str:
    """Make 32 hex digits: the uid of a run, a callback token, a trace id."""
    return _draw(16).hex()


def new_run_uid(at: int) -> str:
    """Make a run's uid: 48 bits of milliseconds, then 80 random bits.

    Uids that grow with time are written at one end of their index; random ones touch a page of
    their own each.
    """
    return new_run_uids(at, 1)[0]


def new_run_uids(at: int, count: int) -> list[str]:
    """The same for many, with one question to the source of chance."""
    stamp, noise = f"{at // 1000 & 0xFFFFFFFFFFFF:012x}", _draw(10 * count).hex()
    return [stamp + noise[place : place + 20] for place in range(0, 20 * count, 20)]


def new_uuid() -> str:
    """Make a UUID string for queue jobs, leases and timer jobs."""
    return str(uuid.UUID(bytes=_draw(16), version=4))


def new_ordered_uuids(at: Instant, count: int) -> list[str]:
    """Make UUIDs (version 7) that sort by the instant, with 74 random bits each: new rows then land
    side by side in an index instead of all over it, which is most of the cost of a durable commit.
    They come in order, so that the rows of one batch are appended one after the other and fill
    their pages."""
    stamp = f"{at // 1000 & 0xFFFFFFFFFFFF:012x}"
    head = f"{stamp[:8]}-{stamp[8:]}-7"
    noise = _draw(10 * count).hex()
    parts = (noise[place : place + 20] for place in range(0, 20 * count, 20))
    return sorted(
        [f"{head}{part[:3]}-{_VARIANT[part[3]]}{part[4:7]}-{part[7:19]}" for part in parts]
    )


def new_ordered_uuid(at: Instant) -> str:
    """The same, one of them."""
    stamp, noise = f"{at // 1000 & 0xFFFFFFFFFFFF:012x}", _draw(10).hex()
    return f"{stamp[:8]}-{stamp[8:]}-7{noise[:3]}-{_VARIANT[noise[3]]}{noise[4:7]}-{noise[7:19]}"


def new_numbered_uuids(numbers: Sequence[int]) -> list[str]:
    """Make UUIDs (version 8) that carry a number of at most 60 bits and 62 random bits: who has one
    finds the row with that number, and no index over the ids is needed."""
    noise = _draw(8 * len(numbers)).hex()
    return [
        f"{number >> 28:08x}-{number >> 12 & 0xFFFF:04x}-8{number & 0xFFF:03x}"
        f"-{_VARIANT[part[0]]}{part[1:4]}-{part[4:]}"
        for number, part in zip(
            numbers,
            (noise[place : place + 16] for place in range(0, len(noise), 16)),
            strict=True,
        )
    ]


def number_of(text: str) -> int | None:
    """The number in an id that `new_numbered_uuids` made; None for a UUID of another kind. A text
    that is none at all may have one: whoever finds a row by it compares the whole id."""
    if len(text) != _UUID_LENGTH or text[_VERSION_AT] != "8":
        return None
    try:
        return int(text[:8] + text[9:13] + text[15:18], 16)
    except ValueError:
        return None


def new_token() -> int:
    """Make a fencing token: 62 random bits, so that it fits a signed 64-bit column and never
    repeats in practice."""
    return int.from_bytes(_draw(8)) >> 2 or 1


def new_tokens(count: int) -> list[int]:
    """Make as many fencing tokens, with one question to the source of chance."""
    return [number >> 2 or 1 for number in struct.unpack(f">{count}Q", _draw(8 * count))]


def show_token(token: int) -> str:
    """A fencing token as callers see it."""
    return f"{token:016x}"


def read_token(text: str) -> int:
    """A token as a caller sent it. What is none of ours becomes NO_TOKEN, which fits nothing."""
    if len(text) > _MOST_DIGITS or not text.isascii() or not text.isalnum():
        return NO_TOKEN
    try:
        return int(text, 16)
    except ValueError:
        return NO_TOKEN


def new_prefixed(prefix: str) -> str:
    """Make `job_…`, `aud_…` and the like: the prefix and 24 hex digits."""
    return f"{prefix}_{_draw(12).hex()}"


def is_uid(text: str) -> bool:
    """Tell whether the text has the form of a uid."""
    return _UID.match(text) is not None
