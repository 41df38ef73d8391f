"""Dyck(k, m) and Tomita 1-7 as automata with a law: the next symbol, or the end, at every prefix.

A sequence is `$ w_1 w_2 ...`: the end mark also begins, so that the empty prefix has a position. Inputs of any length
come without rejection: `process` follows the law but never ends early (its beginnings have one distribution whatever
the length), `strings` are complete strings, the length drawn first, then the path.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import cached_property
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from normlab.errors import ConfigError
from normlab.tasks.automata import DEAD, Automaton
from normlab.tasks.base import Batch, Task, draw


class Language(Task):
    """A regular language with a stationary law per state."""

    window: ClassVar[int] = 12  # a multiple of every period among these languages (2 and 3)

    source: Literal["process", "strings"] = "process"

    @cached_property
    @abstractmethod
    def automaton(self) -> Automaton: ...

    @cached_property
    @abstractmethod
    def table(self) -> Tensor:
        """[states, vocab] in float64: the law per state; the end mark is the last column."""

    @property
    def vocab_size(self) -> int:
        return len(self.automaton.symbols) + 1

    @property
    def end(self) -> int:
        return len(self.automaton.symbols)

    def law(self, tokens: Tensor) -> Tensor:
        states = self.states(tokens)
        return torch.where((states == DEAD).unsqueeze(-1), 0.0, self.table[states.clamp_min(0)])

    def states(self, tokens: Tensor) -> Tensor:
        """The state after each prefix of `$ w`; what follows a second `$`, or an illegal symbol, is DEAD."""
        begun = tokens[:, :1] == self.end
        inside = tokens[:, 1:]
        states = self.automaton.run(inside.clamp_max(self.end - 1))
        ended = torch.cat([~begun, (inside == self.end).cumsum(-1).bool() | ~begun], 1)
        return torch.where(ended, DEAD, states)

    def inputs(self, count: int, length: int, generator: torch.Generator) -> Tensor:
        if self.source == "strings":
            return self._strings(count, length, generator)
        going = self.table[:, :-1].cumsum(-1)  # the law given that the string goes on
        words = torch.full((count, length), self.end, dtype=torch.int64)
        u = torch.rand(count, length, generator=generator, dtype=torch.float64)
        state = torch.full((count,), self.automaton.start, dtype=torch.int64)
        for t in range(1, length):
            total = going[state]
            words[:, t] = torch.searchsorted(total, u[:, t : t + 1] * total[:, -1:], right=True).squeeze(-1)
            state = self.automaton.step[state, words[:, t]]
        return words

    def _strings(self, count: int, length: int, generator: torch.Generator) -> Tensor:
        """Complete strings, `$ w $ $ ...`: the length uniform over those that exist, then uniform over its strings."""
        known = torch.tensor(self.automaton.lengths(length - 1))
        chosen = known[torch.randint(len(known), (count,), generator=generator)]
        words = torch.full((count, length), self.end, dtype=torch.int64)
        found = self.automaton.sample_each(chosen, generator)
        words[:, 1 : found.shape[1] + 1] = torch.where(found < 0, self.end, found)
        return words

    def sample(self, count: int, length: int, generator: torch.Generator, *, law: bool = False) -> Batch:
        self.check(count, length)
        tokens = self.inputs(count, length, generator)
        states = self.states(tokens)
        exact = torch.where((states == DEAD).unsqueeze(-1), 0.0, self.table[states.clamp_min(0)])
        return Batch(tokens, draw(exact, generator), exact if law or self.targets == "exact" else None)


MOST_STATES = 50_000


class Dyck(Language):
    """Balanced brackets of `pairs` kinds, nested at most `depth` deep.

    Law: empty stack, an opening bracket 1/2 in total and the end 1/2; full stack, the matching close 1; else an
    opening bracket 1/2 in total and the matching close 1/2. Symbols: opens 0..k-1, closes k..2k-1.
    """

    task: Literal["dyck"] = "dyck"
    pairs: int = Field(default=2, ge=1)
    depth: int = Field(default=3, ge=1)

    @cached_property
    def automaton(self) -> Automaton:
        k, m = self.pairs, self.depth
        states = sum(k**i for i in range(m + 1))
        if states > MOST_STATES:
            raise ConfigError(
                f"Dyck with pairs={k} and depth={m} has {states} states, more than the {MOST_STATES} that "
                "are kept as a table; take fewer pairs or a smaller depth"
            )

        def step(stack: tuple[int, ...], symbol: int) -> tuple[int, ...] | None:
            if symbol < k:
                return (*stack, symbol) if len(stack) < m else None
            return stack[:-1] if stack and stack[-1] == symbol - k else None

        names = [f"({i}" for i in range(k)] + [f"){i}" for i in range(k)]
        empty: tuple[int, ...] = ()
        return Automaton.explore(names, empty, step, lambda stack: not stack)

    @cached_property
    def table(self) -> Tensor:
        k = self.pairs
        legal = (self.automaton.step != DEAD).double()
        opens, closes = legal[:, :k], legal[:, k:]
        empty = self.automaton.accept.double().unsqueeze(-1)
        full = 1 - opens[:, :1]
        law = torch.cat([opens / (2 * k), closes * (0.5 + 0.5 * full), 0.5 * empty], 1)
        return law / law.sum(-1, keepdim=True)


class Tomita(Language):
    """Tomita's seven languages over {0, 1}. Law: uniform over the legal next symbols and, where accepted, the end.

    1: 1*. 2: (10)*. 3: no odd run of 1s directly followed by an odd run of 0s. 4: no 000. 5: even number of 0s and of
    1s. 6: #0 - #1 divisible by 3. 7: 0*1*0*1*.
    """

    task: Literal["tomita"] = "tomita"
    number: int = Field(default=5, ge=1, le=7)

    @cached_property
    def automaton(self) -> Automaton:
        step, start, accept = _TOMITA[self.number]
        return Automaton.explore("01", start, step, accept)

    @cached_property
    def table(self) -> Tensor:
        legal = torch.cat([self.automaton.step != DEAD, self.automaton.accept.unsqueeze(-1)], 1).double()
        return legal / legal.sum(-1, keepdim=True)


def _third(state: tuple[int, int], symbol: int) -> tuple[int, int] | None:
    """(odd run of 1s before or now, parity of the run of 0s behind it)."""
    odd, zeros = state
    if symbol == 1:
        if zeros:
            return None
        # A run of 1s begins after 0s, and goes on otherwise; both flip the parity from "even so far".
        return (1, 0) if odd in (0, 2) else (0, 0)
    return (2, 1 - zeros) if odd else (0, 0)


_TOMITA = {
    1: (lambda q, a: q if a == 1 else None, 0, lambda q: True),
    2: (lambda q, a: 1 - q if a == 1 - q else None, 0, lambda q: q == 0),
    3: (_third, (0, 0), lambda q: q[1] == 0),
    4: (lambda q, a: 0 if a == 1 else (q + 1 if q < 2 else None), 0, lambda q: True),
    5: (lambda q, a: (q[0] ^ (a == 0), q[1] ^ (a == 1)), (0, 0), lambda q: q == (0, 0)),
    6: (lambda q, a: (q + (1 if a == 0 else -1)) % 3, 0, lambda q: q == 0),
    7: (lambda q, a: q if q % 2 == a else (q + 1 if q < 3 else None), 0, lambda q: True),
}
