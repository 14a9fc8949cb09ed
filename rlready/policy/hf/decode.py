"""A batch of requests on its way through a Hugging Face model.

Prompts are left-padded behind what they have in common (which the prefix store knows), and identical ones are computed
once. Then one token is drawn for every row and step; a finished row leaves the batch at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlready.policy.base import Sample, SampleRequest
from rlready.policy.hf.body import Body
from rlready.policy.hf.prefix import Prefixes
from rlready.policy.tiny.draw import Drawn, MaskTable, Rule, draw, mix_seeds, uniforms
from rlready.types import IntArray


@dataclass(slots=True, eq=False)
class Row:
    """A request, and what was drawn for it so far.

    Attributes:
        request: what was asked.
        owner: for the caller's use.
        rule: how it is drawn.
        version: of the weights it is drawn with.
        node: ids allowed next where it is bound to choices.
        result: the finished sample.
    """

    request: SampleRequest
    owner: Any = None
    rule: Rule = field(init=False)
    version: int = 0
    node: IntArray | None = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    support: list[IntArray | None] = field(default_factory=list)
    result: Sample | None = None

    def __post_init__(self) -> None:
        self.rule = Rule.of(self.request.params)

    def finish(self, stop: bool) -> None:
        """Make the sample."""
        support = self.support if any(s is not None for s in self.support) else None
        entropy = self.entropy if self.request.params.entropy else None
        end = "end" if stop else "length"
        self.result = Sample(self.tokens, self.logprobs, end, self.version, support, entropy)  # type: ignore[arg-type]


class Decoding:
    """Rows that are decoded together. `start` once, then `step` until `rows` is empty.

    Both compute with whatever weights are in place, so they are called within `Body.using`.
    """

    def __init__(self, body: Body, prefixes: Prefixes, masks: MaskTable, rows: Sequence[Row], *, on_cpu: bool) -> None:
        """Take rows.

        Args:
            body: the model.
            prefixes: store of shared beginnings.
            masks: table of admissible ids.
            rows: at least one, each with a prompt that leaves room for a token.
            on_cpu: draw on the CPU, where sums are taken in a fixed order.
        """
        self.body, self.prefixes, self.masks = body, prefixes, masks
        self.rows = list(rows)
        self.device = torch.device("cpu") if on_cpu else body.device
        self._noise = mix_seeds([row.request.seed for row in self.rows])
        for row in self.rows:
            if row.request.params.choices is not None:
                row.node = row.request.params.choices.allowed(())

    def start(self) -> list[Row]:
        """Compute the prompts and draw the first tokens; returns the rows that are finished already."""
        unique: dict[tuple[int, ...], int] = {}
        of = [unique.setdefault(tuple(row.request.prompt_ids), len(unique)) for row in self.rows]
        prompts = [list(p) for p in unique]
        self.cache = self.body.new_cache()
        shared = prompts[0][: _common(prompts)]
        past = self.prefixes.into(self.cache, shared, len(prompts))
        lengths = np.asarray([len(p) for p in prompts])
        width = int(lengths.max()) - past
        tokens = np.zeros((len(prompts), width), np.int64)
        mask = np.zeros((len(prompts), past + width), np.int64)
        mask[:, :past] = 1
        for i, prompt in enumerate(prompts):
            rest = prompt[past:]
            tokens[i, width - len(rest) :] = rest
            mask[i, past + width - len(rest) :] = 1
        padded = not mask.all()
        positions = np.maximum(mask.cumsum(-1)[:, past:] - 1, 0)
        logits = self._forward(tokens, mask if padded else None, positions)
        index = np.asarray(of)
        if len(prompts) < len(self.rows):
            self.cache.batch_select_indices(torch.from_numpy(index).to(self.body.device))
            logits = logits[torch.from_numpy(index).to(logits.device)]
        self._mask = mask[index] if padded else None
        self._seen = lengths[index]
        return self._draw(logits)

    def step(self) -> list[Row]:
        """Compute the tokens drawn last and draw the next ones; returns the rows that are finished."""
        tokens = np.asarray([[row.tokens[-1]] for row in self.rows])
        if self._mask is not None:
            self._mask = np.concatenate((self._mask, np.ones((len(self.rows), 1), np.int64)), axis=1)
        logits = self._forward(tokens, self._mask, self._seen[:, None])
        self._seen = self._seen + 1
        return self._draw(logits)

    def drop(self, gone: set[int]) -> None:
        """Take rows out whose caller no longer waits; `gone` holds their `id`s."""
        self._keep([i for i, row in enumerate(self.rows) if id(row) not in gone])

    def _forward(self, tokens: IntArray, mask: IntArray | None, positions: IntArray) -> Tensor:
        """Logits of every row's next token, [B, V] float32.

        Raises:
            FloatingPointError: they are not finite.
        """
        device = self.body.device
        logits = self.body.forward(
            torch.from_numpy(tokens).to(device),
            keep=1,
            cache=self.cache,
            mask=None if mask is None else torch.from_numpy(mask).to(device),
            positions=torch.from_numpy(np.ascontiguousarray(positions)).to(device),
        )
        logits = logits[:, -1].to(device=self.device, dtype=torch.float32)
        if not torch.isfinite(logits.amax(-1)).all():
            raise FloatingPointError("The model's logits are not finite: its weights hold inf or nan, or overflow.")
        return logits

    def _draw(self, logits: Tensor) -> list[Row]:
        """Draw and note one token per row; rows that are finished leave."""
        count = len(self.rows[0].tokens)  # the same for all: they started together
        noise = uniforms(self._noise, np.full(len(self.rows), count, np.int64)).to(self.device)
        allowed: Tensor | None = None
        if any(row.node is not None for row in self.rows):
            if self.masks.full:
                self.masks.clear()
            at = [0 if row.node is None else self.masks.index(row.node) for row in self.rows]
            allowed = self.masks.table[torch.tensor(at)].to(self.device)
        by_rule: dict[Rule, list[int]] = {}
        for i, row in enumerate(self.rows):
            by_rule.setdefault(row.rule, []).append(i)
        for rule, members in by_rule.items():
            pick = torch.tensor(members, device=self.device)
            whole = len(by_rule) == 1
            drawn = draw(
                logits if whole else logits[pick],
                rule,
                noise if whole else noise[pick],
                allowed if whole or allowed is None else allowed[pick],
            )
            self._note(members, rule, drawn)
        finished, alive = [], []
        for i, row in enumerate(self.rows):
            stop = self._ended(row)
            cap = min(row.request.params.max_tokens, self.body.max_len - len(row.request.prompt_ids))
            if stop or len(row.tokens) >= cap:
                row.finish(stop)
                finished.append(row)
            else:
                alive.append(i)
        self._keep(alive)
        return finished

    def _note(self, members: list[int], rule: Rule, drawn: Drawn) -> None:
        tokens, logprobs = drawn.tokens.tolist(), drawn.logprobs.tolist()
        entropy = None if drawn.entropy is None else drawn.entropy.tolist()
        kept = drawn.kept.cpu().numpy() if drawn.kept is not None and rule.truncates else None
        for k, i in enumerate(members):
            row = self.rows[i]
            row.tokens.append(int(tokens[k]))
            row.logprobs.append(float(logprobs[k]))
            if entropy is not None:
                row.entropy.append(float(entropy[k]))
            support = row.node
            if kept is not None:
                ids = np.flatnonzero(kept[k])
                if row.node is None or len(ids) != len(row.node):
                    support = None if len(ids) == self.body.vocab_size else ids
            row.support.append(support)

    @staticmethod
    def _ended(row: Row) -> bool:
        params = row.request.params
        if params.choices is not None:
            row.node = params.choices.allowed(row.tokens)
            if row.node is None:
                return True
        return row.tokens[-1] in params.stop_ids

    def _keep(self, alive: list[int]) -> None:
        """Go on with these rows only."""
        if len(alive) == len(self.rows):
            return
        self.rows = [self.rows[i] for i in alive]
        if not alive:
            self.cache = None
            return
        index = np.asarray(alive)
        self._noise, self._seen = self._noise[index], self._seen[index]
        if self._mask is not None:
            self._mask = self._mask[index]
        self.cache.batch_select_indices(torch.from_numpy(index).to(self.body.device))


def _common(prompts: Sequence[list[int]]) -> int:
    """Length of the common beginning of all prompts, at least one token short of the shortest."""
    least, most = min(prompts), max(prompts)  # what the extremes share, all share
    n = min(len(p) for p in prompts) - 1
    for i in range(min(n, len(least), len(most))):
        if least[i] != most[i]:
            return i
    return max(n, 0)
