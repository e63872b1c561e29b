"""Finds a node for a job and holds a slot of it: the choice by the view, the decision by the
fabric."""

from typing import Final

from ksana.base.clock import Clock
from ksana.base.errors import UnavailableError
from ksana.base.instant import MILLISECOND, SECOND, Micros
from ksana.domain.nodes.attempts import reservation_life
from ksana.domain.nodes.choice import Choice, Wanted
from ksana.domain.nodes.records import Binding, JobRequest, NodeRecord
from ksana.engine.nodes.background import Background
from ksana.engine.nodes.parameters import NodeParameters
from ksana.engine.nodes.view import NodeView
from ksana.ports.fabric import Fabric, ReserveResult, SlotWish

_TRIES: Final = 16
"""Nodes asked for a slot in one go. The view is a second old at most, so a few are enough."""

_DOUBT_US: Final[Micros] = 5 * SECOND
"""How long a refusal is believed without another look."""

_PLENTY: Final = 2
"""A slot is asked for before the request is known to be new only where no more than one in so many
is taken: those who give it back must not stand in the way of others."""

_DOUBT_REPEATS_US: Final[Micros] = SECOND
"""So long after a repeat no slot is asked for in advance: repeats come in swarms."""

_ASK_AGAIN_US: Final[Micros] = 20 * MILLISECOND
_ASK_AGAIN: Final = 4

_FREE_WITHIN_US: Final[Micros] = 60 * SECOND
_FREE_AGAIN_US: Final[Micros] = SECOND


class Placing:
    """Reserves slots."""

    def __init__(
        self,
        fabric: Fabric,
        clock: Clock,
        view: NodeView,
        background: Background,
        settings: NodeParameters,
    ) -> None:
        self._fabric = fabric
        self._clock = clock
        self._view = view
        self._background = background
        self._settings = settings
        self._doubt_mono: Micros = 0

    async def reserve(self, request: JobRequest, tried: tuple[str, ...]) -> Choice:
        """Hold a slot of the best node; the choice names it, or says why there is none."""
        wanted = Wanted(model=request.model, labels=request.labels, tried=tried, key=request.job_id)
        choice = Choice(node=None)
        full: list[NodeRecord] = []
        for _ in range(_TRIES):
            choice = self._view.choose(wanted, self._clock.now())
            node = choice.node
            if node is None:
                break
            result = await self._count_and_ask(request, node)
            if result == "reserved":
                return choice
            if result == "full":
                full.append(node)
            self._believe(node, request.model, result)
        if full and not request.wait_us:
            # Whoever does not wait is gone for good: the slot may only have been held by a repeat
            # that gives it back at this moment.
            await self._clock.sleep_until(self._clock.now() + _ASK_AGAIN_US)
            for node in full[:_ASK_AGAIN]:
                if await self._count_and_ask(request, node) == "reserved":
                    return Choice(node=node)
        if choice.node is None:
            return choice
        return Choice(node=None, obstacles=choice.obstacles or {"NO_SLOT": _TRIES})

    async def _count_and_ask(self, request: JobRequest, node: NodeRecord) -> ReserveResult:
        # Counted before it is asked: others that choose meanwhile see the slot as taken.
        self._view.count(node.node_id, 1)
        try:
            result = await self._ask(request, node)
        except BaseException:
            # Nobody knows whether it is held.
            self._background.spawn(self.release(node.node_id, request.job_id))
            raise
        if result != "reserved":
            self.uncount(node.node_id)
        return result

    async def bind(
        self, request: JobRequest, bound_as: str, binding: Binding
    ) -> tuple[Binding, NodeRecord | None]:
        """Bind a request. Where a node has plenty of room a slot of it is asked for on the same
        way: most requests are new, and one that is not gives it back at once. Answers the node
        whose slot is held then."""
        ttl_us = self._settings.binding_ttl_us
        node = self._guess(request)
        if node is None:
            return await self._fabric.requests.bind(bound_as, binding, ttl_us), None
        self._view.count(node.node_id, 1)
        try:
            bound, result = await self._fabric.requests.bind_and_reserve(
                bound_as, binding, ttl_us, self._wish(request, node)
            )
        except BaseException:
            self._background.spawn(self.release(node.node_id, request.job_id))
            raise
        is_first = bound.job_id == binding.job_id
        if not is_first:
            self._doubt_mono = self._clock.monotonic() + _DOUBT_REPEATS_US
        if result == "reserved":
            if is_first:
                return bound, node
            self._background.spawn(self._give_back(node.node_id, request.job_id))
        else:
            self.uncount(node.node_id)  # not believed: repeats may hold what is not theirs
        return bound, None

    def _guess(self, request: JobRequest) -> NodeRecord | None:
        """A node that has so much room that a slot may be asked for in advance."""
        if self._clock.monotonic() < self._doubt_mono:
            return None
        wanted = Wanted(model=request.model, labels=request.labels, key=request.job_id)
        node = self._view.choose(wanted, self._clock.now()).node
        return None if node is None or (node.running + 1) * _PLENTY > node.slots else node

    async def _give_back(self, node_id: str, job_id: str) -> None:
        await self.release(node_id, job_id)
        self._fabric.signals.publish("nodes.free")

    async def hold(self, request: JobRequest, node_id: str) -> None:
        """Hold the slot again that a job should have on a node."""
        node = self._view.get(node_id)
        if node is not None:
            await self._ask(request, node)

    def uncount(self, node_id: str) -> None:
        """A slot was given back."""
        self._view.count(node_id, -1)

    async def release(self, node_id: str, job_id: str) -> None:
        """Give a slot back."""
        self.uncount(node_id)
        await self.free(node_id, job_id)

    async def free(self, node_id: str, job_id: str) -> None:
        """Give a slot back that is counted as free already; while the fabric is away, as soon as it
        is back, unless the slot has run out by then."""
        give_up_mono = self._clock.monotonic() + _FREE_WITHIN_US
        while True:
            try:
                await self._fabric.reservations.release(node_id, job_id)
                return
            except UnavailableError:
                if self._clock.monotonic() >= give_up_mono:
                    raise
            await self._clock.sleep_until(self._clock.now() + _FREE_AGAIN_US)

    async def _ask(self, request: JobRequest, node: NodeRecord) -> ReserveResult:
        wish = self._wish(request, node)
        return await self._fabric.reservations.reserve(
            wish.node_id, wish.job_id, wish.slots, wish.model, wish.ttl_us
        )

    def _wish(self, request: JobRequest, node: NodeRecord) -> SlotWish:
        return SlotWish(
            node_id=node.node_id,
            job_id=request.job_id,
            slots=node.slots,
            model=request.model,
            ttl_us=reservation_life(self._settings.limits, request.timeout_us),
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
