"""Where a name leads: a folder here, or a model of the Hugging Face hub. A misspelt one is answered at once."""

from __future__ import annotations

from pathlib import Path

from normlab.errors import InputError, nearest, require

PATIENCE = 5.0  # seconds for one question to the hub; transformers asks six times and waits half a minute


def there_is_none(source: str) -> InputError:
    """The sentence for a path that does not exist, with the nearest name that does."""
    return InputError(
        f"there is no folder or file {source!r}{_meant(Path(source))}; pass a model folder, a .gguf file or a Hugging Face id"
    )


def is_not_here(source: str) -> str:
    return f"there is no folder {source!r} here{_meant(Path(source), parents=False)}"


def must_load_from_cache(source: str) -> bool:
    """Asks the hub once whether it has this model. True: it does not answer, but an earlier copy is on this disk."""
    absent = is_not_here(source)
    hub = require("huggingface_hub", extra="hf", purpose=f"{absent}. Asking the Hugging Face hub for it")
    try:
        cached = isinstance(hub.try_to_load_from_cache(source, "config.json"), str)
        hub.HfApi().model_info(source, timeout=PATIENCE)
    except hub.errors.HFValidationError:
        raise there_is_none(source) from None
    except hub.errors.GatedRepoError:
        raise InputError(
            f"the Hugging Face hub asks for a login before it gives {source!r}; run: hf auth login"
        ) from None
    except hub.errors.RepositoryNotFoundError:
        raise InputError(f"{absent}. The Hugging Face hub has no public model of that name") from None
    except Exception as error:  # no network, switched off, a proxy that says no: one consequence
        if cached:
            return True
        said = (str(error).strip().splitlines() or [""])[0].rstrip(".") or type(error).__name__
        raise InputError(f"{absent}. The Hugging Face hub cannot be asked ({said})") from None
    return False


def _meant(path: Path, *, parents: bool = True) -> str:
    """`; did you mean 'models/smollm2'?`, from what lies beside the place that was named."""
    parent = path.expanduser().parent
    try:
        beside = [entry.name for entry in parent.iterdir() if entry.is_dir() or entry.suffix == ".gguf"]
    except OSError:
        return f" (nor a folder {str(parent)!r})" if parents and len(path.parts) > 1 else ""
    close = nearest(path.name, [name for name in beside if not name.startswith(".")])
    return f"; did you mean {str(path.parent / close)!r}?" if close else ""
