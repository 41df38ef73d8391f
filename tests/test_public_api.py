"""Every public name says what it is: the API reference is made of docstrings."""

import importlib
import inspect

import pytest

import normlab as nl

MODULES = (
    "normlab.schemes",
    "normlab.model",
    "normlab.tasks",
    "normlab.training",
    "normlab.dynamics",
    "normlab.testing",
    "normlab.report",
)


@pytest.mark.parametrize("name", sorted(set(nl._EXPORTS) - {"SCHEMES"}))
def test_a_public_name_has_a_docstring(name):
    value = getattr(nl, name)
    assert own_words(value), name
    if inspect.isclass(value):
        for method, member in vars(value).items():
            if inspect.isfunction(member) and not method.startswith("_"):
                assert inspect.getdoc(getattr(value, method)), f"nl.{name}.{method}"


@pytest.mark.parametrize("module", MODULES)
def test_what_a_room_exports_has_docstrings(module):
    room = importlib.import_module(module)
    for name in room.__all__:
        value = getattr(room, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert own_words(value), f"{module}.{name}"


@pytest.mark.parametrize("module", [*MODULES, *(f"normlab.{name}" for name in nl._MODULES)])
def test_a_room_has_a_docstring(module):
    assert importlib.import_module(module).__doc__, module


def own_words(value):
    """Its own docstring: what a dataclass makes of its fields, or a parent says, does not count."""
    text = vars(value).get("__doc__") if inspect.isclass(value) else inspect.getdoc(value)
    return bool(text) and not text.startswith(f"{getattr(value, '__name__', '')}(")
