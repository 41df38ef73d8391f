"""What a base install (the wheel without extras) owes: every command that needs no extra answers, the others refuse first."""

import json
import shlex

EXTRA = (
    "plotly", "jinja2", "transformers", "tokenizers", "huggingface_hub", "scipy", "gguf", "ray", "PIL", "starlette",
    "uvicorn",
)  # fmt: skip
_SMALL = "--dim 16 --heads 2 --depth 2"
ANSWERED = (
    "env", "schemes", "schemes show pre_norm", "cite pre_norm", "cost --schemes pre_norm,mhc", "config dim=16", "claims",
    "theory summary", "theory set-complement --vocab 8",
    "train run.yaml --out trained",
    "diagnose trained --windows 2 --window 32 --no-skips --out diagnosed",
    "diagnose trained trained --windows 2 --window 32 --no-skips --out both",
    f"compare --schemes pre_norm,post_norm --tokens 512 --seeds 2 --lrs 1e-3,3e-3 --length 16 {_SMALL} --out compared",
    "report compared",
    f"stability --schemes pre_norm --steps 20 --lrs 1e-3,1e-2 --warmups 1 --seeds 1 --length 16 {_SMALL} --out stable",
    "lengthgen --schemes pre_norm --steps 5 --dim 16 --seeds 1 --out long",
    "atlas --schemes pre_norm,post_norm --depth 4 --dim 32 --out atlas",
    "theory contributions --depth 8 --dim 32 --out theory",
    "theory mean-field --schemes pre_norm --depths 2,4 --draws 2 --dim 16 --out theory",
    "theory seesaw --depth 4 --dim 16 --draws 2 --out theory",
    "theory signal --layers 4 --n 8 --d 8 --seeds 1 --out theory",
    "demo --skip atlas,training,fault --out told",
)  # fmt: skip
PAGES = ("compare", "report", "stability", "lengthgen", "atlas", "diagnose", "demo", "theory contributions",
         "theory mean-field", "theory seesaw", "theory signal")  # fmt: skip
# Command -> the package that it names. Each would have something to do before it needs the package.
REFUSED = {
    "dynamics --n 8 --time 1 --out out": "scipy",
    "theory bridge --schemes pre_norm --dim 32 --depth 2 --out out": "scipy",
    "diagnose hugging --out out": "transformers",
    "diagnose trained hugging --out out": "transformers",
    "diagnose trained trained model.gguf --out out": "transformers",
    "diagnose trained --images . --out out": "PIL",
    "diagnose nobody/nothing --out out": "huggingface_hub",
    "swap hugging pre_norm --out out": "transformers",
    "prune hugging --layers 0 --out out": "transformers",
    "train hugging steps=1 --out out": "transformers",
    "train run.yaml task.tokens=bpe model.vocab_size=1024 --out out": "tokenizers",
    f"compare --schemes pre_norm --tokens 512 {_SMALL} --executor ray --out out": "ray",
    "watch .": "starlette",
}


def prepare(folder):
    """A run to train, and the outside of models that are never read."""
    (folder / "run.yaml").write_text(
        "model: {vocab_size: 256, dim: 16, depth: 2, heads: 2, scheme: pre_norm}\n"
        "task: {task: text}\n"
        "train: {steps: 4, batch: 2, length: 32, schedule: {warmup: 1}}\n"
    )
    (folder / "hugging").mkdir()
    (folder / "hugging" / "config.json").write_text('{"model_type": "llama"}')
    (folder / "hugging" / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    (folder / "model.gguf").write_bytes(b"GGUF")


def check_answer(command, code, out, err, *, jinja2):
    """JSON and nothing else on stdout; where a page is missing, one line says so."""
    assert code == 0, (command, err)
    json.loads(out)
    drawn = command.startswith(PAGES) and not (command.startswith("demo") and jinja2)  # a demo without figures
    missing = [line for line in err.splitlines() if line.startswith("page not written: ")]
    assert len(missing) == drawn, (command, err)
    assert all('pip install "' in line and "plotly" in line for line in missing), err


def check_refusal(command, code, out, err, folder):
    """One sentence with the package and what installs it, before anything is printed or written."""
    assert (code, out) == (2, ""), (command, code, out, err)
    (line,) = err.splitlines()
    assert f"needs the package {REFUSED[command]!r}" in line, (command, line)
    assert "install it with: pip install " in line
    assert not (folder / "out").exists(), command


def words(command, *, as_json=True):
    typed = shlex.split(command)
    return [*typed, "--json"] if as_json and typed[0] != "watch" else typed
