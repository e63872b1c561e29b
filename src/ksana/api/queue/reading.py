"""How the queue's endpoints read what several bodies and queries have: ids, instants, durations,
proofs."""

import re
from typing import Final

from ksana.api.core.routing import to_uuid_text
from ksana.base.durations import parse_duration
from ksana.base.errors import InvalidError
from ksana.base.ids import read_token
from ksana.base.instant import Instant, Micros, parse_instant
from ksana.domain.leases import ANYBODY, Proof

_USUAL_ID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.ASCII)


def read_proof(token: str | None, worker_id: str | None) -> Proof:
    """What a caller shows of itself."""
    if token is None:
        return ANYBODY if worker_id is None else Proof(worker_id=worker_id)
    return Proof(token=read_token(token), worker_id=worker_id)


def read_id(field: str, text: str) -> str:
    """A UUID in a body."""
    if _USUAL_ID.fullmatch(text):  # as we wrote it; any other way to write a UUID is read in full
        return text
    try:
        return to_uuid_text(text)
    except ValueError as error:
        raise InvalidError(str(error), field=field) from None


def read_instant(field: str, text: str | None) -> Instant | None:
    """An instant, or None."""
    if text is None:
        return None
    try:
        return parse_instant(text)
    except ValueError as error:
        raise InvalidError(f"{field!r}: {error}", field=field) from None


def read_span(field: str, text: str) -> Micros:
    """A duration."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise InvalidError(f"{field!r}: {error}", field=field) from None
