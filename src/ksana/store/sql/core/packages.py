"""The packages beside this one: each brings its statements (`*.sql`) and its tables (`TABLES`),
and says in which rows the events of its entities and their parts lie (`EVENT_ROWS`).

A surface joins the store by being a package here. Nothing in the core names one.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module, resources
from importlib.resources.abc import Traversable
from typing import Any

_ROOT = "ksana.store.sql"

TableFactory = Callable[[Any, Any], Any]
"""Makes a table for one transaction: `factory(session, tx)`."""

FindRows = Callable[[Any, str], Sequence[str]]
"""Finds under which ids the events of an entity lie besides its own: `find(session, id)`."""


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
def find_event_rows() -> Mapping[str, tuple[str, FindRows]]:
    """For each type of entity whose events lie in other rows than its own: the type of those, and
    what finds their ids."""
    found: dict[str, tuple[str, FindRows]] = {}
    for folder in list_packages():
        found |= getattr(import_module(f"{_ROOT}.{folder.name}"), "EVENT_ROWS", {})
    return found
