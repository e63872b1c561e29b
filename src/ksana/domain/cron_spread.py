"""`H` in cron expressions: a place within the field that a hash of the task's name chooses, so that
tasks written alike do not fire together. Pure; the same name always gets the same place.

    H          one value of the field; of days of a month 1 to 28, which every month has
    H(a-b)     one value from a to b
    H/n        every n, from a first one below n
    H(a-b)/n   the same from a to b

It is resolved when a schedule is set: what is stored is a plain expression.
"""

import hashlib
import re
from typing import Final

from ksana.base.errors import InvalidError
from ksana.domain.cron_fields import FIELD, split_fields

_NAMES: Final = ("second", "minute", "hour", "day of month", "month", "day of week")
_BOUNDS: Final = ((0, 59), (0, 59), (0, 23), (1, 28), (1, 12), (0, 6))
_HASHED: Final = re.compile(r"H(?:\((\d{1,2})-(\d{1,2})\))?(?:/(\d{1,2}))?\Z", re.ASCII)
_USES: Final = re.compile(r"(?:^|[\s,])H(?![A-Z0-9])", re.IGNORECASE)


def resolve_spread(expr: str, seed: str) -> str:
    """The expression with every `H` as the value that the seed chooses. One without is left as it
    is. Raise InvalidError for one that cannot be."""
    if not _USES.search(expr):
        return expr
    fields = split_fields(expr)
    return " ".join(
        ",".join(_resolve(part, number, seed) for part in field.split(","))
        for number, field in enumerate(fields)
    )


def _resolve(part: str, number: int, seed: str) -> str:
    if not part.startswith("H"):
        return part
    found = _HASHED.match(part)
    low, high = _BOUNDS[number]
    first = int(found[1]) if found and found[1] else low
    last = int(found[2]) if found and found[2] else high
    step = int(found[3]) if found and found[3] else 0
    width = last - first + 1
    if not found or not low <= first <= last <= high or not 0 <= step <= width or found[3] == "0":
        raise InvalidError(
            f"{_NAMES[number]}: {part[:64]!r} is not allowed; allowed with H are H,"
            f" H({low}-{high}), H/n and H({low}-{high})/n with n from 1 to the number of values",
            field=FIELD,
        )
    place = first + _hash(seed, number) % (step or width)
    return f"{place}-{last}/{step}" if step else str(place)


def _hash(seed: str, number: int) -> int:
    digest = hashlib.sha256(f"{number}:{seed}".encode()).digest()
    return int.from_bytes(digest[:8])


def seed_of(name: str, job_id: str) -> str:
    """What chooses a task's place: its name; of a timer without one its id."""
    return name or job_id
