"""Who may act on what is claimed or leased, for every surface that hands out work. Pure.

A token is a random number, new with each claim and each lease, and shown to the holder alone. The
name of a worker is no secret, but it tells holders apart. Without either a caller is believed only
while nobody else can have held the thing: it was claimed once, and that claim lasts.
"""

from typing import Final, Literal

import msgspec

from ksana.base.ids import NO_TOKEN

Refusal = Literal["WRONG_TOKEN", "OTHER_WORKER", "NO_PROOF"]


class Proof(msgspec.Struct, frozen=True, gc=False):
    """What a caller shows of itself."""

    token: int | None = None
    worker_id: str | None = None


ANYBODY: Final = Proof()
"""A caller that shows nothing."""


def judge_holder(proof: Proof, token: int, worker_id: str | None, claims: int) -> Refusal | None:
    """None if this caller holds what has this token and this worker and was claimed so many times;
    else why not. All that is shown must fit: a wrong token is refused whatever the name says."""
    if proof.token is not None and (proof.token != token or token == NO_TOKEN):
        return "WRONG_TOKEN"
    if proof.worker_id is not None and proof.worker_id != worker_id:
        return "OTHER_WORKER"
    if proof.token is None and proof.worker_id is None and claims > 1:
        return "NO_PROOF"
    return None
