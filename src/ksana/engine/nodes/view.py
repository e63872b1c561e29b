"""The view of all nodes that this instance chooses from.

Read from the fabric every second; between two readings it counts on what this instance itself
reserved and released. It may be wrong in both directions: a reservation decides, and what it says
is taken over here.
"""

from collections.abc import Iterator

from ksana.base.instant import Instant
from ksana.domain.nodes.choice import Choice, Wanted, choose
from ksana.domain.nodes.records import NodeRecord


class NodeView:
    """All nodes, by id and by model."""

    def __init__(self) -> None:
        self._nodes: dict[str, NodeRecord] = {}
        self._by_model: dict[str, dict[str, NodeRecord]] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[NodeRecord]:
        return iter(list(self._nodes.values()))

    def get(self, node_id: str) -> NodeRecord | None:
        """Find a node."""
        return self._nodes.get(node_id)

    def put(self, node: NodeRecord) -> None:
        """Take a node's record over."""
        old = self._nodes.get(node.node_id)
        if old is not None and old.models != node.models:
            self._unlist(old)
        self._nodes[node.node_id] = node
        for model in node.models:
            self._by_model.setdefault(model, {})[node.node_id] = node

    def remove(self, node_id: str) -> NodeRecord | None:
        """Forget a node."""
        node = self._nodes.pop(node_id, None)
        if node is not None:
            self._unlist(node)
        return node

    def choose(self, wanted: Wanted, now: Instant) -> Choice:
        """The node for a job, or why there is none."""
        choice = choose(self._by_model.get(wanted.model, {}).values(), wanted, now)
        if choice.node is None:
            return choose(self._nodes.values(), wanted, now)  # to say all the reasons
        return choice

    def count(self, node_id: str, change: int) -> None:
        """A slot was taken (1) or given back (-1)."""
        node = self._nodes.get(node_id)
        if node is not None:
            node.running = max(0, node.running + change)

    def fill(self, node_id: str) -> None:
        """The fabric said that no slot is free."""
        node = self._nodes.get(node_id)
        if node is not None:
            node.running = max(node.running, node.slots)

    def _unlist(self, node: NodeRecord) -> None:
        for model in node.models:
            listed = self._by_model.get(model)
            if listed is not None:
                listed.pop(node.node_id, None)
                if not listed:
                    del self._by_model[model]
