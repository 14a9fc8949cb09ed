"""The full preset: the arms of `small`, with the paper's settings, on a local checkpoint and local problems.

The arms learn one after the other in one module: before each the weights are put back to where RL starts. Answers are
graded by `rewards.math` and cut into steps by the paper's rules for mathematics.

Left out, and why: PPO (a Hugging Face policy has no value head, and a critic apart is one more model), and with it the
analysis of values that compares the critic with probes.
"""

from __future__ import annotations

from functools import partial

from rlready.envs.chat import ChatEnv
from rlready.errors import did_you_mean
from rlready.policy.base import OptimizerConfig, SamplingParams
from rlready.recipes.local import Start, check, policy_of, splits_of
from rlready.recipes.study import Study
from rlready.recipes.vineppo.arms import VINE, arms, training, warm_start
from rlready.recipes.vineppo.config import Full
from rlready.recipes.vineppo.critic import CriticPPO
from rlready.recipes.vineppo.measure import cost_table, curve_of, draw_curves
from rlready.rewards import math
from rlready.run import Run
from rlready.run_report import Report
from rlready.tasks.base import TaskSet

FULL = Full()
BEGIN = "start"


def full_of(run: Run, config: Full) -> Report:
    """Train and measure the arms.

    Raises:
        UserError: what `check` and `splits_of` refuse, or there is no such arm.
    """
    check(config, "vineppo")
    made = {
        name: pair for name, pair in arms(config, run.seed, config.steps).items() if not isinstance(pair[0], CriticPPO)
    }
    for name in config.arms:
        if name not in made:
            raise did_you_mean("arm", name, made)
    params = SamplingParams(temperature=config.temperature, top_p=config.top_p, max_tokens=config.max_tokens)
    worked = [config.solution] if config.sft_epochs else []
    splits = splits_of(run, config, math(config.answer), columns=worked)
    policy = policy_of(run, config, OptimizerConfig(lr=config.sft_lr))
    study = Study(
        run, ChatEnv, _head(splits["dev"], config.dev_tasks),
        {name: _head(tasks, config.test_tasks) for name, tasks in splits.items() if name not in ("train", "dev")},
        temperatures=(config.eval_temperature,), params=params, samples=config.eval_samples, deadline=config.deadline,
    )  # fmt: skip
    sft = partial(
        warm_start, run, policy, splits, config, params=params, deadline=config.deadline, column=config.solution
    )
    study.arm(BEGIN, policy, sft if config.sft_epochs else None)
    start = Start.of(policy, OptimizerConfig(lr=config.lr.vine))
    for name in config.arms:
        algorithm, lr = made[name]
        warmup = 0 if name == "RestEM" else config.warmup
        start.again(OptimizerConfig(lr=lr, warmup=warmup))
        study.arm(name, policy, training(run, policy, splits, algorithm, config, params, config.deadline))
    curves = {name: curve_of(run.dir, name) for name in config.arms}
    at = f"T={config.temperature:g}"
    rivals = [name for name in (BEGIN, *config.arms) if name != VINE] if VINE in config.arms else []
    return run.report(
        f"VinePPO on {splits['train'].name}: accuracy on held-out problems",
        tables=[*study.tables(), cost_table(curves, at)],
        metrics=study.metrics()
        | {f"best/{name}": c.best[0] for name, c in curves.items()}
        | {f"tokens/{name}": c.tokens[-1] for name, c in curves.items()},
        notes=[
            f"Model {config.model}; {len(splits['train']):,} problems to train on, {len(splits['dev']):,} as dev. "
            f"Answers per held-out problem: {config.eval_samples}, and 1 where decoding is greedy.",
            *(f"{VINE} against {name}, tuned T: {study.difference(VINE, name, mode='tuned')}." for name in rivals),
            "PPO is left out: a Hugging Face policy has no value head.",
        ],
        plot="eval/success",
        plots=[draw_curves(run.dir / "curves.png", curves, at), study.draw(run.dir / "agents.png")],
    )


def _head(tasks: TaskSet, n: int | None) -> TaskSet:
    return tasks if n is None else tasks.head(n)
