"""Every state of every entity and every legal move, as data.

A move is `(from, event, to)`. Each entity has one writer, which asks `require` before it writes;
the write itself is a compare-and-set on `from`. A move that is not listed here is illegal: it is
answered 409 ILLEGAL_TRANSITION, naming both states, and changes nothing. The diagrams in
docs/concepts/lifecycle.md are made from these tables.
"""

from collections.abc import Iterator
from typing import Final

import msgspec

from ksana.base.errors import ConflictError

Move = tuple[str, str, str]


class Lifecycle(msgspec.Struct, frozen=True):
    """One entity's states and moves."""

    entity: str
    initial: frozenset[str]
    final: frozenset[str]
    moves: tuple[Move, ...]
    pairs: frozenset[tuple[str, str]] = frozenset()
    """Every (from, to), made from the moves: asked once for each change of a state."""

    def __post_init__(self) -> None:
        pairs = frozenset((old, new) for old, _, new in self.moves)
        msgspec.structs.force_setattr(self, "pairs", pairs)

    @property
    def states(self) -> frozenset[str]:
        """All states."""
        return (
            self.initial
            | self.final
            | {state for move in self.moves for state in (move[0], move[2])}
        )

    def allows(self, old: str, new: str) -> bool:
        """Tell whether some event leads from old to new."""
        return (old, new) in self.pairs

    def require(self, old: str, new: str) -> None:
        """Raise ILLEGAL_TRANSITION unless some event leads from old to new. Every writer of a state
        asks this before it writes."""
        if (old, new) not in self.pairs:
            raise self.refuse(old, new)

    def require_change(self, old: str, new: str) -> None:
        """The same for a change that may keep the state and write what else is new; a final state
        is not written again."""
        if (old, new) not in self.pairs and (old != new or old in self.final):
            raise self.refuse(old, new)

    def sources(self, new: str) -> frozenset[str]:
        """The states from which `new` can be reached in one move."""
        return frozenset(move[0] for move in self.moves if move[2] == new)

    def targets(self, old: str) -> frozenset[str]:
        """The states that can follow `old`."""
        return frozenset(move[2] for move in self.moves if move[0] == old)

    def refuse(self, old: str, new: str) -> ConflictError:
        """The error for an illegal move; it says what is allowed."""
        allowed = ", ".join(sorted(self.targets(old))) or "nothing: it is final"
        return ConflictError(
            f"{self.entity.lower()} cannot go from {old} to {new}; "
            f"from {old} it may go to {allowed}",
            current={"state": old, "requested": new},
        )


def _moves(*rows: str) -> tuple[Move, ...]:
    """Read `FROM|FROM -event-> TO|TO` rows into moves."""

    def read() -> Iterator[Move]:
        for row in rows:
            left, rest = row.split(" -")
            event, right = rest.split("-> ")
            for old in left.split("|"):
                for new in right.split("|"):
                    yield old.strip(), event.strip(), new.strip()

    return tuple(read())


TASK: Final = Lifecycle(
    "TASK",
    initial=frozenset({"ENABLED", "DISABLED"}),
    final=frozenset({"DELETED"}),
    moves=_moves(
        "ENABLED -disable-> DISABLED",
        "DISABLED -enable-> ENABLED",
        "ENABLED|DISABLED -delete-> DELETED",
    ),
)

RUN: Final = Lifecycle(
    "RUN",
    initial=frozenset({"SCHEDULED", "RUNNING", "SKIPPED"}),
    final=frozenset(
        {
            "SUCCESS",
            "FAILED",
            "TIMEOUT",
            "CALLBACK_SUCCESS",
            "FAILED_TIMEOUT",
            "CANCELED",
            "SKIPPED",
        }
    ),
    moves=_moves(
        "SCHEDULED -start-> RUNNING",
        "SCHEDULED -skip-> SKIPPED",
        "SCHEDULED -cancel-> CANCELED",
        "SCHEDULED -fail-> FAILED",
        "RUNNING -succeed-> SUCCESS",
        "RUNNING -fail-> FAILED",
        "RUNNING -time_out-> TIMEOUT",
        "RUNNING -retry-> RETRYING",
        "RUNNING -accept-> CALLBACK_PENDING",
        "RUNNING -call_back-> CALLBACK_SUCCESS",
        "RUNNING -cancel-> CANCELED",
        "RETRYING -start-> RUNNING",
        "RETRYING -fail-> FAILED",
        "RETRYING -cancel-> CANCELED",
        "RETRYING -call_back-> CALLBACK_SUCCESS",
        "CALLBACK_PENDING -call_back-> CALLBACK_SUCCESS",
        "CALLBACK_PENDING -fail-> FAILED",
        "CALLBACK_PENDING -expire-> FAILED_TIMEOUT",
        "CALLBACK_PENDING -cancel-> CANCELED",
        # Only for a task with retry_on_callback_failure.
        "CALLBACK_PENDING -retry-> RETRYING",
    ),
)

