import pytest
import torch

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from normlab.integrations.hf_averaging import BEMACallback  # noqa: E402
from normlab.training import BEMA  # noqa: E402


def make(folder, callback, steps=12, **options):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=13,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    data = [{"input_ids": torch.randint(13, (6,)), "labels": torch.randint(13, (6,))} for _ in range(16)]
    arguments = transformers.TrainingArguments(
        str(folder), max_steps=steps, per_device_train_batch_size=2, save_steps=5, report_to=[], disable_tqdm=True,
        use_cpu=True, learning_rate=1e-2, lr_scheduler_type="constant", **options)  # fmt: skip
    return transformers.Trainer(
        transformers.LlamaForCausalLM(config), arguments, train_dataset=data, callbacks=[callback]
    )


@pytest.mark.filterwarnings("ignore")
def test_a_real_trainer_saves_loadable_averages_and_resumes(tmp_path):
    class Reference(transformers.TrainerCallback):
        """The same average by hand."""

        def on_train_begin(self, args, state, control, model=None, **rest):
            self.average = BEMA(model, every=2)

        def on_step_end(self, args, state, control, **rest):
            self.average.update()

    callback, reference = BEMACallback(every=2), Reference()
    trainer = make(tmp_path, callback)
    trainer.add_callback(reference)
    trainer.train()
    for kind in ("ema", "bema"):
        loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path / kind)
        for name, parameter in loaded.named_parameters():
            assert torch.allclose(parameter, reference.average.weights(kind)[name], atol=1e-7), name
        assert not torch.equal(loaded.lm_head.weight, trainer.model.lm_head.weight)
    again = BEMACallback(every=2)
    make(tmp_path, again).train(resume_from_checkpoint=str(tmp_path / "checkpoint-10"))
    for kind in ("ema", "bema"):
        for name, weight in again.average.weights(kind).items():
            assert torch.allclose(weight, reference.average.weights(kind)[name], atol=1e-5), name
