"""Roles from the arithmetic of the real classes: scales, gates, two halves, mixers; in float64, to 1e-10."""

import pytest
import torch
import transformers
from torch import nn

from normlab.probes.trace.identity import verify
from normlab.probes.trace.locate import locate, locate_all
from normlab.probes.trace.roles import BranchRoles, LayerRoles, scale_value
from tests.probes.zoo import GROUPED, SMALL, HomemadeBlock

TOKENS = torch.randint(5, 97, (2, 12), generator=torch.Generator().manual_seed(0))


def located(model, **batch):
    model = model.double().eval()
    if hasattr(model, "config"):
        model.config._experts_implementation = "eager"  # the grouped one knows no float64
    batch = batch or {"input_ids": TOKENS}
    layouts = locate_all(model, lambda: model(**batch))
    errors = [max(verify(layout, lambda: model(**batch)).errors) for layout in layouts]
    return layouts, max(errors)


def rows(layout):
    return [layout.roles[id(layer)] for _, layer in layout.layers]


def test_granite_multiplies_each_branch():
    config = transformers.GraniteConfig(**GROUPED, residual_multiplier=0.22)
    (layout,), error = located(transformers.GraniteForCausalLM(config))
    assert error < 1e-10
    assert layout.placement == "pre_norm, scaled"
    assert [branch.scale for row in rows(layout) for branch in row.branches] == [0.22] * 6
    assert "attention: branch 0.22" in layout.notes[1]


def test_minimax_carries_the_normed_value():
    config = transformers.MiniMaxConfig(
        **GROUPED, num_local_experts=2, block_size=4,
        full_attn_alpha_factor=1.5, full_attn_beta_factor=0.5, mlp_alpha_factor=1.25, mlp_beta_factor=0.75,
        linear_attn_alpha_factor=1.1, linear_attn_beta_factor=0.9,
    )  # fmt: skip
    (layout,), error = located(transformers.MiniMaxForCausalLM(config))
    assert error < 1e-6  # its experts and rotations compute in float32
    assert layout.placement == "carried_norm, scaled"
    found = {(row.branches[0].kind, row.branches[0].skip, row.branches[0].scale) for row in rows(layout)}
    assert found == {("mixer", 1.1, 0.9), ("attention", 1.5, 0.5)}
    assert {(row.branches[1].skip, row.branches[1].scale) for row in rows(layout)} == {(1.25, 0.75)}
    assert {row.branches[0].mixer for row in rows(layout)} == {"", "linear attention (MiniMaxLightningAttention)"}


