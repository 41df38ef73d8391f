"""The monitor in a real Lightning Trainer."""

import warnings

import pytest
import torch

import normlab as nl

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytorch = pytest.importorskip("lightning.pytorch")

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning advises about workers, logging and versions


class Module(pytorch.LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        config = nl.TransformerConfig(vocab_size=61, dim=32, depth=2, heads=4, scheme="pre_norm", max_length=32)
        self.model = nl.Transformer(config)
        self.norms = []

    def training_step(self, batch, _):
        logits = self.model(batch)
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        self.norms.append(float(torch.nn.utils.clip_grad_norm_(self.parameters(), gradient_clip_val)))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Keep(pytorch.loggers.logger.Logger):
    name, version = "keep", 0

    def __init__(self):
        super().__init__()
        self.values = {}

    def log_metrics(self, metrics, step=None):
        if "gradient/total/norm" in metrics:
            self.values[step] = metrics

    def log_hyperparams(self, *args, **kwargs):
        pass


@pytest.mark.parametrize("micro", [1, 2])
def test_values_before_clipping_under_accumulation(tmp_path, micro):
    module, keep = Module(), Keep()
    data = torch.utils.data.DataLoader(torch.randint(0, 61, (16, 12)), batch_size=2)
    trainer = pytorch.Trainer(
        max_steps=4, accumulate_grad_batches=micro, gradient_clip_val=1e-3, logger=keep, accelerator="cpu",
        callbacks=[nl.lightning.MonitorCallback(every=2, attribute="model")], enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
    )  # fmt: skip
    trainer.fit(module, data)
    assert sorted(keep.values) == [1, 3]
    for step, values in keep.values.items():
        assert values["gradient/total/norm"] == pytest.approx(module.norms[step - 1], rel=1e-5)
        assert values["gradient/total/norm"] > 0.01
        assert values["attention/layer_1/ratio"] > 0
