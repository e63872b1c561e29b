"""How a node job moves. A move is judged by state, attempt and node, from the table in `lifecycle`.

The adapters hold no table of their own: the memory adapter calls `judge`, the Lua script is handed
`sources` and `repeats`.
"""

from typing import Final, Literal

import msgspec

from ksana.base.instant import Micros
from ksana.domain.lifecycle import NODE_JOB
from ksana.domain.nodes.records import STATES, JobOutcome, JobProgress, JobState

MoveName = Literal["dispatch", "ack", "start", "finish", "again", "release"]

MoveResult = Literal["moved", "repeat", "stale", "illegal", "missing"]
"""moved: it happened. repeat: it had happened before, nothing changed. stale: the attempt or the
node is not the present one. illegal: not from this state. missing: no such job (any more)."""


class JobMove(msgspec.Struct, frozen=True):
    """One kind of move."""

    name: MoveName
    target: JobState
    sources: frozenset[str]
    repeats: frozenset[str]
    """States in which the same attempt has made this move already."""


def _read_moves() -> dict[MoveName, JobMove]:
    names: tuple[MoveName, ...] = ("dispatch", "ack", "start", "finish", "again", "release")
    found: dict[MoveName, JobMove] = {}
    for name in names:
        rows = [move for move in NODE_JOB.moves if move[1] == name]
        target: JobState = msgspec.convert(rows[0][2], JobState)
        later = STATES[STATES.index(target) :]
        # `again` begins a new attempt, so the old one can never have made it already.
        repeats = frozenset(later) if name != "again" else frozenset[str]()
        found[name] = JobMove(
            name=name,
            target=target,
            sources=frozenset(row[0] for row in rows),
            repeats=repeats,
        )
    return found


MOVES: Final = _read_moves()


class NodeJobChange(msgspec.Struct, frozen=True):
    """A move with everything it writes. Made by the home instance or by the node's instance."""

    name: MoveName
    attempt: int
    """The attempt that moves; another one in the record makes the change stale."""
    keep_us: Micros
    """How long the record is kept from now on."""
    node_id: str = ""
    """For `dispatch` the node that gets it; otherwise the node that says so, or empty for the home
    instance, which may speak for any."""
    progress: JobProgress | None = None
    outcome: JobOutcome | None = None


class Moved(msgspec.Struct, frozen=True):
    """What came of a change, and where the job stands now."""

    result: MoveResult
    state: str = ""
    attempt: int = 0

    @property
    def holds(self) -> bool:
        """Whether the job stands where the change wanted it, now or since before."""
        return self.result in ("moved", "repeat")


def judge(state: str, attempt: int, node_id: str, change: NodeJobChange) -> MoveResult:
    """Decide whether a change happens to a job that stands so."""
    move = MOVES[change.name]
    if attempt != change.attempt:
        return "stale"
    is_first_dispatch = change.name == "dispatch" and state == "CREATED"
    if change.node_id and not is_first_dispatch and node_id != change.node_id:
        return "stale"
    if state in move.sources:
        return "moved"
    return "repeat" if state in move.repeats else "illegal"


def attempt_after(change: NodeJobChange) -> int:
    """The attempt of the job once the change happened."""
    return change.attempt + 1 if change.name == "again" else change.attempt
