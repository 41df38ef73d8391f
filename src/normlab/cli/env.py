"""`normlab env`: what this machine is, which paths are used, and which extras are installed."""

from __future__ import annotations

import typer

from normlab.cli._options import Json

# Extra -> the package whose presence tells that it is installed.
EXTRAS = {
    "report": "plotly", "hf": "transformers", "theory": "scipy", "gguf": "gguf", "ray": "ray", "lightning": "lightning",
    "images": "PIL", "watch": "uvicorn",
}  # fmt: skip


def register(app: typer.Typer) -> None:
    @app.command()
    def env(json: Json = False) -> None:
        """Say what runs here. Versions, devices, the C kernels and why they are used or not, extras."""
        import platform

        import torch

        import normlab
        from normlab.errors import install_command, is_installed
        from normlab.report import console, print_json
        from normlab.schemes import depth_kernels
        from normlab.training.record import Conditions

        conditions = Conditions.here(torch.device("cpu"))
        kernels = depth_kernels.state()
        found = {
            "normlab": normlab.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "processor": f"{conditions.processor}, {conditions.threads} threads, torch uses {conditions.instructions}",
            "devices": _devices(),
            "kernels": kernels,
            **{
                f"extra {name}": "installed" if is_installed(package) else f"not installed: {install_command(name)}"
                for name, package in EXTRAS.items()
            },
        }
        if json:
            print_json(found)
            return
        width = max(map(len, found))
        for key, value in found.items():
            console().print(f"{key:<{width}}  {value}", markup=False, highlight=False, soft_wrap=True)


def _devices() -> str:
    import torch

    names = ["cpu"]
    if torch.cuda.is_available():
        names += [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    return ", ".join(names)
