"""Magistral, small: RL on problems in four languages, with rewards that keep the language of thought.

What this recipe leaves out of the paper, and why: the policy is a transformer of 0.6M parameters trained from scratch
on demonstrations of ours, so there is no system prompt (a constant text says nothing to it), no code, and no growth of
reasoning by length; the limit on length stays as it is. Everything else is the library's own: `rewards.format`,
`length` and `language`, `curriculum.difficulty`, `Magistral`, `Collector(max_lag=)` and `policy.process`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rlready.curriculum.difficulty import first_pass, second_pass
from rlready.doctor import Setup
from rlready.envs.chat import ChatEnv
from rlready.policy.base import OptimizerConfig, Policy
from rlready.policy.tiny import clone_policy
from rlready.recipes.logs import play_logs
from rlready.recipes.magistral.full import FULL, Full, full_of
from rlready.recipes.magistral.lab import DOCTOR, SMOKE, Config, Lab, Way
from rlready.recipes.magistral.measure import Names, Spoken, draw_curves, judged, spoken
from rlready.recipes.magistral.plan import plan as plan_of
from rlready.recipes.magistral.tasks import plant
from rlready.recipes.study import Study
from rlready.rollout.actors import PolicyActor
from rlready.run import Run
from rlready.run_report import Report
from rlready.seeds import derive

CONFIG = Config
ARMS = Names()


def smoke(run: Run, config: Config = SMOKE) -> Report:
    """The whole path in under a minute; its numbers mean nothing."""
    return small(run, config)


def small(run: Run, config: Config | None = None) -> Report:
    """The comparison that the claims are judged by, in minutes on 2 cores."""
    lab = Lab(run, config or Config())
    config = lab.config
    study = Study(run, ChatEnv, lab.sets["dev"].head(config.dev_tasks), {"test": lab.test}, temperatures=(0.5,))
    speech: dict[str, Spoken] = {}

    def arm(name: str, policy: Policy, work: Callable[[], None]) -> None:
        study.arm(name, policy, work)
        speech[name] = spoken(run, name, policy, lab.test, config.max_tokens)

    base = lab.policy()
    arm(ARMS.base, base, partial(lab.cloning, base))

    # Difficulty, first pass; RL on what it leaves; then everything again.
    pool, wrong = plant(lab.sets["rl"].head(config.pool), config.planted, run.seed)
    first = lab.graded("first pass", base, pool, first_pass)
    kept = pool.filter(lambda task: task.id in first.kept)
    tasks = kept if len(kept) else pool

    # The rival with the same start and tasks: its own right answers, cloned.
    player = PolicyActor(base, lab.params, derive(run.seed, "own logs"))
    own = play_logs(run, "own logs", tasks, ChatEnv, player, config.own_logs, source="agent")
    rival = clone_policy(base, OptimizerConfig(lr=config.filter_lr))
    arm(ARMS.filtered, rival, partial(lab.filtered, rival, own))

    policy = lab.start(base)
    arm(ARMS.rl, policy, partial(lab.rl, policy, tasks))
    second = lab.graded("second pass", policy, pool, second_pass)

    # The same without the bonus, with several updates per batch, with a symmetric clip, and asynchronously.
    many = config.minibatches
    for name, changed in {
        ARMS.free: Way(bonus=0.0),
        ARMS.many: Way(minibatches=many),
        ARMS.symmetric: Way(minibatches=many, clip_high=config.clip_low),
        ARMS.apart: Way(apart=True),
    }.items():
        other = lab.start(base)
        arm(name, other, partial(lab.rl, other, tasks, changed))

    found = set(second.dropped_for("wrong reference"))
    metrics, tables, notes = judged(run, study, speech, config.steps, ARMS)
    metrics |= {
        "filter/planted found": len(found & wrong) / len(wrong),
        "filter/good flagged": len(found - wrong) / max(1, len(pool) - len(wrong)),
        **{f"filter/first/{why}": float(n) for why, n in first.counts().items()},
        **{f"filter/second/{why}": float(n) for why, n in second.counts().items()},
    }
    return run.report(
        "Magistral on problems in four languages: held-out accuracy and language",
        tables=[*study.tables(), *tables],
        metrics=study.metrics() | metrics,
        notes=notes,
        plot="eval/success",
        plots=[study.draw(run.dir / "arms.png"), draw_curves(run, run.dir / "curves.png", ARMS.trained)],
    )


def setup(run: Run, config: Config | None = None) -> Setup:
    """What `rlready doctor magistral` examines: the RL of this recipe, from a policy that was cloned for seconds."""
    config = config or DOCTOR
    lab = Lab(run, config)
    base = lab.policy()
    with run.stage("cloning"):
        lab.cloning(base)
    return Setup(
        lab.start(base), lab.sets["rl"], ChatEnv, lab.algorithm(), lab.params,
        group_size=config.group_size, splits={name: lab.sets[name] for name in ("dev", "test")}, seed=run.seed,
        name="magistral",
    )  # fmt: skip


def full(run: Run, plan: bool = False, config: Full = FULL) -> Report:
    """The paper's settings on a local checkpoint and local problems; with `--plan`, what they need.

    Raises:
        UserError: no model or no data was given, or it is not there.
    """
    return plan_of(run, config) if plan else full_of(run, config)
