"""Small faults in Python functions, one at a time: which there are, and how one is put in place.

A fault changes one node of a function's syntax tree: a comparison, a boundary by one, and for or,
a condition turned round, a call left out, a constant, a returned value. It is put in place by
giving the living function another code object, so everybody who imported it has the fault, and no
module is loaded anew. Texts for people (messages, docstrings, names with a blank) stay as they are.
"""

import ast
import functools
import importlib
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

SRC = Path(__file__).parents[2] / "src"

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Add,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_NEIGHBOURS = {"min": "max", "max": "min", "any": "all", "all": "any"}

_Functions = ast.FunctionDef | ast.AsyncFunctionDef
Edit = Callable[[], None]


class Fault(NamedTuple):
    """One thing to change in one function."""

    module: str
    function: str
    line: int
    change: str
    """The old and the new source of what is changed."""
    nth: int
    """Which of the faults of its function it is."""
    of: int
    """Which of those with this change it is, from 1."""
    source: str
    """The function as it is: another text makes other faults."""

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
        for nth, (node, change, _) in enumerate(_list_edits(function)):
            seen[change] = seen.get(change, 0) + 1
            faults.append(
                Fault(
                    module=module,
                    function=name,
                    line=node.lineno,
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
    function = dict(_list_functions(tree))[fault.function]
    _, change, edit = list(_list_edits(function))[fault.nth]
    assert change == fault.change
    edit()
    ast.fix_missing_locations(tree)
    whole = compile(tree, _file_of(fault.module), "exec", dont_inherit=True)
    living = find_function(fault.module, fault.function)
    code = next(
        (
            one
            for one in _list_code(whole)
            if one.co_qualname == fault.function
            and one.co_firstlineno == living.__code__.co_firstlineno
        ),
        None,
    )
    if code is None:
        raise ValueError(f"{fault.mark} is not made by its own text")
    living.__code__ = code
    _forget_answers()


def _forget_answers() -> None:
    """Empty every cache of the program: its answers were made without the fault."""
    for name, module in list(sys.modules.items()):
        if name.startswith("ksana."):
            for found in list(vars(module).values()):
                clear = getattr(found, "cache_clear", None)
                if callable(clear):
                    clear()


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


def _list_functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, _Functions]]:
    """Functions and methods by their qualified name. What a function defines is its own part; of a
    property's two functions only the first is taken; a Protocol's have nothing in them."""
    seen = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            if not any("Protocol" in ast.unparse(base) for base in node.bases):
                yield from _list_functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, _Functions) and node.name not in seen:
            seen.add(node.name)
            if not any("overload" in ast.unparse(one) for one in node.decorator_list):
                yield f"{prefix}{node.name}", node


# What can be changed


def _list_edits(function: _Functions) -> Iterator[tuple[ast.expr | ast.stmt, str, Edit]]:
    """Everything that can be changed in a function's body, in a fixed order: the node, the change
    in words, and how to make it."""
    for parent, name, index, node in _walk(function):
        for new in _list_variants(parent, node):
            old, words = ast.unparse(node), ast.unparse(new)
            change = f"{_one_line(old)} -> {_one_line(words)}"
            yield node, change, functools.partial(_replace, parent, name, index, node, new)


def _walk(
    function: _Functions,
) -> Iterator[tuple[ast.AST, str, int | None, ast.expr | ast.stmt]]:
    """Every statement and expression of the body with its place. Annotations, docstrings and what
    the type checker alone reads are passed over, and asserts: they tell the reader what holds."""
    pending: list[tuple[ast.AST, str, int | None, ast.AST]] = [
        (function, "body", index, node) for index, node in enumerate(function.body)
    ]
    pending.reverse()
    while pending:
        parent, name, index, node = pending.pop()
        if isinstance(node, ast.Assert | ast.JoinedStr) or _is_text(node):
            continue
        if isinstance(node, ast.expr | ast.stmt):
            yield parent, name, index, node
        children: list[tuple[ast.AST, str, int | None, ast.AST]] = []
        for field, value in ast.iter_fields(node):
            if field in ("annotation", "returns", "decorator_list") or _is_message(node, field):
                continue
            if isinstance(value, list):
                children += [
                    (node, field, at, one)
                    for at, one in enumerate(value)
                    if isinstance(one, ast.AST)
                ]
            elif isinstance(value, ast.AST):
                children.append((node, field, None, value))
        pending += reversed(children)


def _is_text(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and (isinstance(node.value.value, str) or node.value.value is ...)
    )


def _is_message(node: ast.AST, field: str) -> bool:
    """What is said to people when something is refused or logged is not looked at."""
    if isinstance(node, ast.Raise):
        return field == "cause"
    return (
        isinstance(node, ast.Call)
        and field == "args"
        and (ast.unparse(node.func).endswith("Error") or ast.unparse(node.func) == "cast")
    )


def _list_variants(parent: ast.AST, node: ast.expr | ast.stmt) -> Iterator[ast.AST]:
    """What could stand in a node's place."""
    yield from _statements(node) if isinstance(node, ast.stmt) else _expressions(node)
    is_test = isinstance(parent, ast.If | ast.IfExp | ast.While) and node is parent.test
    if is_test and isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.NamedExpr):
        yield ast.UnaryOp(ast.Not(), node)


def _expressions(node: ast.expr) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(ops=[op, *_]):
            yield _with(node, ops=[_COMPARISONS[type(op)](), *node.ops[1:]])
        case ast.BoolOp(op=op):
            yield _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.BinOp(op=op) if type(op) in _OPERATORS and not _is_union(node):
            yield _with(node, op=_OPERATORS[type(op)]())
        case ast.Call(func=ast.Name(id=name)) if name in _NEIGHBOURS:
            yield _with(node, func=ast.Name(_NEIGHBOURS[name], ast.Load()))
        case ast.Constant():
            yield from _constants(node)
        case _:
            pass


def _statements(node: ast.stmt) -> Iterator[ast.AST]:
    match node:
        case ast.AugAssign(op=op) if type(op) in _OPERATORS:
            yield _with(node, op=_OPERATORS[type(op)]())
        case ast.Expr(value=ast.Call() | ast.Await()):
            yield ast.Pass()
        case ast.Return(value=ast.expr() as value) if not _is_none(value):
            yield _with(node, value=ast.Constant(None))
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()
        case _:
            pass


def _constants(node: ast.Constant) -> Iterator[ast.AST]:
    match node.value:
        case bool(value):
            yield ast.Constant(not value)
        case int(value):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)
        case float(value):
            yield ast.Constant(value + 1.0)
        case str(value) if value and " " not in value:
            yield ast.Constant(f"{value}~")
        case _:
            pass


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _is_union(node: ast.BinOp) -> bool:
    """`int | None` in an isinstance is a type, not a sum."""
    return isinstance(node.op, ast.BitOr) and all(
        isinstance(side, ast.Name | ast.Attribute | ast.Constant | ast.BinOp)
        for side in (node.left, node.right)
    )


def _with(node: ast.AST, **changes: object) -> ast.AST:
    fields = dict(ast.iter_fields(node)) | changes
    return ast.copy_location(type(node)(**fields), node)


def _replace(parent: ast.AST, name: str, index: int | None, old: ast.AST, new: ast.AST) -> None:
    ast.copy_location(new, old)
    if index is None:
        setattr(parent, name, new)
    else:
        getattr(parent, name)[index] = new


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 90 else f"{line[:87]}..."
