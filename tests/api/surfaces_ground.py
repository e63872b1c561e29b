"""Every route of every surface over one store, without the engine."""

from typing import Any

from ksana.api.core.routing import AnyRoute
from ksana.api.queue.routes import Queue
from ksana.service.queue.explain import QueueExplainer
from ksana.service.queue.jobs import Limits
from ksana.service.queue.service import QueueService
from ksana.service.queue.stats import QueueStats
from tests.api.ground import CoreServices
from tests.api.tasks_ground import task_routes


def every_route(core: CoreServices, clock: Any) -> list[AnyRoute]:
    limits = Limits()
    queue = Queue(
        QueueService(core.store, clock, limits),
        QueueStats(core.store, limits),
        QueueExplainer(core.store, limits),
    )
    return [*task_routes(core, clock), *queue.routes()]
