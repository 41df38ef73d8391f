"""A step or a temperature that varies with depth, written as a formula in t: `1/(1+t)`, `1 + 4*min(t/2.5, 1)`.

The formula is read as a syntax tree of numbers, t and a few functions; nothing else can be said in it.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field

from normlab.errors import ConfigError

_BINARY: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
_FUNCTIONS: dict[str, Callable[..., float]] = {
    "exp": math.exp, "log": math.log, "sqrt": math.sqrt, "min": min, "max": max,
}  # fmt: skip
LONGEST = 200


@dataclass(frozen=True)
class Formula:
    """A function of t that remembers how it was written."""

    text: str
    tree: ast.expr = field(compare=False, repr=False)

    def __call__(self, t: float) -> float:
        try:
            value = _value(self.tree, float(t))
        except (ZeroDivisionError, OverflowError, ValueError):
            value = math.nan
        if isinstance(value, complex) or not math.isfinite(value):
            raise ConfigError(f"the formula {self.text!r} has no finite value at t = {t:g}")
        return float(value)

    def __str__(self) -> str:
        return self.text


def formula(text: str, *, option: str) -> Formula:
    """The formula of a text; `option` names it in errors. It must be positive at t = 0."""
    how = f"{option} takes a number or a formula in t, for example 1/(1+t); {text!r} is neither"
    if len(text) > LONGEST:
        raise ConfigError(f"{option}: a formula has at most {LONGEST} characters, and this one has {len(text)}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        _check(tree)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ConfigError(f"{how} ({', '.join(_FUNCTIONS)} and + - * / ** are known)") from None
    found = Formula(text.strip(), tree)
    if found(0.0) <= 0:
        raise ConfigError(f"{option}: {text!r} is {found(0.0):g} at t = 0, and must be positive")
    return found


def _check(node: ast.expr) -> None:
    """Raise for anything that is not arithmetic in t."""
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return
    if isinstance(node, ast.Name) and node.id == "t":
        return
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
        _check(node.operand)
        return
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        _check(node.left)
        _check(node.right)
        return
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and node.args:
        if node.keywords:
            raise ValueError("no keywords")
        for argument in node.args:
            _check(argument)
        return
    raise ValueError(f"{type(node).__name__} is not arithmetic")


def _value(node: ast.expr, t: float) -> float:
    if isinstance(node, ast.Constant):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.Name):
        return t
    if isinstance(node, ast.UnaryOp):
        inner = _value(node.operand, t)
        return -inner if isinstance(node.op, ast.USub) else inner
    if isinstance(node, ast.BinOp):
        return _BINARY[type(node.op)](_value(node.left, t), _value(node.right, t))
    assert isinstance(node, ast.Call)
    assert isinstance(node.func, ast.Name)
    return float(_FUNCTIONS[node.func.id](*(_value(argument, t) for argument in node.args)))
