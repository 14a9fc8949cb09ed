"""The training loop, on one screen. It knows no algorithm, no environment and no backend.

    collect -> update -> evaluate -> halt, or log -> checkpoint

Metrics: the collector's under their own names (`reward`, `success`, `episodes`), the algorithm's under `update/`, the
evaluator's under `eval/`, and where a step's time went: `trainer/wait`, the share in which the loop waited for groups,
and `generator/idle`, the share in which the sampler computed nothing. A checkpoint holds learner, algorithm, collector
(with its curriculum and seeds), signs and stop rules, so a run that was killed and resumed equals one that was not, bit
for bit on the CPU.

Where the policy samples elsewhere (`policy.process`), an update learns in a thread (`policy.base.beside`), so that the
event loop goes on with what the collector plays in the background (`Collector(max_lag=...)`), and weights are handed
over in the midst of it. What runs when then depends on the clock: such a run is resumed, but not to the bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rlready.aio import run_sync
from rlready.algorithms.base import Algorithm
from rlready.checkpoint import SavesFolder, Stateful, load_checkpoint
from rlready.errors import UserError
from rlready.policy.base import Policy, require_learner
from rlready.signs import Signs
from rlready.stopping import StopRule
from rlready.types import Group

if TYPE_CHECKING:
    from rlready.run import Run


class Measured(Protocol):
    """What an evaluator brings back; `evaluate.Evaluation` is one."""

    @property
    def env_steps(self) -> int:
        """Real transitions that it cost."""
        ...

    def metrics(self) -> dict[str, float]:
        """Numbers to log."""
        ...


Evaluator = Callable[[Policy], Awaitable[Measured]]


class Collects(Protocol):
    """What the loop asks of a collector; `rollout.collect.Collector` is one."""

    @property
    def transitions(self) -> int:
        """Environment steps so far."""
        ...

    async def collect(self, groups: int) -> list[Group]:
        """Groups to learn from."""
        ...

    async def aclose(self) -> None:
        """End what plays in the background."""
        ...

    def metrics(self) -> dict[str, float]:
        """Numbers of the last collection."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What resuming needs."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`."""
        ...


def train(
    policy: Policy,
    collector: Collects,
    algorithm: Algorithm,
    run: Run,
    *,
    steps: int,
    groups_per_step: int,
    evaluator: Evaluator | None = None,
    eval_every: int = 0,
    save_every: int = 0,
    stop_rules: Sequence[StopRule] = (),
    ledger: str = "real",
    signs: Signs | None = None,
) -> Policy:
    """Train a policy; returns it.

    Args:
        policy: with a learner.
        collector: brings groups.
        algorithm: learns from them.
        run: keeps folder, progress and checkpoints. Each call needs a stage of its own.
        steps: updates in all, those before a resume included.
        groups_per_step: groups per update.
        evaluator: such as `lambda policy: evaluate(policy, dev, env)`; called before the first step, every
            `eval_every` steps and after the last. Its transitions are counted as "eval".
        eval_every: 0 evaluates only before the first step and after the last.
        save_every: steps between checkpoints; 0 writes one before the first step and one after the last.
        stop_rules: see `stopping`; they see the evaluator's numbers, too. Where one gives a reason, or a gradient is
            not finite, training halts, says why, logs `halted`, and the policy goes back to the last checkpoint, which
            is from before what went wrong.
        ledger: what the collector's transitions are counted as in the run ("real", "dream").
        signs: what is watched for trouble, said and noted; None: the usual signs, see `signs`.

    Raises:
        ValueError: the policy has no learner.
        UserError: the collector may lag further behind than the algorithm tolerates, or its groups are too small for
            it; from the collector or the run.
    """
    check_lag(algorithm, getattr(collector, "max_lag", 0))
    check_group(algorithm, getattr(collector, "group_size", algorithm.least_group))
    learner: Stateful = require_learner(policy)
    watching = Signs() if signs is None else signs
    parts: dict[str, Stateful] = {
        "learner": learner, "algorithm": algorithm, "collector": collector, "signs": watching
    }  # fmt: skip
    model = policy if isinstance(policy, SavesFolder) else None
    remembering: list[Any] = [rule for rule in stop_rules if hasattr(rule, "state_dict")]
    parts |= {f"stop_rule_{i}": rule for i, rule in enumerate(remembering)}

    async def update(groups: list[Group], metrics: dict[str, float]) -> str | None:
        began = time.perf_counter()
        try:
            metrics |= {f"update/{name}": value for name, value in (await algorithm.update(policy, groups)).items()}
        except FloatingPointError as error:
            return f"a gradient is not finite ({error})"
        metrics["update/seconds"] = time.perf_counter() - began
        return None

    async def measure(step: int, metrics: dict[str, float]) -> None:
        if evaluator is not None and (step in (0, steps) or (eval_every > 0 and step % eval_every == 0)):
            measured = await evaluator(policy)
            run.spend(eval=measured.env_steps)
            metrics |= {f"eval/{name}": value for name, value in measured.metrics().items()}

    async def loop() -> None:
        done = run.restore(parts)
        policy.sync()
        if evaluator is not None and run.fresh:
            first: dict[str, float] = {}
            await measure(0, first)
            run.log(0, first)
        healthy = run.save(done, parts, model=model) if done < steps else None
        spent = collector.transitions

        def charge() -> None:  # with `max_lag` episodes end during updates, too
            nonlocal spent
            run.spend(**{ledger: collector.transitions - spent})
            spent = collector.transitions

        for step in run.steps(steps):
            clock = Clock(policy)
            groups = await collector.collect(groups_per_step)
            clock.collected()
            charge()
            metrics = collector.metrics()
            halt = await update(groups, metrics)
            metrics |= clock.shares()
            run.trajectories(step, groups)  # after the update, so that the advantages are in them
            if halt is None:
                await measure(step, metrics)
                watching.watch(run, step, metrics)
                halt = next((why for rule in stop_rules if (why := rule(metrics)) is not None), None)
            charge()
            if halt is not None:
                assert healthy is not None  # there is a step, so one was written before it
                load_checkpoint(healthy, {"learner": learner, "algorithm": algorithm})
                policy.sync()
                run.log(step, metrics | {"halted": 1.0})
                run.note(halted={"stage": run.scope, "step": step, "reason": halt})
                run.say(f"Training halted at step {step}: {halt}. The policy is that of {healthy.name}.")
                return
            run.log(step, metrics)
            if step == steps or (save_every > 0 and step % save_every == 0):
                score = metrics.get("eval/success", math.nan)
                healthy = run.save(step, parts, score=score if math.isfinite(score) else None, model=model)

    async def guarded() -> None:
        try:
            await loop()
        finally:
            await collector.aclose()

    run_sync(guarded())
    return policy


class Clock:
    """Where the wall-clock time of a step goes, from asking for groups to the end of the update."""

    def __init__(self, policy: Policy) -> None:
        """Start it."""
        self._sampler = policy.sampler
        self._began = self._collected = time.perf_counter()
        self._busy = self._busy_so_far()

    def collected(self) -> None:
        """The groups are there."""
        self._collected = time.perf_counter()

    def shares(self) -> dict[str, float]:
        """`trainer/wait`, and `generator/idle` where the sampler counts its work (`stats.busy`)."""
        seconds = max(time.perf_counter() - self._began, 1e-9)
        out = {"trainer/wait": (self._collected - self._began) / seconds}
        busy = self._busy_so_far()
        if busy is not None and self._busy is not None:
            out["generator/idle"] = min(1.0, max(0.0, 1 - (busy - self._busy) / seconds))
        return out

    def _busy_so_far(self) -> float | None:
        return getattr(getattr(self._sampler, "stats", None), "busy", None)


def check_lag(algorithm: Algorithm, max_lag: int) -> None:
    """Refuse a lag that an algorithm cannot make good.

    Raises:
        UserError: it tolerates fewer updates of lag.
    """
    most = algorithm.max_lag
    if max_lag > most:
        others = "" if most >= 8 else ", or use an algorithm that tolerates more, such as cispo or dppo"
        raise UserError(
            f"max_lag is {max_lag}, and {type(algorithm).__name__.lower()} as it is set learns from what is at most "
            f"{most} updates old: set max_lag={most}{others}."
        )


def check_group(algorithm: Algorithm, group_size: int) -> None:
    """Refuse groups in which an algorithm has nothing to compare.

    Raises:
        UserError: they have fewer episodes than its credit needs.
    """
    if group_size < algorithm.least_group:
        raise UserError(
            f"group_size is {group_size}, and {type(algorithm).__name__.lower()} compares the episodes of a group, so "
            f"it needs at least {algorithm.least_group}. Or use reinforce or ppo."
        )
