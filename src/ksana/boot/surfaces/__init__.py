"""The surfaces that `ksana serve` serves: each module here brings one by `make_surface(core)`.

A surface joins the server by being a module here. Nothing in the core names one.
"""

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules

from ksana.boot.surface import CoreServices, Surface

SurfaceFactory = Callable[[CoreServices], Surface]


def find_surfaces() -> tuple[SurfaceFactory, ...]:
    """Every surface's factory, by the names of their modules."""
    names = sorted(module.name for module in iter_modules(__path__))
    return tuple(import_module(f"{__name__}.{name}").make_surface for name in names)
