"""Linear and embedding layers that leave their weights to the model's one initialisation."""

from __future__ import annotations

from torch import nn


class Linear(nn.Linear):
    """nn.Linear whose construction draws no random numbers: the scheme fills the matrix (`init_branch_`)."""

    def reset_parameters(self) -> None:
        pass

    def reset_bias_(self) -> None:
        if self.bias is not None:
            nn.init.zeros_(self.bias)


class Embedding(nn.Embedding):
    """nn.Embedding whose construction draws no random numbers."""

    def reset_parameters(self) -> None:
        pass
