"""Which node gets a job (N5): has the model, labels match, not draining, a free slot, the model not
away; the least loaded first. Pure."""

import hashlib
from collections.abc import Iterable, Mapping
from typing import Literal

import msgspec

from ksana.base.instant import Instant
from ksana.domain.nodes.records import NodeRecord

Obstacle = Literal["TRIED", "NO_MODEL", "LABELS", "DRAINING", "MODEL_AWAY", "NO_SLOT"]
"""Why a node cannot have a job, the most lasting reason first."""

ORDER: tuple[Obstacle, ...] = ("NO_SLOT", "MODEL_AWAY", "DRAINING", "TRIED", "LABELS", "NO_MODEL")
"""The most interesting first: what would have to change for the job to run."""

_WORDS: dict[Obstacle, str] = {
    "TRIED": "{} had an attempt already",
    "NO_MODEL": "{} without the model",
    "LABELS": "{} with other labels",
    "DRAINING": "{} draining",
    "MODEL_AWAY": "{} that lately said the model is not available",
    "NO_SLOT": "{} without a free slot",
}


class Wanted(msgspec.Struct, frozen=True):
    """What a job asks of its node."""

    model: str
    labels: Mapping[str, str] = {}
    tried: tuple[str, ...] = ()
    key: str = ""
    """Spreads jobs over nodes that are equally loaded; the job's id."""


class Choice(msgspec.Struct, frozen=True):
    """The best node, or what stood in the way, counted by reason."""

    node: NodeRecord | None
    obstacles: dict[Obstacle, int] = {}

    def message(self, model: str) -> str:
        """One line for the caller: why there is no node."""
        if not self.obstacles:
            return "no node is connected"
        parts = [
            _WORDS[name].format(_count(self.obstacles[name]))
            for name in ORDER
            if name in self.obstacles
        ]
        return f"no node can take a job for model {model!r}: " + ", ".join(parts)


def find_obstacle(node: NodeRecord, wanted: Wanted, now: Instant) -> Obstacle | None:
    """Why this node cannot have the job now; None if it can."""
    if wanted.model not in node.models:
        return "NO_MODEL"
    labels = node.labels
    for name, value in wanted.labels.items():
        if labels.get(name) != value:
            return "LABELS"
    if node.node_id in wanted.tried:
        return "TRIED"
    if node.is_draining:
        return "DRAINING"
    if node.away and node.away.get(wanted.model, 0) > now:
        return "MODEL_AWAY"
    return "NO_SLOT" if node.running >= node.slots else None


def choose(nodes: Iterable[NodeRecord], wanted: Wanted, now: Instant) -> Choice:
    """Pick the least loaded node that can have the job."""
    best: NodeRecord | None = None
    best_load = (2.0, 0.0)
    obstacles: dict[Obstacle, int] = {}
    for node in nodes:
        obstacle = find_obstacle(node, wanted, now)
        if obstacle is not None:
            obstacles[obstacle] = obstacles.get(obstacle, 0) + 1
            continue
        load = (node.running / node.slots, node.load)
        if load < best_load or (
            load == best_load and best is not None and _wins(node, best, wanted)
        ):
            best, best_load = node, load
    return Choice(node=best, obstacles=obstacles)


def _wins(node: NodeRecord, best: NodeRecord, wanted: Wanted) -> bool:
    """Among equals chance decides, the same way on every instance: all of them sending to the first
    in the list would fill it before anybody looks again."""
    return _spread(node.node_id, wanted.key) > _spread(best.node_id, wanted.key)


def _spread(node_id: str, key: str) -> bytes:
    return hashlib.blake2b(f"{node_id}\n{key}".encode(), digest_size=8).digest()


def _count(number: int) -> str:
    return "one node" if number == 1 else f"{number} nodes"
