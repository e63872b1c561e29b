"""Small faults in Python functions, one at a time: which there are, and how one is put in place.

A fault changes one node of a function's syntax tree: a comparison, a boundary by one, and for or,
a condition turned round, a call left out, a constant, a returned value. It is put in place by
giving the living function another code object, so everybody who imported it has the fault, and no
module is loaded anew. Texts for people (messages, docstrings, names with a blank) stay as they are.
"""

import ast
import functools
import hashlib
import importlib
import inspect
import itertools
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.ground.python_edits import Functions, list_edits

SRC = Path(__file__).parents[2] / "src"


class Fault(NamedTuple):
    """One thing to change in one function."""

    module: str
    function: str
    line: int
    first: int
    """The first line of the statement it is in, or of what the statement begins with."""
    last: int
    begins: int
    """The first and the last line of its function."""
    ends: int
    change: str
    """The old and the new source of what is changed."""
    nth: int
    """Which of the faults of its function it is."""
    of: int
    """Which of those with this change it is, from 1."""
    source: str
    """The function as it is: another text makes other faults."""

    @property
    def span(self) -> tuple[str, int, int]:
        """Its module, and the lines of its function."""
        return self.module, self.begins, self.ends

    @property
    def mark(self) -> str:
        """What a test must have called to notice it."""
        return f"{self.module}:{self.function}"

    def __str__(self) -> str:
        again = f" (#{self.of})" if self.of > 1 else ""
        return f"{self.module}.{self.function}: {self.change}{again}"


def list_modules(floor: str) -> list[str]:
    """The modules of a floor."""
    files = sorted((SRC / "ksana" / floor).rglob("*.py"))
    return [".".join(file.relative_to(SRC).with_suffix("").parts) for file in files]


def list_faults(module: str) -> list[Fault]:
    """Every fault that can be put into a module's functions."""
    text = _text_of(module)
    faults = []
    for name, function in _list_functions(ast.parse(text)):
        seen: dict[str, int] = {}
        source = ast.unparse(function)
        spans = _list_spans(function)
        for nth, (node, change, _) in enumerate(list_edits(function)):
            seen[change] = seen.get(change, 0) + 1
            faults.append(
                Fault(
                    module=module,
                    function=name,
                    line=node.lineno,
                    **_find_span(spans, node.lineno),
                    begins=function.lineno,
                    ends=function.end_lineno or function.lineno,
                    change=change,
                    nth=nth,
                    of=seen[change],
                    source=source,
                )
            )
    return faults


def put_in_place(fault: Fault) -> None:
    """Give the living function the fault. ValueError if it cannot be had."""
    tree = ast.parse(_text_of(fault.module))
    path = _find_path(tree, fault.function)
    function = path[-1]
    assert isinstance(function, Functions)
    _, change, edit = next(itertools.islice(list_edits(function), fault.nth, None))
    assert change == fault.change
    edit()
    living = find_function(fault.module, fault.function)
    code = next(
        (
            one
            for one in _list_code(_compile_alone(tree, path, _file_of(fault.module)))
            if one.co_qualname == fault.function
            and one.co_firstlineno == living.__code__.co_firstlineno
        ),
        None,
    )
    if code is None:
        raise ValueError(f"{fault.mark} is not made by its own text")
    living.__code__ = code
    for forget in list_caches():
        forget()


def _find_path(tree: ast.AST, name: str) -> list[ast.stmt]:
    """The classes around a function, and the function."""
    path: list[ast.stmt] = []
    at: ast.AST = tree
    for part in name.split("."):
        at = next(
            one
            for one in ast.iter_child_nodes(at)
            if isinstance(one, ast.ClassDef | Functions) and one.name == part
        )
        path.append(at)
    return path


def _compile_alone(tree: ast.Module, path: list[ast.stmt], file: str) -> types.CodeType:
    """Compile one function where it stands, without what is beside it."""
    for outer, inner in itertools.pairwise(path):
        assert isinstance(outer, ast.ClassDef)
        outer.body = [inner]
    future = [
        one for one in tree.body if isinstance(one, ast.ImportFrom) and one.module == "__future__"
    ]
    alone = ast.fix_missing_locations(ast.Module([*future, path[0]], []))
    return compile(alone, file, "exec", dont_inherit=True)


@functools.cache
def list_caches() -> list[Callable[[], None]]:
    """How to empty every cache of the program that is loaded: its answers were made without the
    fault."""
    found = []
    for name, module in list(sys.modules.items()):
        if name.startswith("ksana."):
            ways = (getattr(one, "cache_clear", None) for one in list(vars(module).values()))
            found += [clear for clear in ways if callable(clear)]
    return found


def find_function(module: str, qualname: str) -> types.FunctionType:
    """A living function under whatever wraps it. ValueError if there is none."""
    found: Any = importlib.import_module(module)
    for part in qualname.split("."):
        found = vars(found).get(part)
        if found is None:
            raise ValueError(f"{module} has no {qualname}")
    while not isinstance(found, types.FunctionType):
        for way in ("__wrapped__", "__func__", "fget", "func"):
            inner = inspect.getattr_static(found, way, None)
            if inner is not None:
                found = getattr(found, way)
                break
        else:
            raise ValueError(f"{module}.{qualname} is no function")
    return found


@functools.cache
def digest_of(module: str) -> str:
    """A module's text in short."""
    return hashlib.blake2b(_text_of(module).encode(), digest_size=8).hexdigest()


@functools.cache
def _text_of(module: str) -> str:
    return Path(_file_of(module)).read_text("utf-8")


def _file_of(module: str) -> str:
    path = SRC.joinpath(*module.split("."))
    return str(path / "__init__.py" if path.is_dir() else path.with_suffix(".py"))


def _list_code(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _list_code(constant)


def _list_functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Functions]]:
    """Functions and methods by their qualified name. What a function defines is its own part; of a
    property's two functions only the first is taken; a Protocol's have nothing in them."""
    seen = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            if not any("Protocol" in ast.unparse(base) for base in node.bases):
                yield from _list_functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, Functions) and node.name not in seen:
            seen.add(node.name)
            if not any("overload" in ast.unparse(one) for one in node.decorator_list):
                yield f"{prefix}{node.name}", node


def _list_spans(function: Functions) -> list[tuple[int, int]]:
    """The lines of each statement; of one with a body, those before the body."""
    spans = []
    for node in ast.walk(function):
        if isinstance(node, ast.stmt) and node is not function:
            body = getattr(node, "body", None)
            last = max(node.lineno, body[0].lineno - 1) if body else node.end_lineno or node.lineno
            spans.append((node.lineno, last))
    return spans


def _find_span(spans: list[tuple[int, int]], line: int) -> dict[str, int]:
    """The shortest span with a line in it: tests that run none of it cannot notice."""
    around = [(last - first, first, last) for first, last in spans if first <= line <= last]
    _, first, last = min(around, default=(0, line, line))
    return {"first": first, "last": last}
