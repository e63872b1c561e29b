"""The settings by section: a module for the core, and one for each surface.

A surface's settings join the table by being a module here with `SECTIONS`: the name of each section
and its struct. Nothing in the core names one.
"""

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any


@cache
def find_sections() -> Mapping[str, type[Any]]:
    """The sections of all surfaces by name."""
    found: dict[str, type[Any]] = {}
    for name in sorted(module.name for module in iter_modules(__path__)):
        if name == "core":
            continue
        for section, kind in import_module(f"{__name__}.{name}").SECTIONS.items():
            if section in found:
                raise ValueError(f"two surfaces bring a section of settings called {section!r}")
            found[section] = kind
    return found
