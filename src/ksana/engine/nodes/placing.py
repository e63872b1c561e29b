"""Finds a node for a job and holds a slot of it: the choice by the view, the decision by the
fabric."""

from typing import Final

from ksana.base.clock import Clock
from ksana.base.instant import SECOND, Micros
from ksana.domain.nodes.attempts import reservation_life
from ksana.domain.nodes.choice import Choice, Wanted
from ksana.domain.nodes.records import JobRequest, NodeRecord
from ksana.engine.nodes.parameters import NodeParameters
from ksana.engine.nodes.view import NodeView
from ksana.ports.fabric import Fabric, ReserveResult

_TRIES: Final = 16
"""Nodes asked for a slot in one go. The view is a second old at most, so a few are enough."""

_DOUBT_US: Final[Micros] = 5 * SECOND
"""How long a refusal is believed without another look."""


class Placing:
    """Reserves slots."""

    def __init__(
        self, fabric: Fabric, clock: Clock, view: NodeView, settings: NodeParameters
    ) -> None:
        self._fabric = fabric
        self._clock = clock
        self._view = view
        self._settings = settings

    async def reserve(self, request: JobRequest, tried: tuple[str, ...]) -> Choice:
        """Hold a slot of the best node; the choice names it, or says why there is none."""
        wanted = Wanted(model=request.model, labels=request.labels, tried=tried, key=request.job_id)
        choice = Choice(node=None)
        for _ in range(_TRIES):
            choice = self._view.choose(wanted, self._clock.now())
            node = choice.node
            if node is None:
                return choice
            # Counted before it is asked: others that choose meanwhile see the slot as taken.
            self._view.count(node.node_id, 1)
            try:
                result = await self._ask(request, node)
            except BaseException:
                self._view.count(node.node_id, -1)
                raise
            if result == "reserved":
                return choice
            self._view.count(node.node_id, -1)
            self._believe(node, request.model, result)
        return Choice(node=None, obstacles=choice.obstacles or {"NO_SLOT": _TRIES})

    async def release(self, node_id: str, job_id: str) -> None:
        """Give a slot back."""
        self._view.count(node_id, -1)
        await self._fabric.reservations.release(node_id, job_id)

    async def _ask(self, request: JobRequest, node: NodeRecord) -> ReserveResult:
        life_us = reservation_life(self._settings.limits, request.timeout_us)
        return await self._fabric.reservations.reserve(
            node.node_id, request.job_id, node.slots, request.model, life_us
        )

    def _believe(self, node: NodeRecord, model: str, result: ReserveResult) -> None:
        """Take over what the fabric said, until the next reading of the snapshots."""
        seen = self._view.get(node.node_id)
        if seen is None:
            return
        if result == "full":
            self._view.fill(node.node_id)
        elif result == "draining":
            seen.is_draining = True
        else:
            seen.away = {**seen.away, model: self._clock.now() + _DOUBT_US}
