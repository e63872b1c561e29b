"""The packages beside this one: each brings its statements (`*.sql`) and its tables (`TABLES`),
and says whose packs the events of its parts lie in (`EVENT_OWNERS`).

A surface joins the store by being a package here. Nothing in the core names one.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module, resources
from importlib.resources.abc import Traversable
from typing import Any

_ROOT = "ksana.store.sql"

TableFactory = Callable[[Any, Any], Any]
"""Makes a table for one transaction: `factory(session, tx)`."""

FindOwner = Callable[[Any, str], str | None]
"""Finds the id of the entity that another is a part of: `find(session, part_id)`."""


def list_packages() -> list[Traversable]:
    """The folders of the packages, the core's first."""
    folders = [entry for entry in resources.files(_ROOT).iterdir() if entry.is_dir()]
    packages = [folder for folder in folders if folder.joinpath("__init__.py").is_file()]
    return sorted(packages, key=lambda folder: (folder.name != "core", folder.name))


def list_statement_files() -> list[Traversable]:
    """Every file of statements."""
    files = [file for folder in list_packages() for file in folder.iterdir()]
    return sorted(
        (file for file in files if file.name.endswith(".sql")), key=lambda file: file.name
    )


@cache
def find_tables() -> Mapping[str, TableFactory]:
    """Every table by its name on the transaction."""
    tables: dict[str, TableFactory] = {}
    for folder in list_packages():
        for name, factory in import_module(f"{_ROOT}.{folder.name}").TABLES.items():
            if name in tables:
                raise ValueError(f"two packages bring a table called {name!r}")
            tables[name] = factory
    return tables


@cache
def find_event_owners() -> Mapping[str, tuple[str, FindOwner]]:
    """For each type of entity that is a part of another: the other's type, and what finds its
    id."""
    owners: dict[str, tuple[str, FindOwner]] = {}
    for folder in list_packages():
        owners |= getattr(import_module(f"{_ROOT}.{folder.name}"), "EVENT_OWNERS", {})
    return owners