class _DepthScaled(nn.Module):
    """Beam: x <- sqrt((n - 1) / n) x + sqrt(1 / n) F(N(x)), where the branch reads what is not yet weighed."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(16) for _ in range(2))
        self.maps = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def forward(self, x):
        for n, norm, branch in zip((2, 3), self.norms, self.maps, strict=True):
            x = branch(norm(x)) * (1 / n) ** 0.5 + x * ((n - 1) / n) ** 0.5
        return x


def test_a_skip_that_is_weighed_behind_the_read_is_the_next_branchs():
    model = nn.Sequential(*(_DepthScaled() for _ in range(3))).double().eval()
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    (layout,) = locate_all(model, lambda: model(x))
    assert max(verify(layout, lambda: model(x)).errors) < 1e-10
    found = [(branch.skip, branch.scale, branch.parallel) for branch in rows(layout)[0].branches]
    assert found == [pytest.approx((0.5**0.5, 0.5**0.5, False)), pytest.approx(((2 / 3) ** 0.5, (1 / 3) ** 0.5, False))]


class _Shortcut(nn.Module):
    """LongCat: what is read behind the first branch is added behind the third."""

    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(16) for _ in range(3))
        self.maps = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        x = x + self.maps[0](self.norms[0](x))
        read = self.norms[1](x)
        shortcut = self.maps[1](read)
        x = x + self.maps[2](read)
        return x + self.maps[3](self.norms[2](x)) + shortcut


def test_a_shortcut_is_read_where_it_is_read():
    model = nn.Sequential(*(_Shortcut() for _ in range(3))).double().eval()
    x = torch.randn(2, 5, 16, dtype=torch.float64)
    (layout,) = locate_all(model, lambda: model(x))
    assert max(verify(layout, lambda: model(x)).errors) < 1e-10
    found = [(branch.added, branch.pre, branch.parallel, branch.behind) for branch in rows(layout)[0].branches]
    assert found[-1] == ("maps.1", "norms.1", True, 1)


def test_several_layer_classes_and_mixers_in_one_stack():
    config = transformers.JambaConfig(
        **GROUPED, num_experts=2, attn_layer_period=2, attn_layer_offset=1, use_mamba_kernels=False, mamba_d_state=4
    )
    (layout,), error = located(transformers.JambaForCausalLM(config))
    assert error < 1e-6
    assert [row.branches[0].kind for row in rows(layout)] == ["mixer", "attention", "mixer"]
    assert "2 JambaMambaDecoderLayer" in layout.architecture
    assert rows(layout)[0].branches[0].mixer == "state space (JambaMambaMixer)"


SEQ2SEQ = {
    "t5": ("T5Config", "T5ForConditionalGeneration",
           {"d_model": 32, "num_layers": 2, "num_heads": 4, "d_kv": 8, "d_ff": 48}, ("pre_norm", "pre_norm")),
    "bart": ("BartConfig", "BartForConditionalGeneration",
             {"d_model": 32, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
              "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}, ("post_norm", "post_norm")),
}  # fmt: skip


def seq2seq(name):
    config, model, shape, placements = SEQ2SEQ[name]
    torch.manual_seed(0)
    built = getattr(transformers, model)(getattr(transformers, config)(vocab_size=97, **shape))
    return built, {"input_ids": TOKENS, "decoder_input_ids": TOKENS[:, :7]}, placements


@pytest.mark.parametrize("name", SEQ2SEQ)
def test_both_halves_with_cross_attention_apart(name):
    model, batch, placements = seq2seq(name)
    layouts, error = located(model, **batch)
    assert error < 1e-6 if name == "t5" else error < 1e-10  # T5's norm computes in float32
    assert [layout.stack for layout in layouts] == ["encoder", "decoder"]
    assert tuple(layout.placement for layout in layouts) == placements
    kinds = [[branch.kind for branch in rows(layout)[0].branches] for layout in layouts]
    assert kinds == [["attention", "ffn"], ["attention", "cross_attention", "ffn"]]


class Gated(nn.Module):
    """ReZero-like: x + gate F(N(x)), the gate a parameter, or the tanh of one, or a vector."""

    def __init__(self, how, start, d=32):
        super().__init__()
        self.how = how
        self.block = HomemadeBlock("pre", d)
        self.gate = nn.Parameter(torch.full((d if how == "vector" else 1,), float(start)))

    def forward(self, x):
        gate = self.gate.tanh() if self.how == "tanh" else self.gate
        x = x + gate * self.block.mixer(self.block.first(x))
        return x + self.block.wide(self.block.second(x)) * gate


class GatedModel(nn.Module):
    def __init__(self, how, start):
        super().__init__()
        self.embed, self.head = nn.Embedding(97, 32), nn.Linear(32, 97)
        self.blocks = nn.ModuleList(Gated(how, start) for _ in range(3))

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@pytest.mark.parametrize("how", ["scalar", "vector", "tanh"])
@pytest.mark.parametrize("start", [0.0, 0.3])
def test_gates_are_found_also_where_they_are_zero_and_are_read_anew(how, start):
    model = GatedModel(how, start)
    (layout,), error = located(model)
    assert error < 1e-10
    row = rows(layout)[1]
    assert [branch.kind for branch in row.branches] == ["attention", "ffn"]
    assert str(row.branches[0].scale) == ("tanh(blocks.1.gate)" if how == "tanh" else "blocks.1.gate")
    with torch.no_grad():
        model.blocks[1].gate.fill_(0.8)
    value = torch.as_tensor(scale_value(model.blocks[1], row.branches[0].scale)).double()
    expected = torch.tensor(0.8).double()
    assert torch.allclose(value, expected.tanh() if how == "tanh" else expected)
    assert max(verify(layout, lambda: model(TOKENS)).errors) < 1e-10  # the roles still hold after a step


def test_a_gate_that_the_user_names():
    model = GatedModel("tanh", 0.4).double().eval()
    names = {"pre": "block.first", "scale": "tanh(gate)"}
    branches = (
        BranchRoles("attention", "block.mixer", **names),
        BranchRoles("ffn", "block.wide", pre="block.second", scale="tanh(gate)"),
    )
    layout = locate(model, lambda: None, roles=LayerRoles("Gated", branches))
    assert max(verify(layout, lambda: model(TOKENS)).errors) < 1e-10


class Shared(nn.Module):
    """One block four times, or lists in lists."""

    def __init__(self, nested):
        super().__init__()
        self.embed = nn.Embedding(97, 32)
        blocks = [HomemadeBlock("pre", 32) for _ in range(4)]
        halves = [nn.ModuleList(blocks[:2]), nn.ModuleList(blocks[2:])]
        self.blocks = nn.ModuleList(halves if nested else [blocks[0]] * 4)

    def forward(self, input_ids):
        x = self.embed(input_ids)
        for block in self.blocks:
            for each in block if isinstance(block, nn.ModuleList) else [block]:
                x = each(x)
        return x


@pytest.mark.parametrize("nested", [False, True])
def test_shared_and_nested_blocks(nested):
    model = Shared(nested).double().eval()
    layout = locate(model, lambda: model(TOKENS))
    errors = verify(layout, lambda: model(TOKENS)).errors
    assert len(errors) == 4
    assert max(errors) < 1e-10
    assert len(layout.layers) == (4 if nested else 1)


def test_modernbert_as_it_is_initialised():
    shape = {**SMALL, "intermediate_size": 48, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    shape |= {"cls_token_id": 1, "sep_token_id": 2}
    (layout,), error = located(transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**shape)))
    assert error < 1e-10
    assert len(layout.layers) == SMALL["num_hidden_layers"]
