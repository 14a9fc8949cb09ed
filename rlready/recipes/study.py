"""Comparing agents fairly, for recipes: same tasks and worlds, greedy and sampled, with intervals and costs.

Sampled success at temperature 1 flatters RL, which sharpens. So every arm is shown greedy, sampled at 1, and sampled at
a temperature that was tuned for it on dev tasks. Each arm stands in a stage of the run, so that a resumed run skips
what is done, and its training cost is read off the run's own ledger, never typed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlready.checkpoint import Stateful
from rlready.envs.base import EnvFactory
from rlready.evaluate import Evaluation, Paired, evaluate, paired, sweep_temperature
from rlready.policy.base import Policy, SamplingParams, require_learner
from rlready.run import Run
from rlready.run_report import Table, percent
from rlready.tasks.base import TaskSet

MODES = ("greedy", "tuned", "sampled")


@dataclass
class Arm:
    """One agent of a comparison.

    Attributes:
        name: shown in the table.
        real: real transitions that its RL was trained on.
        checks: real transitions that went into checking, not training.
        seconds: wall-clock seconds of its own training.
        temperature: tuned on dev.
        scores: evaluation by task set and mode ("greedy", "tuned", "sampled").
        halted: why its training was stopped early, if it was.
    """

    name: str
    real: int = 0
    checks: int = 0
    seconds: float = 0.0
    temperature: float = 1.0
    scores: dict[str, dict[str, Evaluation]] = field(default_factory=dict)
    halted: str = ""

    def success(self, tasks: str = "test", mode: str = "greedy") -> float:
        """Share of held-out tasks solved."""
        return self.scores[tasks][mode].success


class Study:
    """Arms measured on the same held-out real tasks.

    Attributes:
        arms: by name, in the order they were compared.
    """

    def __init__(
        self,
        run: Run,
        env: EnvFactory,
        dev: TaskSet,
        test: Mapping[str, TaskSet],
        *,
        temperatures: Sequence[float] = (0.25, 0.5, 0.75),
        params: SamplingParams | None = None,
        samples: int = 1,
        deadline: float | None = 60.0,
    ) -> None:
        """Fix what every arm is measured on.

        Args:
            run: keeps stages and the ledger.
            env: the real environment.
            dev: tasks on which temperatures are tuned.
            test: held-out task sets by name; "test" is the headline.
            temperatures: the grid.
            params: decoding but for the temperature.
            samples: episodes per task where decoding is not greedy.
            deadline: seconds per episode.
        """
        self.run = run
        self.env = env
        self.dev = dev
        self.test = test
        self.temperatures = tuple(temperatures)
        self.params = params or SamplingParams()
        self.samples = samples
        self.deadline = deadline
        self.arms: dict[str, Arm] = {}

    def arm(
        self,
        name: str,
        policy: Policy,
        train: Callable[[], str | None] | None = None,
        parts: Mapping[str, Stateful] | None = None,
    ) -> Arm:
        """Train an arm, unless an earlier attempt finished it, and measure it.

        Args:
            name: of the arm, and of its stage.
            policy: what is trained and measured; holds the arm's weights afterwards.
            train: changes the policy in place; returns why it was halted, if it was. None where there is nothing to
                train.
            parts: what else the training changes and the report needs; kept and put back with the weights.
        """
        learner = require_learner(policy)
        kept: dict[str, Stateful] = {"learner": learner, **(parts or {})}
        with self.run.stage(name) as stage:
            if stage.done:
                stage.load(kept)
                policy.sync()
            else:
                stage.result["halted"] = (train() if train is not None else None) or ""
                stage.save(kept)
        arm = Arm(
            name,
            real=self.run.spent("real", name),
            checks=self.run.spent("check", name),
            seconds=self.run.seconds(name),
            halted=stage.result["halted"],
        )
        with self.run.stage(f"measure {name}") as stage:
            if not stage.done:
                stage.result.update(asyncio.run(self._measure(policy)))
        arm.temperature = stage.result["temperature"]
        arm.scores = {
            tasks: {mode: Evaluation.from_json(e) for mode, e in by_mode.items()}
            for tasks, by_mode in stage.result["scores"].items()
        }
        self.arms[name] = arm
        self.run.say(self._line(arm))
        return arm

    async def _measure(self, policy: Policy) -> dict[str, Any]:
        seed = self.run.seed
        sweep = await sweep_temperature(
            policy, self.dev, self.env, self.temperatures, seed=seed, params=self.params, samples=self.samples,
            deadline=self.deadline,
        )  # fmt: skip
        tuned = max(sweep, key=lambda t: sweep[t].success)
        at = {"greedy": 0.0, "tuned": tuned, "sampled": 1.0}
        scores: dict[str, dict[str, Any]] = {}
        for name, tasks in self.test.items():
            scores[name] = {}
            for mode in MODES:
                result = await evaluate(
                    policy, tasks, self.env, params=replace(self.params, temperature=at[mode]), seed=seed,
                    samples=1 if mode == "greedy" else self.samples, deadline=self.deadline,
                )  # fmt: skip
                scores[name][mode] = result.to_json()
                self.run.spend(measure=result.env_steps)
        self.run.spend(measure=sum(e.env_steps for e in sweep.values()))
        return {"temperature": tuned, "scores": scores}

    def _line(self, arm: Arm) -> str:
        greedy = arm.scores["test"]["greedy"]
        tuned = arm.scores["test"]["tuned"]
        return f"{arm.name}: {greedy.success:.1%} greedy, {tuned.success:.1%} at its tuned T={arm.temperature:g}"

    def difference(self, a: str, b: str, *, tasks: str = "test", mode: str = "greedy") -> Paired:
        """Success of arm a minus arm b, task by task."""
        return paired(self.arms[a].scores[tasks][mode], self.arms[b].scores[tasks][mode])

    def tables(self) -> list[Table]:
        """One table per task set: success by mode with 95% intervals, real transitions, seconds."""
        out = []
        for name, tasks in self.test.items():
            rows: list[list[str | float | int]] = []
            for arm in self.arms.values():
                cells = [_interval(arm.scores[name][mode]) for mode in MODES]
                cells[1] += f" (T={arm.temperature:g})"
                rows.append([arm.name, *cells, arm.real, arm.checks, round(arm.seconds)])
            columns = ["agent", "greedy", "tuned T", "T=1", "real RL", "checks", "seconds"]
            out.append(Table(f"Success on {len(tasks)} real tasks, {name}", columns, rows))
        return out

    def metrics(self) -> dict[str, float]:
        """Every number of the tables, flat, for claims and results files."""
        out: dict[str, float] = {}
        for arm in self.arms.values():
            for tasks, by_mode in arm.scores.items():
                for mode, result in by_mode.items():
                    out[f"{tasks}/{arm.name}/{mode}"] = result.success
            out[f"real/{arm.name}"] = float(arm.real)
            out[f"checks/{arm.name}"] = float(arm.checks)
            out[f"seconds/{arm.name}"] = arm.seconds
            out[f"temperature/{arm.name}"] = arm.temperature
        return out

    def draw(self, path: Path) -> str:
        """Draw every arm's success on the headline task set, greedy, tuned and at 1, with 95% intervals.

        Returns:
            The file's name.
        """
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import PercentFormatter

        names = list(self.arms)[::-1]
        figure = Figure(figsize=(7.6, 0.62 * len(names) + 1.3), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        labels = {"greedy": "greedy", "tuned": "tuned temperature", "sampled": "T=1"}
        for shift, mode in zip((0.2, 0.0, -0.2), MODES, strict=True):
            results = [self.arms[name].scores["test"][mode] for name in names]
            x = [r.success for r in results]
            bars = [
                [max(0.0, v - r.interval[0]) for v, r in zip(x, results, strict=True)],
                [max(0.0, r.interval[1] - v) for v, r in zip(x, results, strict=True)],
            ]
            y = [i + shift for i in range(len(names))]
            axes.errorbar(x, y, xerr=bars, fmt="o", markersize=5, linewidth=1.4, capsize=2, label=labels[mode])
        ticks = [f"{name}\n{self.arms[name].real:,} real RL transitions" for name in names]
        axes.set_yticks(range(len(names)), ticks, fontsize=9)
        axes.set_xlim(-0.01, 1.01)
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_xlabel(f"success on {len(self.test['test'])} held-out real tasks, 95% intervals")
        axes.grid(axis="x", alpha=0.25)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3)
        figure.savefig(path)
        return path.name


def _interval(result: Evaluation) -> str:
    low, high = (round(100 * x) for x in result.interval)
    return f"{percent(result.success)} [{low}, {high}]"
