"""Optional C for the passes over memory on CPUs (depth_kernels.c, ops/streams.c): built where a C compiler is, else not used.

The first read builds a small library into the user's cache folder (about a second, once per machine and type), and says
nothing if that fails: depth_reads.py has the same arithmetic in PyTorch. A library there that is damaged, or not ours, is
built anew, never loaded. `NORMLAB_KERNELS=off` in the environment leaves it out. Half precision, other devices,
subclasses of Tensor and dispatch modes (counters, fake tensors) are PyTorch's.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from normlab.files import LIMITS, sync, write_text

SOURCE = Path(__file__).with_name("depth_kernels.c")
SOURCES = (SOURCE, Path(__file__).with_name("ops") / "streams.c")
HEADER = Path(__file__).with_name("kernels.h")
# Sums may be reordered, as in every BLAS; infinities and NaN stay what they are, and the processor's modes are untouched.
FLAGS = [
    *("-O3", "-march=native", "-std=c11", "-fPIC", "-shared"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math", "-fno-signed-zeros", "-fassociative-math"),
]
PLAIN = (Tensor, torch.nn.Parameter)  # not their subclasses, which may be anything
TYPES = {torch.float32: "float", torch.float64: "double"}
SMALL = 1 << 15  # numbers in a tensor below which one thread does it all
ENVIRONMENT = "NORMLAB_KERNELS"

log = logging.getLogger(__name__)
_whole, _pointer = ctypes.c_longlong, ctypes.c_void_p
_letters = {"w": _whole, "p": _pointer, "i": ctypes.c_int, "f": ctypes.c_double}
# Arguments in order: w a whole number, p a pointer, i an int, f a double; a tensor [tokens, d] with its stride is "pw".
_signatures = {
    "merge_forward": "ww pw pw pw p i f p f pp i",
    "merge_backward": "ww pw pw pw p i p p pw pw ppp i",
    "mix_forward": "wwww f pppppp i",
    "mix_backward": "wwww f ppppppppppp i",
    "attend_forward": "www ff pppp p f ppp i",
    "attend_backward": "www ff pw p pp p p pppp pp i",
    "rms_forward": "ww pw p f pp i",
    "rms_backward": "ww pw pw pp pw pp i",
    "norms_forward": "www pww p f pp i",
    "norms_backward": "www p pww p p p pp i",
    "gated_forward": "www ppp i",
    "gated_backward": "www pw pp pp i",
    "inverse_rms": "ww pw f p i",
    "read_forward": "www pww pw p f pp i",
    "read_backward": "www pw pww pw ppppppp i",
    "add_along": "www pww pww p i",
    "write_forward": "www pww pw pw pw p i",
    "write_backward": "www p pww pw pw pw pppp i",
    "inject_forward": "www pww pw p p i",
    "inject_backward": "www p pw p pp i",
    "sinkhorn_forward": "www pw f pp i",
    "sinkhorn_backward": "www pw f p pw p i",
    "gates_forward": "www pppp fff ppp i",
    "gates_backward": "wwww ppp fff pppppppp i",
    "tanh_forward": "ww pppppppp i",
    "tanh_backward": "www ppppppppp i",
}


def usable(*tensors: Tensor) -> Kernels | None:
    """The kernels, if all tensors have one type, lie on the CPU and have the numbers of a row side by side."""
    if torch.compiler.is_compiling():  # compiled autograd looks into backward passes
        return None
    dtype = tensors[0].dtype
    if torch._C._len_torch_dispatch_stack():
        return None
    for t in tensors:  # asked at every read: a plain loop takes half the time of a generator
        if type(t) not in PLAIN or not t.is_cpu or t.dtype != dtype or t.stride(-1) != 1:
            return None
    kernels = _kernels(dtype) if enabled() else None
    return kernels if kernels and (kernels.parallel or torch.get_num_threads() == 1) else None


def enabled() -> bool:
    return os.environ.get(ENVIRONMENT, "on").lower() not in {"off", "0", "no", "false"}


def available() -> bool:
    """Would they be used here, for all that can be told without building them?"""
    name = (os.environ.get("CC", "").strip() or "cc").split()[0]
    return enabled() and os.name == "posix" and shutil.which(name) is not None


def state() -> str:
    """Are they used here, and if not, why? Builds them if they are not built yet."""
    if not enabled():
        return f"off: {ENVIRONMENT} is {os.environ[ENVIRONMENT]!r}; PyTorch's own operations are used"
    if not available():
        return "off: no C compiler is found (set CC, or install one); PyTorch's own operations are used"
    found = _kernels(torch.float32)
    if found is None:
        return "off: the C compiler is there but the build failed; PyTorch's own operations are used"
    if not found.parallel:
        return "on, without OpenMP: used on one thread only, because the compiler has no OpenMP"
    return "on, with OpenMP"


class Kernels:
    """The C functions of one type, called with tensors."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.parallel = bool(library.parallel())
        self.library = library
        for name, signature in _signatures.items():
            function = getattr(library, name)
            function.argtypes, function.restype = [_letters[c] for c in signature if c != " "], None

    def merge_forward(
        self, o: Tensor, lse: Tensor, b: Tensor, query: Tensor, eps: float | None, gain: Tensor | None, norm_eps: float
    ) -> tuple[Tensor, Tensor]:
        """h, or its RMSNorm, and [4, tokens]: 1 / rms(b), the key s, the gate, 1 / rms(h)."""
        tokens, d = b.shape
        _expect(
            o=(o, (tokens, d)), lse=(lse, (tokens,)), query=(query, (d,)), gain=(query if gain is None else gain, (d,))
        )
        h, stats = b.new_empty((tokens, d)), b.new_empty((4, tokens))
        self.library.merge_forward(
            *(tokens, d, *_strided(o), *_strided(lse), *_strided(b), query.data_ptr(), eps is not None, eps or 0.0),
            *(_maybe(gain)[0], norm_eps, h.data_ptr(), stats.data_ptr(), threads_for(h)),
        )
        return h, stats

    def merge_backward(
        self, grad: Tensor, o: Tensor, b: Tensor, query: Tensor, stats: Tensor, eps: float | None, gain: Tensor | None,
        through: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
        """Gradients of o, lse, b, the query and the gain."""
        tokens, d = b.shape
        threads = threads_for(b)
        do, db = b.new_empty((tokens, d)), b.new_empty((tokens, d))
        dlse, sums = b.new_empty(tokens), b.new_empty((threads, 4, d))
        self.library.merge_backward(
            *(tokens, d, *_strided(grad), *_strided(o), *_strided(b), query.data_ptr(), eps is not None),
            *(stats.data_ptr(), _maybe(gain)[0], *_maybe(through), *_strided(do), dlse.data_ptr(), db.data_ptr()),
            *(sums.data_ptr(), threads),
        )
        total = sums[0] if threads == 1 else sums[:, :2].sum(0)
        return do, dlse, db, total[0], total[1]

    def mix_forward(
        self, logits: Tensor, sources: Sequence[Tensor], whole: float
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Log-sum-exp and weights of contiguous logits [tokens, sources, queries], and each query's sum of sources."""
        tokens, n, queries = logits.shape
        d = sources[0].shape[-1]
        _expect(logits=(logits, (tokens, len(sources), queries)))
        for v in sources:
            _expect(source=(v, (tokens, d)))
        lse, weights = logits.new_empty((tokens, queries)), torch.empty_like(logits)
        out = [logits.new_empty((tokens, d)) for _ in range(queries)]
        self.library.mix_forward(
            *(tokens, d, n, queries, whole, logits.data_ptr(), *_many(sources), lse.data_ptr(), weights.data_ptr()),
            *(_many(out)[0], threads_for(out[0])),
        )
        return lse, weights, out

    def mix_backward(
        self, weights: Tensor, sources: Sequence[Tensor], grads: Sequence[Tensor], dlse: Tensor,
        through: Sequence[Tensor | None], places: Sequence[Tensor], whole: float,
    ) -> Tensor:  # fmt: skip
        """The gradient of the logits; those of the sources go to their places, with what came through (or is there)."""
        tokens, n, queries = weights.shape
        dlogits = torch.empty_like(weights)
        self.library.mix_backward(
            *(tokens, grads[0].shape[-1], n, queries, whole, weights.data_ptr(), *_many(sources), *_many(grads)),
            *(*_many(through), *_many(places), dlse.data_ptr(), dlogits.data_ptr(), threads_for(grads[0])),
        )
        return dlogits

    def attend_forward(
        self,
        logits: Sequence[Tensor],
        sources: Sequence[Tensor],
        gain: Tensor | None,
        eps: float,
        mass: float,
        whole: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One read of sources [tokens, d] with logits [tokens]: h or its RMSNorm, weights [tokens, sources], 1 / rms(h)."""
        tokens, d = sources[0].shape
        for logit, v in zip(logits, sources, strict=True):
            _expect(logits=(logit, (tokens,)), source=(v, (tokens, d)))
        new = sources[0].new_empty
        h, weights, scale = new((tokens, d)), new((tokens, len(sources))), new(tokens)
        self.library.attend_forward(
            *(
                tokens,
                d,
                len(sources),
                mass,
                whole,
                *_many(logits),
                *_many(sources),
                _maybe(gain)[0],
                eps,
                h.data_ptr(),
            ),
            *(weights.data_ptr(), scale.data_ptr(), threads_for(h)),
        )
        return h, weights, scale

    def attend_backward(
        self, grad: Tensor, weights: Tensor, sources: Sequence[Tensor], gain: Tensor | None, scale: Tensor,
        through: Sequence[Tensor | None], places: Sequence[Tensor], share: tuple[float, float],
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """Gradients of the logits [sources, tokens] and of the gain; those of the sources go to their places.

        What came through may be the place itself: then it is added to."""
        (tokens, d), n, threads = grad.shape, len(sources), threads_for(grad)
        dlogits, sums = grad.new_empty((n, tokens)), grad.new_empty((threads, 4, d))
        self.library.attend_backward(
            *(
                tokens,
                d,
                n,
                *share,
                *_strided(grad),
                weights.data_ptr(),
                *_many(sources),
                _maybe(gain)[0],
                scale.data_ptr(),
            ),
            *(*_many(through), *_many(places), dlogits.data_ptr(), sums.data_ptr(), threads),
        )
        return dlogits, sums[0, 0] if threads == 1 else sums[:, 0].sum(0)

    def rms_forward(self, x: Tensor, gain: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """gain x r for the rows of x, and r = 1 / rms(x)."""
        tokens, d = x.shape
        y, r = x.new_empty((tokens, d)), x.new_empty(tokens)
        self.library.rms_forward(
            *(tokens, d, *_strided(x), gain.data_ptr(), eps, y.data_ptr(), r.data_ptr(), threads_for(x))
        )
        return y, r

    def rms_backward(
        self, dy: Tensor, x: Tensor, gain: Tensor, r: Tensor, through: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Gradients of x, with what came past the norm, and of the gain."""
        tokens, d = x.shape
        threads = threads_for(x)
        dx, sums = x.new_empty((tokens, d)), x.new_empty((threads, 2, d))
        self.library.rms_backward(
            *(tokens, d, *_strided(dy), *_strided(x), gain.data_ptr(), r.data_ptr(), *_maybe(through)),
            *(dx.data_ptr(), sums.data_ptr(), threads),
        )
        return dx, sums[0, 0] if threads == 1 else sums[:, 0].sum(0)


def _expect(**shapes: tuple[Tensor, tuple[int, ...]]) -> None:
    """C does not look: a wrong shape would read what lies beside."""
    for name, (tensor, shape) in shapes.items():
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name} is {list(tensor.shape)}, but {list(shape)} was expected")


def _strided(x: Tensor) -> tuple[int, int]:
    return x.data_ptr(), x.stride(0)


def _maybe(x: Tensor | None) -> tuple[int | None, int]:
    return (None, 0) if x is None else (x.data_ptr(), x.stride(0))


def _many(
    tensors: Sequence[Tensor | None],
) -> tuple[ctypes.Array[ctypes.c_void_p], ctypes.Array[ctypes.c_longlong]]:
    found, n = [_maybe(t) for t in tensors], len(tensors)
    return (_pointer * n)(*(pointer for pointer, _ in found)), (_whole * n)(*(stride for _, stride in found))


def threads_for(x: Tensor) -> int:
    return 1 if x.numel() < SMALL else torch.get_num_threads()


@cache
def _kernels(dtype: torch.dtype) -> Kernels | None:
    try:
        compiler, *own_flags = shlex.split(os.environ.get("CC", "").strip() or "cc")
    except ValueError:  # a quote that does not end
        return None
    if dtype not in TYPES or os.name != "posix" or (found := shutil.which(compiler)) is None:
        return None
    # OpenMP's library has the name that torch's own copy has, so both share one pool of threads.
    for extra in (["-fopenmp"], []):
        command = [found, *own_flags, *FLAGS, *extra, f"-DREAL={TYPES[dtype]}"]
        for anew in (False, True):  # what cannot be loaded is built once more
            try:
                return Kernels(ctypes.CDLL(str(_built(command, anew=anew))))
            except (OSError, RuntimeError, AttributeError, subprocess.SubprocessError) as fault:
                log.debug("depth kernels are left out: %s", fault)
                if isinstance(fault, subprocess.SubprocessError):
                    break
    return None


def _built(command: list[str], *, anew: bool = False) -> Path:
    """The library, from the cache or built now. Its name tells source, flags, compiler and processor."""
    signs = [
        *(source.read_text("utf-8") for source in (*SOURCES, HEADER)),
        *command[1:],
        command[0],
        str(os.stat(command[0]).st_mtime_ns),
        _processor(),
    ]
    name = hashlib.sha256("\0".join(signs).encode()).hexdigest()[:20]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "normlab" / "kernels"
    path = folder / f"depth-{name}.so"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    owner = folder.stat()
    if owner.st_uid != os.getuid() or owner.st_mode & 0o022:
        raise PermissionError(f"others may write to {folder}: nothing is loaded from there")
    if anew or not _intact(path):
        with tempfile.TemporaryDirectory(dir=folder) as scratch:  # in the same folder, so that the move is one step
            made = Path(scratch) / path.name
            whole = [*command, "-o", str(made), *map(str, SOURCES), "-lm"]
            subprocess.run(whole, check=True, capture_output=True, timeout=LIMITS.compile_seconds)
            # The digest first: a library without its own digest is built again, never loaded.
            write_text(_digest_of(path), hashlib.sha256(made.read_bytes()).hexdigest())
            for part in (made, _digest_of(path)):
                part.chmod(0o700)  # whatever the umask is: what others may write to is not loaded
            sync(made)
            os.replace(made, path)
            sync(folder)
    return path


def _digest_of(path: Path) -> Path:
    return path.with_suffix(".sha256")


def _intact(path: Path) -> bool:
    """Is this what was built, by us? A library that a full disk or a crash cut short kills whoever touches its end."""
    try:
        for part in (path, _digest_of(path)):
            found = part.lstat()
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
                return False
        return hashlib.sha256(path.read_bytes()).hexdigest() == _digest_of(path).read_text("ascii")
    except (OSError, ValueError):
        return False


def _processor() -> str:
    """What -march=native depends on: a cache folder may be shared by machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.node()}"
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))
