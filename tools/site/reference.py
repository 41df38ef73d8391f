"""The API reference: every public name, by what it is for. mkdocstrings fills in signatures and docstrings."""

from __future__ import annotations

from collections.abc import Iterator

import normlab as nl

TOPICS: dict[str, tuple[str, tuple[str, ...]]] = {
    "schemes": (
        "Schemes and models",
        ("SCHEMES", "scheme", "register", "Transformer", "TransformerConfig", "Pipeline", "cost", "Cost"),
    ),
    "diagnose": ("Diagnosis", ("diagnose", "diagnose_change", "Monitor")),
    "surgery": ("Surgery", ("swap", "fold", "prune")),
    "experiments": ("Experiments", ("compare", "stability", "lengthgen", "claims")),
    "training": ("Averages and errors", ("EMA", "BEMA", "NormlabError", "ConfigError", "InputError")),
}
MODULES = {
    "protocol": ("The protocol of a scheme", ("normlab.schemes.base",)),
    "dynamics": (
        "Sphere dynamics",
        ("normlab.dynamics.flow.simulate", "normlab.dynamics.flow.scalar", "normlab.dynamics.laws.oracles"),
    ),
    "testing": ("Contracts for your own code", ("normlab.testing.contract", "normlab.testing.against")),
    "integrations": (
        "Hugging Face and Lightning",
        ("normlab.hf", "normlab.integrations.hf_trainer", "normlab.integrations.lightning"),
    ),
    "tasks": ("Tasks", ("normlab.tasks.base", "normlab.tasks.text")),
}


def covered() -> set[str]:
    """The public names that have a place."""
    return {name for _, names in TOPICS.values() for name in names}


def pages() -> Iterator[tuple[str, str]]:
    lines = [
        "# API reference",
        "`import normlab as nl` is cheap: each name below loads its module on first use.",
        *(
            f"- [{title}]({topic}.md): " + ", ".join(f"`nl.{name}`" for name in names)
            for topic, (title, names) in TOPICS.items()
        ),
        *(
            f"- [{title}]({topic}.md): " + ", ".join(f"`{name}`" for name in names)
            for topic, (title, names) in MODULES.items()
        ),
    ]
    yield "reference/index.md", "\n\n".join(lines[:2]) + "\n\n" + "\n".join(lines[2:]) + "\n"
    for topic, (title, names) in TOPICS.items():
        yield f"reference/{topic}.md", "\n\n".join([f"# {title}", *(_entry(name) for name in names)]) + "\n"
    for topic, (title, modules) in MODULES.items():
        parts = [f"## {module}\n\n::: {module}\n    options:\n      heading_level: 3\n" for module in modules]
        yield f"reference/{topic}.md", "\n\n".join([f"# {title}", *parts]) + "\n"


def _entry(name: str) -> str:
    return f"## nl.{name}\n\n::: {where(name)}\n    options:\n      heading_level: 3\n"


def where(name: str) -> str:
    """The module that really defines it: static analysis does not follow lazy names."""
    value = getattr(nl, name)
    module = getattr(value, "__module__", None)
    return f"{module}.{name}" if module and module.startswith("normlab") else f"{nl._EXPORTS[name]}.registry.{name}"
