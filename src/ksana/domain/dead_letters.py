"""Dead letters: work of any surface that failed for good and waits for somebody to replay or
dismiss it. Pure; nothing here knows a surface.

Letters are grouped by error: what differs from one failure to the next (numbers, ids, addresses) is
left out of the text, and the rest is the group.
"""

import hashlib
import re
from functools import lru_cache
from typing import Final

import msgspec

from ksana.base.instant import Instant

MAX_ERROR: Final = 1024
MAX_GROUP: Final = 200
"""Characters of an error that tell groups apart."""
MAX_SOURCE: Final = 128

_SPACE: Final = re.compile(r"\s+")
_ID: Final = re.compile(r"(?<![0-9a-zA-Z])(?=[a-fA-F-]*[0-9])[0-9a-fA-F-]{8,}(?![0-9a-zA-Z])")
"""A hash or a UUID: eight hexadecimal digits or more, and a decimal one among them."""
_NUMBER: Final = re.compile(r"[0-9]+")

LetterPlace = tuple[Instant, int]
"""Where a letter stands in the list: when it died, and its id."""


class LetterRecord(msgspec.Struct, frozen=True, gc=False):
    """One dead letter, in the order its row is read."""

    id: int
    surface: str
    entity_id: str
    """The run or job that failed."""
    source: str
    """What it belongs to: a task, an addon, a type of object."""
    status: str
    """How it ended."""
    error: str
    error_key: int
    died_at: Instant

    @property
    def place(self) -> LetterPlace:
        """Where it stands in the list."""
        return self.died_at, self.id


class NewLetter(msgspec.Struct, frozen=True, gc=False):
    """A letter to be."""

    entity_id: str
    source: str
    status: str
    error: str


class LetterFilter(msgspec.Struct, frozen=True):
    """Which letters of a surface are wanted; None means any."""

    error_key: int | None = None
    source: str | None = None
    since: Instant | None = None
    until: Instant | None = None


class LetterGroup(msgspec.Struct, frozen=True):
    """The letters of a surface with one error."""

    surface: str
    error_key: int
    count: int
    """Up to a limit."""
    newest: LetterRecord
    oldest_at: Instant


def group_text(error: str) -> str:
    """The error without what differs from one failure to the next. Given such a text it answers the
    same."""
    text = _NUMBER.sub("#", _ID.sub("#", _SPACE.sub(" ", error[:MAX_ERROR])))
    return text.strip()[:MAX_GROUP].strip()


@lru_cache(maxsize=4096)
def group_key(error: str) -> int:
    """The group of an error. The key is a hash, so that every instance finds the same."""
    digest = hashlib.blake2b(group_text(error).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