JOB: Final = Lifecycle(
    "JOB",
    initial=frozenset({"QUEUED"}),
    final=frozenset({"DONE", "FAILED", "CANCELED", "TIMEOUT"}),
    moves=_moves(
        "QUEUED -claim-> CLAIMED",
        "QUEUED -lease-> RUNNING",
        "CLAIMED -prepare-> PREPARING",
        "CLAIMED|PREPARING -ask-> LEASE_PENDING",
        "CLAIMED|PREPARING|LEASE_PENDING -lease-> RUNNING",
        "CLAIMED|PREPARING|LEASE_PENDING -expire-> QUEUED",
        "QUEUED|CLAIMED|PREPARING|LEASE_PENDING -cancel-> CANCELED",
        "RUNNING -release-> DONE|FAILED|CANCELED|TIMEOUT",
        "RUNNING -requeue-> QUEUED",
        "RUNNING -expire-> TIMEOUT|CANCELED|QUEUED",
    ),
)

LEASE: Final = Lifecycle(
    "LEASE",
    initial=frozenset({"ACTIVE"}),
    final=frozenset({"EXPIRED", "RELEASED"}),
    moves=_moves("ACTIVE -release-> RELEASED", "ACTIVE -expire-> EXPIRED"),
)

GOV_JOB: Final = Lifecycle(
    "GOV_JOB",
    initial=frozenset({"queued"}),
    final=frozenset({"succeeded", "failed"}),
    moves=_moves(
        "queued -pull-> running",
        "queued -rule-> failed",
        "running -ack-> succeeded",
        "running -fail-> queued|dead_letter|failed",
        "running -expire-> queued|dead_letter",
        "dead_letter -requeue-> queued",
    ),
)

MEMORY: Final = Lifecycle(
    "memory",
    initial=frozenset({"candidate"}),
    final=frozenset({"archived"}),
    moves=_moves(
        "candidate -move-> verified|quarantine|stale_uncertain",
        "quarantine -move-> verified|rejected_poisoned",
        "verified -move-> active|stale|stale_uncertain",
        "active -move-> stale|stale_uncertain",
        "stale -move-> active|stale_uncertain|archived",
        "stale_uncertain -move-> active|verified|archived",
        "rejected_poisoned -move-> archived",
    ),
)

EXPERIENCE: Final = Lifecycle(
    "experience",
    initial=frozenset({"candidate"}),
    final=frozenset({"archived"}),
    moves=_moves(
        "candidate -move-> active|needs_review",
        "needs_review -move-> active|archived",
        "active -move-> needs_review|invalidated|archived",
        "invalidated -move-> archived",
    ),
)

COGNITION: Final = Lifecycle(
    "cognition",
    initial=frozenset({"candidate"}),
    final=frozenset({"archived"}),
    moves=_moves(
        "candidate -move-> active|archived",
        "active -move-> needs_revalidate|refuted",
        "needs_revalidate -move-> active|stale|refuted",
        "stale -move-> active|refuted|archived",
        "refuted -move-> archived",
    ),
)

NODE_JOB: Final = Lifecycle(
    "NODE_JOB",
    initial=frozenset({"CREATED"}),
    final=frozenset({"RELEASED"}),
    moves=_moves(
        "CREATED -dispatch-> DISPATCHED",
        "DISPATCHED -ack-> ACCEPTED",
        "DISPATCHED|ACCEPTED -start-> RUNNING",
        "CREATED|DISPATCHED|ACCEPTED|RUNNING -finish-> FINISHED",
        "DISPATCHED|ACCEPTED|RUNNING -again-> CREATED",
        "FINISHED -release-> RELEASED",
    ),
)

ALL: Final = (TASK, RUN, JOB, LEASE, GOV_JOB, MEMORY, EXPERIENCE, COGNITION, NODE_JOB)

RUN_ACTIVE: Final = frozenset({"RUNNING", "CALLBACK_PENDING", "RETRYING"})
"""What counts against a task's max_concurrency."""
