"""Deterministic finite automata: minimal form, exact counts, sampling of a given length without rejection."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from normlab.errors import InputError

DEAD = -1
State = TypeVar("State", bound=Hashable)


@dataclass(frozen=True, eq=False)
class Automaton:
    """A trimmed automaton: every state is reachable and can still be accepted; anything else is DEAD."""

    symbols: tuple[str, ...]
    step: Tensor  # [states, symbols] int64, DEAD where no accepted string goes on
    accept: Tensor  # [states] bool
    start = 0

    @classmethod
    def explore(
        cls,
        symbols: Sequence[str],
        start: State,
        step: Callable[[State, int], State | None],
        accept: Callable[[State], bool],
    ) -> Automaton:
        """The minimal automaton of the states that `step` reaches from `start` (None is dead)."""
        number: dict[State, int] = {start: 0}
        queue, rows = deque([start]), []
        while queue:
            state = queue.popleft()
            row = []
            for symbol in range(len(symbols)):
                after = step(state, symbol)
                if after is not None and after not in number:
                    number[after] = len(number)
                    queue.append(after)
                row.append(DEAD if after is None else number[after])
            rows.append(row)
        return _minimal(tuple(symbols), rows, [accept(state) for state in number])

    @property
    def states(self) -> int:
        return len(self.accept)

    def accepts(self, word: Sequence[int]) -> bool:
        state = self.start
        for symbol in word:
            state = int(self.step[state, symbol])
            if state == DEAD:
                return False
        return bool(self.accept[state])

    def run(self, words: Tensor) -> Tensor:
        """States before, between and after the symbols: [batch, length + 1]; DEAD stays DEAD."""
        states = torch.full((words.shape[0], words.shape[1] + 1), self.start, dtype=torch.int64)
        for t in range(words.shape[1]):
            before = states[:, t]
            after = self.step[before.clamp_min(0), words[:, t]]
            states[:, t + 1] = torch.where(before == DEAD, DEAD, after)
        return states

    def counts(self, length: int) -> list[list[int]]:
        """`counts[r][q]`: how many strings of r symbols lead from q to acceptance, exactly (Python integers)."""
        table = [[int(a) for a in self.accept]]
        rows = self.step.tolist()
        for _ in range(length):
            last = table[-1]
            table.append([sum(last[q] for q in row if q != DEAD) for row in rows])
        return table

    def lengths(self, longest: int) -> list[int]:
        """The lengths up to `longest` that have an accepted string."""
        ahead = self._reach(longest)
        return [n for n in range(longest + 1) if ahead[n][self.start] > 0]

    def sample_each(self, lengths: Tensor, generator: torch.Generator) -> Tensor:
        """One accepted string for each length (which must have one), uniform among those of its length; padded with -1."""
        longest = int(lengths.max()) if len(lengths) else 0
        return self._draw(lengths, self._reach(longest)[: longest + 1], generator)

    def _draw(
        self, lengths: Tensor, reach: list[Tensor], generator: torch.Generator, weights: Tensor | None = None
    ) -> Tensor:
        longest, ahead = len(reach) - 1, torch.stack(reach)
        words = torch.full((len(lengths), longest), -1, dtype=torch.int64)
        u = torch.rand(len(lengths), longest, generator=generator, dtype=torch.float64)
        state = torch.full((len(lengths),), self.start, dtype=torch.int64)
        for t in range(longest):
            on = (lengths > t).nonzero().squeeze(-1)
            after = self.step[state[on]]
            mass = torch.where(after == DEAD, 0.0, ahead[(lengths[on] - t - 1).unsqueeze(-1), after.clamp_min(0)])
            total = (mass if weights is None else mass * weights[state[on], :-1]).cumsum(-1)
            words[on, t] = torch.searchsorted(total, u[on, t : t + 1] * total[:, -1:], right=True).squeeze(-1)
            state[on] = self.step[state[on], words[on, t]]
        return words

    def sample(self, count: int, length: int, generator: torch.Generator, *, weights: Tensor | None = None) -> Tensor:
        """Accepted strings of exactly this length: uniform, or in proportion to the product of step weights.

        `weights` is [states, symbols + 1]; the last column weighs stopping. No string is ever rejected: the path is
        drawn with the total weight of what remains possible after each symbol.
        """
        reach = self._reach(length, weights)[: length + 1]
        if not reach[length][self.start] > 0:
            known = self.lengths(length + 8)
            near = min(known, key=lambda n: abs(n - length)) if known else None
            raise InputError(
                f"no accepted string has length {length}"
                + (f"; the nearest length that has one is {near}" if near is not None else "; the language is empty")
            )
        return self._draw(torch.full((count,), length), reach, generator, weights)

    @cached_property
    def _uniform_reach(self) -> list[Tensor]:
        """What `_reach` finds without weights: kept, since every batch asks for it, and grown as it is needed."""
        return [self.accept.double()]

    @cached_property
    def _dead(self) -> Tensor:
        return self.step == DEAD

    def _reach(self, length: int, weights: Tensor | None = None) -> list[Tensor]:
        """Weight of all completions per remaining length, in float64, each scaled to a maximum of 1."""
        move = None if weights is None else weights[:, :-1]
        table = self._uniform_reach if weights is None else [self.accept * weights[:, -1]]
        while len(table) <= length:
            mass = torch.where(self._dead, 0.0, table[-1][self.step.clamp_min(0)])
            total = (mass if move is None else mass * move).sum(-1)
            largest = total.max()
            table.append(total / largest if largest > 0 else total)
        return table


def _minimal(symbols: tuple[str, ...], rows: list[list[int]], accept: list[bool]) -> Automaton:
    """Trim what cannot be accepted, then Moore's refinement; states are renumbered in breadth-first order."""
    useful = {q for q, yes in enumerate(accept) if yes}
    while more := {q for q, row in enumerate(rows) if q not in useful and any(r in useful for r in row)}:
        useful |= more
    if 0 not in useful:
        raise InputError("the automaton accepts no string at all")
    rows = [[r if r in useful else DEAD for r in row] for row in rows]
    block = {q: int(accept[q]) for q in useful}
    block[DEAD] = DEAD
    while True:
        keys: dict[tuple[int, ...], int] = {}
        finer = {q: keys.setdefault((block[q], *(block[r] for r in rows[q])), len(keys)) for q in sorted(useful)}
        if len(keys) == len({block[q] for q in useful}):
            break
        block = {**finer, DEAD: DEAD}
    order, queue = {block[0]: 0}, deque([0])
    member = {block[q]: q for q in sorted(useful, reverse=True)}
    table, final = [], []
    while queue:
        q = queue.popleft()
        row = []
        for r in rows[q]:
            if r != DEAD and block[r] not in order:
                order[block[r]] = len(order)
                queue.append(member[block[r]])
            row.append(DEAD if r == DEAD else order[block[r]])
        table.append(row)
        final.append(accept[q])
    return Automaton(symbols, torch.tensor(table), torch.tensor(final))
