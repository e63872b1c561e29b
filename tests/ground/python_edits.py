"""What can be changed in a Python function: every node of its body that has a neighbour, and how
one is put in its place."""

import ast
import functools
from collections.abc import Callable, Iterator

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

Functions = ast.FunctionDef | ast.AsyncFunctionDef
Edit = Callable[[], None]


def list_edits(function: Functions) -> Iterator[tuple[ast.expr | ast.stmt, str, Edit]]:
    """Everything that can be changed in a function's body, in a fixed order: the node, the change
    in words, and how to make it."""
    for parent, name, index, node in _walk(function):
        for new in _list_variants(parent, node):
            old, words = ast.unparse(node), ast.unparse(new)
            change = f"{_one_line(old)} -> {_one_line(words)}"
            yield node, change, functools.partial(_replace, parent, name, index, node, new)


def _walk(
    function: Functions,
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
