"""A Python function that a setting names, `module:function`: found, and looked at before the start.
What is wrong stops the start and says what."""

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from ksana.base.errors import SetupError


def load_callable(spec: str, setting: str) -> Callable[[Any], Any]:
    """The function, which takes one argument. It is looked for among what is installed, then in the
    folder in which the server was started. Raise SetupError for anything else."""
    module_name, _, path = spec.partition(":")
    found: Any = _import(module_name, setting)
    for name in path.split("."):
        if not hasattr(found, name):
            raise SetupError(f"{setting}: {module_name} has no {path!r}")
        found = getattr(found, name)
    _check(found, spec, setting)
    function: Callable[[Any], Any] = found
    return function


def _import(name: str, setting: str) -> Any:
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)  # at the end: a file there must not stand in for what is installed
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise SetupError(
                f"{setting}: there is no module {error.name!r}, neither installed nor in {folder}"
            ) from None
        raise SetupError(f"{setting}: importing {name} failed: {error}") from error
    except Exception as error:
        kind = type(error).__name__
        raise SetupError(f"{setting}: importing {name} failed: {kind}: {error}") from error


def _check(found: Any, spec: str, setting: str) -> None:
    if not callable(found):
        raise SetupError(f"{setting}: {spec} is a {type(found).__name__}, not a function")
    if inspect.isclass(found):
        raise SetupError(f"{setting}: {spec} is a class; name a function, or an instance")
    if inspect.isgeneratorfunction(found) or inspect.isasyncgenfunction(found):
        raise SetupError(f"{setting}: {spec} yields; it must return its answer")
    try:
        signature = inspect.signature(found)
    except ValueError:  # written in C, and without a signature
        return
    try:
        signature.bind({})
    except TypeError:
        raise SetupError(
            f"{setting}: {spec} takes {signature}; it is called with one argument, the job"
        ) from None
