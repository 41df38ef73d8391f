"""One row alone says what it says beside another."""

import torch
from torch import nn

from normlab.probes.measure.twin.rows import read_rows_apart


class Tiny(nn.Module):
    def __init__(self, *, mixed=False):
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head, self.mixed = nn.Embedding(11, 8), nn.Linear(8, 11), mixed

    def forward(self, input_ids, attention_mask=None):
        x = self.table(input_ids)
        x = x + 0.1 * x.mean(0, keepdim=True) if self.mixed else x
        return self.head(x)


IDS = torch.arange(24).reshape(3, 8) % 11


def test_rows_that_are_mixed_are_seen():
    assert read_rows_apart(Tiny(mixed=True), IDS) > 1e-2
    assert read_rows_apart(Tiny(), IDS) < 1e-6


def test_padding_is_not_compared_and_one_row_is_not_asked():
    mask = torch.ones_like(IDS)
    mask[0, 5:] = 0
    assert read_rows_apart(Tiny(), {"input_ids": IDS, "attention_mask": mask}) < 1e-6
    assert read_rows_apart(Tiny(mixed=True), IDS[:1]) is None
