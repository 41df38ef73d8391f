"""Sizes that are measured are those of the stream and of the branches."""

import pytest
import torch

from normlab.errors import UnsupportedError
from normlab.surgery.anatomy import anatomy
from normlab.surgery.calibrate import measure, scale_norm
from tests.surgery.models import BACKBONES, asked, build, inputs

pytest.importorskip("transformers")


@pytest.mark.parametrize("name", BACKBONES)
def test_sizes(name):
    sizes = measure(anatomy(build(name)), [inputs(name)])
    assert all(size > 0 for size in (*sizes.read, *sizes.added, *sizes.after))
    if name in ("llama", "gpt2", "gemma2"):  # what one branch leaves is what the next one reads
        assert sizes.after[:-1] == pytest.approx(sizes.read[1:], rel=1e-5)


def test_the_first_read_is_the_embedding():
    model, batch = build("llama"), inputs("llama")
    wanted = model.model.embed_tokens(batch["input_ids"]).square().mean(-1).sqrt().median()
    assert measure(anatomy(model), [batch]).read[0] == pytest.approx(float(wanted))


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2"])
def test_a_scaled_norm_returns_scaled_values(name):
    norm = next(m for m in build(name).modules() if "Norm" in type(m).__name__)
    with torch.no_grad():
        norm.weight.add_(torch.randn_like(norm.weight))
        x = torch.randn(2, 32)
        before = norm(x)
        scale_norm(norm, 3.0)
        torch.testing.assert_close(norm(x), 3 * before)


def test_a_norm_without_a_gain():
    norm = next(m for m in build("olmo").modules() if "Norm" in type(m).__name__)
    with pytest.raises(UnsupportedError, match="has no gain"):
        scale_norm(norm, 2.0)
    assert torch.isfinite(asked(build("olmo"), inputs("olmo"))).all()
