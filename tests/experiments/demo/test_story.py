"""Ctrl-C ends a stage, and the next one begins."""

from normlab.experiments.demo import stages
from normlab.experiments.demo.settings import settings
from normlab.experiments.demo.story import Story
from normlab.experiments.demo.summary import summary

TINY = settings(schemes=("pre_norm", "post_norm"), depth=2, dim=16, steps=4)


def test_an_interrupt_goes_on(tmp_path, monkeypatch, capsys):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(stages, "train_arms", interrupted)
    told = Story(TINY, tmp_path).tell()
    said = capsys.readouterr().out
    assert "stopped; on to the next stage" in said
    assert "no model was trained far enough" in said
    assert told.atlas is not None
    assert told.runs == ()
    assert told.planted is None
    assert told.page.exists()
    assert set(told.seconds) == {"atlas", "training", "fault"}
    assert summary(told)["fault"] is None
    assert summary(told)["tuned"] is False
