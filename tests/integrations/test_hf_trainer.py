"""The monitor in a real Hugging Face Trainer."""

import pytest
import torch
import transformers

import normlab as nl
from normlab.errors import ConfigError

pytest.importorskip("accelerate")


def parts(tmp_path, **options):
    torch.manual_seed(0)
    config = transformers.GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4, n_positions=32, resid_pdrop=0.0,
                                     embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.1)  # fmt: skip
    model = transformers.GPT2LMHeadModel(config)
    ids = torch.randint(0, 61, (24, 12))
    data = [{"input_ids": row, "labels": row} for row in ids]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path), per_device_train_batch_size=2, report_to=[], use_cpu=True, save_strategy="no",
        disable_tqdm=True, logging_steps=1, seed=0, data_seed=0, **options,
    )  # fmt: skip
    return model, data, arguments


@pytest.mark.parametrize("micro", [1, 2])
def test_gradients_are_the_trainers_own_norm_before_clipping(tmp_path, micro, capsys):
    options = {"max_steps": 4, "gradient_accumulation_steps": micro, "max_grad_norm": 1e-3}
    model, data, arguments = parts(tmp_path, **options)
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
    callback = nl.hf.MonitorCallback(every=2).attach(trainer)
    trainer.train()
    measured = [entry for entry in trainer.state.log_history if "gradient/total/norm" in entry and "loss" not in entry]
    assert [entry["step"] for entry in measured] == [1, 3]
    logged = {entry["step"]: entry for entry in trainer.state.log_history if "grad_norm" in entry}
    for entry in measured:  # the Trainer logs the norm before clipping, and so do we
        assert entry["gradient/total/norm"] == pytest.approx(logged[entry["step"]]["grad_norm"], rel=1e-4)
        assert entry["gradient/total/norm"] > 0.01
        assert entry["stream/layer_1/norm"] > 0
    assert "of 4 steps measured" in capsys.readouterr().err
    assert callback.monitor.count == 4


def test_values_reach_the_trackers(tmp_path):
    seen = []

    class Tracker(transformers.TrainerCallback):
        def on_log(self, args, state, control, logs=None, **_):
            seen.append(dict(logs))

    model, data, arguments = parts(tmp_path, max_steps=2)
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data, callbacks=[Tracker()])
    nl.hf.MonitorCallback(every=1).attach(trainer)
    trainer.train()
    assert any("ffn/mean/ratio" in logs and "loss" in logs for logs in seen)


def test_without_clipping(tmp_path):
    model, data, arguments = parts(tmp_path, max_steps=2, max_grad_norm=0.0)
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data)
    nl.hf.MonitorCallback(every=1).attach(trainer)
    trainer.train()
    assert any("gradient/layer_0/norm" in entry for entry in trainer.state.log_history)


def test_passing_it_as_a_plain_callback_says_what_to_do(tmp_path):
    model, data, arguments = parts(tmp_path, max_steps=1)
    trainer = transformers.Trainer(model=model, args=arguments, train_dataset=data, callbacks=[nl.hf.MonitorCallback()])
    with pytest.raises(ConfigError, match="attach"):
        trainer.train()
