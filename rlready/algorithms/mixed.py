"""Reinforcement and likelihood in one step: any algorithm, plus the log-likelihood of given demonstrations.

    gradient = gradient of the algorithm's loss  +  coefficient x gradient of  -mean log pi(demonstration)

Each mean has its own denominator: the algorithm's is over its own tokens, the demonstrations' over theirs (as prime-rl
does). Adding demonstrations therefore does not dilute the reinforcement, however many there are, and a test holds that
the step's gradient is the sum of the two alone.

It works on the learner and not on the loss: the algorithm runs as it is, and right before each of its optimizer steps a
batch of demonstrations adds its gradient. So it holds for whatever steps a learner (PPO's critic, pairs, probes).

    Mixed(by=GRPO(clip_high=0.28), rows=tuple(rows))                                      Python
    mixed.by=grpo  mixed.options.clip_high=0.28  mixed.demonstrations=shown.jsonl         command line

A line of the file is a JSON object with "prompt", a text or a list of chat messages, and "completion", a text.

Left out, and why: a schedule of the coefficient (two runs with the same fields would differ by their length).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import numpy as np

from rlready.algorithms.base import Algorithm, denominators, reweigh, stream_sum
from rlready.envs.base import EnvFactory
from rlready.errors import UserError
from rlready.policy.base import (
    Batch,
    Learner,
    Loss,
    Outputs,
    Policy,
    Renderer,
    SamplingParams,
    over_ranks,
    require_learner,
)
from rlready.seeds import np_rng
from rlready.tasks.base import TaskSet
from rlready.tasks.files import read_jsonl, to_messages
from rlready.types import Group, Row


@dataclass(frozen=True)
class Mixed(Algorithm):
    """The fields `epochs` and `minibatches` are the other algorithm's; `average`, `constant`: of the demonstrations.

    Attributes:
        by: the algorithm, or its name.
        options: its fields, where it is given by name.
        demonstrations: path of a JSONL file.
        rows: demonstrations as rows with the stream "nll", instead of a file.
        coefficient: weight of the demonstrations' mean; 0.1 is VAPO's weight of imitation (arXiv 2504.05118; from
            memory).
        batch: demonstrations per optimizer step, in an order hashed from (seed, pass).
    """

    paper: ClassVar[str] = "prime-rl"
    when: ClassVar[str] = "demonstrations beside RL, neither diluting the other"
    assigns: ClassVar[str] = "RL's own + -log pi of demonstrations"

    by: str | Algorithm = "grpo"
    options: dict[str, Any] = field(default_factory=dict)
    demonstrations: str = ""
    rows: tuple[Row, ...] = ()
    coefficient: float = 0.1
    batch: int = 16
    _inner: Algorithm = field(init=False, repr=False, compare=False)
    _state: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the fields and build the other algorithm.

        Raises:
            UserError: a field has a value that cannot work.
        """
        from rlready.algorithms import algorithm

        super().__post_init__()
        if isinstance(self.by, Algorithm):
            if self.options:
                raise UserError("Mixed: options are read where by is a name; set the fields of the algorithm itself.")
            inner: Algorithm | None = self.by
        else:
            inner = None if self.by.lower() == "mixed" else algorithm(self.by, **self.options)
        if inner is None or isinstance(inner, Mixed):
            raise UserError("Mixed: by must be another algorithm, such as grpo.")
        for name in ("epochs", "minibatches"):
            if getattr(self, name) != 1:
                raise UserError(f"Mixed: {name} is the other algorithm's field; set options.{name} instead.")
        if self.coefficient < 0:
            raise UserError(f"Mixed: coefficient={self.coefficient} must not be negative.")
        if self.batch < 1:
            raise UserError(f"Mixed: batch={self.batch} must be at least 1.")
        if self.rows and self.demonstrations:
            raise UserError("Mixed: give demonstrations as a file or as rows, not both.")
        object.__setattr__(self, "_inner", inner)
        self._state["drawn"] = 0

    @property
    def inner(self) -> Algorithm:
        """The other algorithm."""
        return self._inner

    @property
    def max_lag(self) -> int:
        """As the other algorithm."""
        return self._inner.max_lag

    @property
    def least_group(self) -> int:
        """As the other algorithm."""
        return self._inner.least_group

    @property
    def needs_reference(self) -> bool:
        """As the other algorithm."""
        return self._inner.needs_reference

    @property
    def needs_values(self) -> bool:
        """As the other algorithm."""
        return self._inner.needs_values

    async def credit(self, groups: list[Group], policy: Policy) -> None:
        """As the other algorithm."""
        await self._inner.credit(groups, policy)

    async def update(self, policy: Policy, groups: list[Group]) -> dict[str, float]:
        """The other algorithm's update, each of its steps with demonstrations added.

        Where it takes no step (no valid trajectories), one is taken on demonstrations alone.

        Returns:
            Its metrics, and `loss/demonstrations`, the mean over the steps.

        Raises:
            UserError: there are no demonstrations, or their file cannot be read.
        """
        rows = self._rows(policy.renderer)
        shown: list[float] = []

        def add(learner: Learner) -> None:
            drawn = reweigh(self._draw(rows), self.average)
            divisors = over_ranks(learner, denominators(drawn, self.average, self.constant))
            shown.append(learner.forward_backward(drawn, self._likelihood, divisors)["loss/demonstrations"])

        learner = _Adding(require_learner(policy), add)
        adding = copy.copy(policy)
        adding.learner = cast(Learner, learner)
        metrics = await self._inner.update(adding, groups)
        if not shown:
            metrics |= learner.step()
            policy.sync()
        return metrics | {"loss/demonstrations": float(np.mean(shown))}

    def _likelihood(self, outputs: Outputs, batch: Batch) -> Loss:
        total = self.coefficient * stream_sum("nll", -outputs.logprobs, batch)
        return Loss(total, {"loss/demonstrations": total.detach()})

    def _draw(self, rows: Sequence[Row]) -> list[Row]:
        """The next batch: every demonstration once per pass."""
        out: list[Row] = []
        while len(out) < min(self.batch, len(rows)):
            epoch, place = divmod(self._state["drawn"], len(rows))
            order = np_rng(self.seed, "demonstrations", epoch).permutation(len(rows))
            taken = order[place : place + min(self.batch, len(rows)) - len(out)]
            out += [rows[i] for i in taken]
            self._state["drawn"] += len(taken)
        return out

    def _rows(self, renderer: Renderer) -> Sequence[Row]:
        """The demonstrations; a file is read once."""
        if self.rows:
            found: Sequence[Row] = self.rows
        elif not self.demonstrations:
            raise UserError("Mixed: there are no demonstrations; name a JSONL file of prompts and completions.")
        else:
            if "rows" not in self._state:
                self._state["rows"] = read_demonstrations(self.demonstrations, renderer)
            found = self._state["rows"]
        if not any(np.any(row.weights.get("nll", 0.0)) for row in found):
            raise UserError("Mixed: no demonstration has a token with weight; check the masks.")
        return found

    def bind(self, tasks: TaskSet, env: EnvFactory, params: SamplingParams | None = None) -> Self:
        """With the other algorithm bound."""
        return replace(self, by=self._inner.bind(tasks, env, params), options={})

    def state_dict(self) -> dict[str, Any]:
        """Demonstrations drawn so far, and the other algorithm's state."""
        return {"drawn": self._state["drawn"], "inner": self._inner.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Inverse of `state_dict`."""
        self._state["drawn"] = int(state["drawn"])
        self._inner.load_state_dict(state["inner"])


class _Adding:
    """A learner whose step adds something first; all else is the learner's own."""

    def __init__(self, learner: Learner, add: Callable[[Learner], None]) -> None:
        self._learner = learner
        self._add = add

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)

    def step(self) -> dict[str, float]:
        self._add(self._learner)
        return self._learner.step()


def read_demonstrations(path: str | Path, renderer: Renderer) -> list[Row]:
    """Rows of a JSONL file of prompts and completions; the completion's tokens, end token included, have weight.

    Raises:
        UserError: the file cannot be read, is empty, or a line lacks something or cannot be encoded; names the line.
    """
    rows: list[Row] = []
    for number, record in read_jsonl(path):
        for name in ("prompt", "completion"):
            if not record.get(name):
                has = ", ".join(map(str, record)) or "nothing"
                raise UserError(f'{path}, line {number}: there is no "{name}"; the record has {has}.')
        completion = record["completion"]
        if not isinstance(completion, str):
            raise UserError(f"{path}, line {number}: the completion must be a text, not a {type(completion).__name__}.")
        try:
            context = renderer.render(to_messages(record["prompt"]))
            rows.append(Row.from_segments([(context, 0.0), (renderer.encode_completion(completion), 1.0)]))
        except UserError as error:
            raise UserError(f"{path}, line {number}: {error}") from error
    if not rows:
        raise UserError(f"{path} holds no demonstrations.")
    return rows
