"""Which part of a batch each stage reads."""

import pytest
import torch

from normlab.probes.inputs.batches import (
    DRAWS,
    candidate_runs,
    first_rows,
    shortened,
    skip_batches,
    some,
    texts,
    windows,
)
from normlab.probes.inputs.losses import HiddenAnew, Loss
from normlab.probes.inputs.request import DiagnoseOptions
from tests.probes.zoo import Encoder, build

CAUSAL = Loss("causal", lambda model, batch: torch.zeros(()))
MASKED = Loss("masked", CAUSAL.function)
CONTRASTIVE = Loss("contrastive", CAUSAL.function)
IDS = torch.arange(8 * 256).reshape(8, 256)


def test_a_small_piece_is_of_the_same_kind_and_keeps_its_mask():
    piece = first_rows({"input_ids": IDS, "attention_mask": IDS % 2})
    assert torch.equal(piece["input_ids"], IDS[:2, :64])
    assert torch.equal(piece["attention_mask"], IDS[:2, :64] % 2)
    assert torch.equal(first_rows((IDS, "more"))[0], IDS[:2, :64])
    assert first_rows({"pixel_values": torch.zeros(5, 3, 4, 4)})["pixel_values"].shape == (2, 3, 4, 4)
    assert first_rows("neither") == "neither"


def test_lengths_double_up_to_the_limit_of_the_model():
    found = texts(build("gpt2"), [IDS], DiagnoseOptions())  # 64 positions
    assert [part.shape for part in found] == [(2, 64)]
    free = texts(Encoder(norm_first=True), [IDS, IDS], DiagnoseOptions(longest=600))
    assert [part.shape for part in free] == [(2, 64), (2, 128), (2, 256), (1, 512)]
    assert torch.equal(free[3][0], IDS.flatten()[:512])
    assert texts(Encoder(norm_first=True), ["no ids"], DiagnoseOptions()) == []


def test_about_so_many_tokens_but_never_half_a_set_of_negatives():
    assert [part.shape for part in some([IDS, IDS], 600, CAUSAL)] == [(2, 256)]
    assert [part.shape for part in some([IDS, IDS], 1, CAUSAL)] == [(1, 256)]
    assert [part.shape for part in some([IDS, IDS], 600, CONTRASTIVE)] == [(8, 256)]
    labelled = [{"input_ids": IDS, "labels": IDS}] * 3
    assert some(labelled, 600, CAUSAL) is labelled


@pytest.mark.parametrize(("loss", "count", "rows"), [(CAUSAL, 4, 1), (MASKED, 8, 2)])
def test_skips_see_four_batches_or_eight_where_few_tokens_count(loss, count, rows):
    parts = skip_batches([IDS, IDS], loss, 512)
    assert [part.shape for part in parts] == [(rows, 128)] * count
    assert torch.equal(torch.cat(parts), torch.cat([IDS, IDS])[: count * rows, :128])


def test_fewer_tokens_are_shorter_windows_not_fewer_of_them():
    parts = skip_batches([IDS, IDS], CAUSAL, 384)
    assert [part.shape for part in parts] == [(1, 96)] * 4
    assert [part.shape for part in skip_batches([IDS, IDS], MASKED, 384)] == [(2, 128)] * 8
    assert [part.shape for part in skip_batches([IDS[:, :64]], CAUSAL, 384)] == [(2, 64)] * 4


def test_only_plain_text_is_shortened():
    assert shortened(IDS, 128).shape == (len(IDS), 128)
    assert shortened(IDS, 512) is IDS
    labelled, hidden = {"input_ids": IDS, "labels": IDS}, HiddenAnew(IDS, 1)
    assert shortened(labelled, 128) is labelled
    assert shortened(hidden, 128) is hidden
    padded = {"input_ids": IDS, "attention_mask": (IDS % 256 >= 150).long()}  # on the left: the first 128 are no text
    assert shortened(padded, 128) is padded


def test_runs_begin_where_the_stream_turns_least():
    angular = [[9.0, 0.5, 9, 9], [9.0, 0.1, 9], [9.0, 0.3], [9.0]]
    assert candidate_runs(angular, tries=2) == [(1, 2), (2, 2)]
    assert candidate_runs([[0.1, 0.2], [0.1]]) == []  # half of two layers is one, and one is no run


def test_windows_share_no_text_and_have_one_length():
    found = windows([IDS[:4], IDS[4:]], CAUSAL, count=5, tokens=1000)
    assert [tuple(window.shape) for window in found] == [(1, 200)] * 5
    assert len(torch.cat(found).flatten().unique()) == 1000
    first, *_ = windows([IDS], MASKED, count=4, tokens=100)
    assert tuple(first.shape) == (DRAWS, 128)
    padded = {"input_ids": IDS, "attention_mask": (IDS % 256 < 250).long()}
    assert [int(window["attention_mask"].sum()) for window in windows([padded], CAUSAL, count=6, tokens=100)] == [
        250
    ] * 6
