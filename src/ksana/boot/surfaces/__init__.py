"""The surfaces that `ksana serve` serves: each module here brings one.

A surface joins the server by being a module here; nothing in the core names one. The module has
`make_surface(core)`, `ORDER` (loops start, and endpoints and figures are listed, by it), and
`DOCTOR_CHECKS` if `ksana doctor` should look at something for it. They are made in the reverse
order: one that comes first may build on what the later ones put into `core.offers`.
"""

from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

from ksana.boot.settings.table import Settings
from ksana.boot.surface import CoreServices, Surface

SurfaceFactory = Callable[[CoreServices], Surface]
DoctorCheck = Callable[[Settings], Awaitable[str]]
"""Answers one line when all is well, and raises SetupError saying what is not."""


def find_surfaces() -> tuple[SurfaceFactory, ...]:
    """Every surface's factory, in order."""
    return tuple(module.make_surface for module in _find_modules())


def make_surfaces(core: CoreServices) -> tuple[Surface, ...]:
    """Make every surface, last first; answer them in order."""
    made = [make(core) for make in reversed(find_surfaces())]
    return tuple(reversed(made))


def find_doctor_checks() -> Mapping[str, DoctorCheck]:
    """What the surfaces want looked at, by the name of the line."""
    checks: dict[str, DoctorCheck] = {}
    for module in _find_modules():
        checks |= getattr(module, "DOCTOR_CHECKS", {})
    return checks


def _find_modules() -> list[ModuleType]:
    modules = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
    return sorted(modules, key=lambda module: int(module.ORDER))
