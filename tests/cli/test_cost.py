import json

import pytest

from normlab.cli import run
from normlab.schemes.registry import families

SHAPE = ["--depth", "64", "--dim", "64", "--heads", "4", "--vocab", "50", "--length", "16"]


def test_the_papers_table_as_json(capsys):
    names = "pre_norm,mhc,attn-res,block_attn_res"
    assert (
        run(["cost", "--schemes", names, *SHAPE, "--blocks", "8", "--stages", "4", "--virtual-stages", "2", "--json"])
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert [item["traffic"] for item in found] == [3, 34, 24, 5.5]
    block = found[-1]
    assert block["config"]["scheme"]["blocks"] == 8
    assert (block["pipeline"]["formula_naive"], block["pipeline"]["formula_cached"]) == (28, 22)
    assert (block["pipeline"]["naive"], block["pipeline"]["cached"]) == (35, 21)


def test_the_table_for_people(capsys):
    assert run(["cost", "--schemes", "block_attn_res", *SHAPE, "--stages", "2"]) == 0
    text = capsys.readouterr().out
    assert "5.5d" in text
    assert "no rank is visited twice" in text


def test_a_prediction_for_hardware_that_is_not_here(capsys):
    small = ["--depth", "4", "--dim", "64", "--heads", "4", "--length", "16", "--dtype", "bfloat16"]
    assert run(["cost", "--schemes", "block_attn_res,mhc", *small, "--hardware", "h100"]) == 0
    text = capsys.readouterr().out
    assert "494 TFLOP/s, from 168 FLOPs a byte on" in text
    assert "B  mhc" in text
    assert "no GPU was run" in " ".join(text.split())
    assert run(["cost", "--schemes", "mhc", *small, "--hardware", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["prediction"]
    assert found["hardware"] == "cpu"
    assert found["eager"]["rows"] > found["fused"]["rows"] > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--hardware", "h10"], "did you mean 'h100'"),
        (["--schemes", "blok_attn_res"], "did you mean 'block_attn_res'"),
        (["--depth", "0"], "depth: "),
        (["--stages", "25"], "some would be empty"),
        (["--stages", "3", "--cuts", "4,4"], "leave chunk 1 empty"),
        (["--stages", "3", "--cuts", "4;9"], "whole numbers with commas"),
        (["--prefill-chunk", "0"], "prefill_chunk is 0"),
        (["--length", "0"], "length is 0"),
        (["--heads", "7"], "7 heads do not divide"),
        (["--set", "ffn=swigloo"], "did you mean 'swiglu'"),
        (["--set", "ffn"], "key=value"),
    ],
)
def test_bad_input_is_one_sentence(arguments, message, capsys):
    assert run(["cost", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_options_families_and_the_old_spelling(capsys):
    assert run(["cost", "--schemes", "multi-stream,block_attn_res(blocks=4)", *SHAPE, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [item["scheme"] for item in found] == [*families()["multi-stream"], "block_attn_res(blocks=4)"]
    assert len(found) >= 5
    assert run(["cost", "--scheme", "mhc"]) == 2
    assert "--schemes 'mhc'" in capsys.readouterr().err
