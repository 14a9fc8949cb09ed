"""Agnostics, small: a policy that knows Python learns two other languages from what its programs print.

What this recipe leaves out of the paper, and why: the policy is a transformer of 0.65M parameters trained from scratch,
so it learns from many programs in Python and few in the other languages instead of a model's pretraining; prompts have
one form and no tips, as a constant text says nothing to it; generation runs in step with training, so that a seed gives
the same run. The harness, the languages' files and the reward are those that a large model would meet.
"""

from __future__ import annotations

from dataclasses import replace

from rlready.doctor import Setup
from rlready.envs.chat import ChatEnv
from rlready.policy.base import Policy
from rlready.recipes.agnostics.full import FULL, Full, full_of
from rlready.recipes.agnostics.judge import PARTIAL
from rlready.recipes.agnostics.lab import DOCTOR, SMOKE, Config, Lab
from rlready.recipes.agnostics.measure import Names, Probe, conformance, draw_curves, judged, probe
from rlready.recipes.agnostics.plan import plan as plan_of
from rlready.recipes.study import Study
from rlready.run import Run
from rlready.run_report import Report, Table

CONFIG = Config
ARMS = Names()


def smoke(run: Run, config: Config = SMOKE) -> Report:
    """The whole path in under a minute; its numbers mean nothing."""
    return small(run, config)


def small(run: Run, config: Config | None = None) -> Report:
    """The comparison that the claims are judged by, in minutes on 2 cores."""
    c = config or Config()
    lab = Lab(run, c)
    try:
        return _compared(run, c, lab)
    finally:
        lab.close()


def _compared(run: Run, c: Config, lab: Lab) -> Report:
    one, two = lab.judges
    numbers, checked = conformance(run, c.checked, c.timeout)

    def study(name: str) -> Study:
        sets = lab.sets[name]
        return Study(
            run, ChatEnv, sets["dev"], {"test": sets["test"]}, temperatures=(c.eval_temperature,), params=lab.params,
            samples=c.eval_samples,
        )  # fmt: skip

    first, second = study(one), study(two)
    probes: dict[str, Probe] = {}

    def probed(name: str, policy: Policy) -> None:
        probes[name] = probe(run, name, policy, lab.sets[one]["test"], lab.judges[one], c.probes, c.max_tokens)

    base = lab.policy()
    first.arm(ARMS.base, base, lambda: lab.warm_up(base))
    probed(ARMS.base, base)

    judge = {"judge": lab.judges[one]}
    policy = lab.start(base, c.lr)
    first.arm(ARMS.binary, policy, lab.grpo(policy, one), judge)
    executed = {ARMS.binary: lab.judges[one].executed}
    probed(ARMS.binary, policy)

    # The rival with the same start: its own right programs, cloned, from as many programs.
    policy = lab.start(base, c.filter_lr)
    spent = run.spent("real", ARMS.binary)
    first.arm(ARMS.rejection, policy, lab.rejection(policy, one, spent), judge)

    policy = lab.start(base, c.lr)
    first.arm(ARMS.partial, policy, lab.grpo(policy, one, PARTIAL), judge)
    probed(ARMS.partial, policy)

    # The second language: nothing but its YAML changes.
    other = ARMS.other(ARMS.binary, two)
    second.arm(ARMS.other(ARMS.base, two), base)
    policy = lab.start(base, c.lr)
    second.arm(other, policy, lab.grpo(policy, two), {"judge": lab.judges[two]})
    executed[other] = lab.judges[two].executed

    found, tables, notes = judged((first, second), two, ARMS, probes)
    found |= numbers | {f"executed/{name}": float(n) for name, n in executed.items()}
    trained = (ARMS.binary, ARMS.rejection, ARMS.partial, other)
    return run.report(
        f"Agnostics: {one} and {two}, learnt from what programs print",
        tables=[*_titled(first, one), *_titled(second, two), *tables, checked],
        metrics=first.metrics() | second.metrics() | found,
        notes=[*notes, "The tuned temperature is the paper's, 0.2, in all arms: pass@1 is read there."],
        plot="eval/success",
        plots=[first.draw(run.dir / "arms.png"), draw_curves(run, run.dir / "curves.png", trained)],
    )


def _titled(study: Study, name: str) -> list[Table]:
    """The study's table, named by its language."""
    return [replace(table, title=f"Held-out tasks solved in {name}") for table in study.tables()]


def setup(run: Run, config: Config | None = None) -> Setup:
    """What `rlready doctor agnostics` examines: the RL of this recipe, from a policy that was warmed up for seconds."""
    c = config or DOCTOR
    lab = Lab(run, c)
    base = lab.policy()
    with run.stage("warm-up"):
        lab.warm_up(base)
    sets = lab.sets[c.first]
    return Setup(
        lab.start(base, c.lr), sets["train"], ChatEnv, lab.algorithm(), lab.params, group_size=c.group_size,
        splits={name: sets[name] for name in ("dev", "test")}, seed=run.seed, name="agnostics",
        gold=lambda task: str(task.data["solution"]),
    )  # fmt: skip


def full(run: Run, plan: bool = False, config: Full = FULL) -> Report:
    """The paper's settings on a local checkpoint and local tasks; with `--plan`, what they need.

    Raises:
        UserError: no model or no data was given, or it is not there.
    """
    return plan_of(run, config) if plan else full_of(run, config)
