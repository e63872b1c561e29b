"""The surfaces that `ksana serve` serves: one line each, in the order of their start."""

from collections.abc import Callable
from typing import Final

from ksana.boot.queue import queue_surface
from ksana.boot.surfaces import CoreServices, Surface
from ksana.boot.tasks import tasks_surface

SURFACES: Final[tuple[Callable[[CoreServices], Surface], ...]] = (tasks_surface, queue_surface)
