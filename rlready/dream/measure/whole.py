"""All measurements of a gym, in one go: what `rlready dream report` runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlready.dream.base import Simulator
from rlready.dream.checks import Replayed, replay
from rlready.dream.gate import GateReport
from rlready.dream.gym import Gym
from rlready.dream.measure.closed_loop import Dreamt, Outcome, paid, replay_dreams, replies_of, sameness
from rlready.dream.measure.curve import learning_curve, some
from rlready.dream.measure.errors import one_step_errors
from rlready.dream.measure.open_loop import compare
from rlready.dream.measure.quality import quality
from rlready.dream.measure.splice import spliced
from rlready.dream.measure.verdict import Economics, Supply, decide
from rlready.dream.measure.walk import looks_failed
from rlready.dream.report import DreamReport
from rlready.dream.simulators.baselines import NearestTransition, NoChange
from rlready.envs.base import EnvFactory
from rlready.errors import UserError
from rlready.experience.episode import LoggedEpisode
from rlready.rollout.gather import together
from rlready.types import Task

_SPLICED = 200
Part = Callable[[str, int, int], None]
"""Called with (what is being measured, done, total)."""


async def measure_gym(
    gym: Gym,
    *,
    name: str = "",
    split: str = "test",
    simulators: Sequence[Simulator] = (),
    real: EnvFactory | None = None,
    real_tasks: Mapping[str, Task] | None = None,
    outcome: Outcome = paid,
    budget: int | None = None,
    dreams: Sequence[Dreamt] = (),
    played: Mapping[str, float] | None = None,
    gate: GateReport | None = None,
    economics: Economics | None = None,
    sessions: Sequence[EnvFactory] = (),
    random: Sequence[str] = ("random",),
    replays: int = 25,
    scripts: int = 8,
    most_steps: int = 1000,
    curve: bool = True,
    seed: int = 0,
    on_progress: Part | None = None,
) -> DreamReport:
    """Measure a gym.

    Args:
        gym: what to measure.
        name: of the gym, for the report.
        split: whose recorded episodes are measured on; the dream must not have been made from them.
        simulators: further backends to stand beside the gym's own.
        real: the real environment; dreams are replayed in it.
        real_tasks: its tasks by id; the gym's own task stands in where one is missing.
        outcome: whether a real episode succeeded.
        budget: most real transitions; None for no limit.
        dreams: dreamt episodes of agents, to be replayed in reality besides the recorded actions.
        played: success in reality of these agents, by name.
        gate: what the gate said.
        economics: seconds on both sides.
        sessions: the gym loaded afresh.
        random: sources that are random play.
        replays: of each script, for the same-action variance.
        scripts: recorded action sequences that are replayed so often.
        most_steps: held-out steps that are measured on.
        curve: measure the curve over numbers of recordings (code and retrieval).
        seed: of the worlds.
        on_progress: called with (part, done, total).

    Raises:
        UserError: the split has no recorded episodes.
    """
    held = some(gym.episodes(split), most_steps, seed)
    if not held:
        raise UserError(f'There are no recorded episodes in the split "{split}" to measure on; fit with held_out > 0.')

    def part(what: str) -> Callable[[int, int], None]:
        return lambda done, total: on_progress(what, done, total) if on_progress is not None else None

    layers = (gym.checks, *gym.layers)
    loops = await compare(
        held,
        gym.domain,
        gym.state,
        layers,
        [gym.simulator, *simulators],
        baselines=[NearestTransition(gym.library), NoChange(gym.library)],
        seed=seed,
        on_progress=part("open loop"),
    )
    line = None
    if curve:
        line = await learning_curve(gym.library, held, gym.domain, seed=seed, on_progress=part("curve over recordings"))
    env = gym.env_factory(evaluation=True)
    dreamt = await dream_of(env, gym, held, seed=seed)
    chosen = [(gym.task(e.task_id, e.instruction), e.actions) for e in held[:scripts]]
    same = await sameness(env, chosen, replays=replays, sessions=sessions, seed=seed, on_progress=part("same actions"))
    closed = None
    if real is not None:
        tasks = dict(real_tasks or {})
        judgeable = gym.reward_source in ("model", "both")  # others know nothing of held-out tasks
        mixed = await dream_of(env, gym, spliced(gym, _SPLICED, seed), seed=seed)
        ours = [
            Dreamt(label, tasks.get(e.task_id) or gym.task(e.task_id, e.instruction), e)
            for label, played_ in (("recorded actions", dreamt if judgeable else []), ("spliced actions", mixed))
            for e in played_
        ]
        closed = await replay_dreams(
            real,
            [*dreams, *ours],
            played=played,
            budget=budget,
            outcome=outcome,
            seed=seed,
            on_progress=part("replays in reality"),
        )
    baselines = [loop for loop in loops if loop.name in ("nearest", "no_change") and not loop.with_code]
    verdict = decide(
        loops[0],
        Supply.of(gym.episodes("train") if "train" in gym.splits else (), gym.domain, random=random),
        baselines=baselines,
        curve=line,
        economics=economics,
        judge_matters=gym.reward_source in ("model", "both"),
    )
    return DreamReport(
        name=name,
        simulator=gym.simulator.name,
        fingerprint=gym.domain.fingerprint,
        split=split,
        loops=tuple(loops),
        verdict=verdict,
        gate=gate,
        curve=line,
        sameness=same,
        quality=quality(dreamt, held, gym.library, gym.domain, gym.state.reads, seed=seed),
        errors=one_step_errors(loops[0]),
        economics=economics,
        closed=closed,
        rules=tuple(dict(rule) for rule in gym.state.describe()),
        about={
            "reward_source": gym.reward_source,
            "recordings": len(gym.library),
            "measured_on": len(held),
            "seed": seed,
            **_settled(gym.about),
        },
    )


async def dream_of(
    env: EnvFactory, gym: Gym, episodes: Sequence[LoggedEpisode], *, seed: int = 0, at_once: int = 64
) -> list[LoggedEpisode]:
    """Play recorded actions in the dream, history as it is dreamt; void episodes are left out.

    The seed of each world is the recorded one, so that a real environment of the same seed can be compared.
    """
    out: list[LoggedEpisode] = []
    jobs = [(gym.task(e.task_id, e.instruction), e) for e in episodes if e.instruction.strip()]
    for start in range(0, len(jobs), at_once):
        few = jobs[start : start + at_once]
        runs = await together([replay(env, task, e.seed, e.actions) for task, e in few])
        out += [_logged(e, run) for (_, e), run in zip(few, runs, strict=True) if run.failure is None]
    return out


def _logged(episode: LoggedEpisode, run: Replayed) -> LoggedEpisode:
    replies = replies_of(run)[: run.steps]
    return LoggedEpisode(
        episode.task_id,
        episode.instruction,
        episode.actions[: len(replies)],
        tuple(replies),
        run.reward > 0,
        finished=run.steps >= len(episode),
        source="synthetic",
        seed=episode.seed,
        errors=tuple(i for i, text in enumerate(replies) if looks_failed(text)),
    )


def _settled(about: Mapping[str, Any]) -> dict[str, Any]:
    """What a gym says of itself, single facts only."""
    return {
        k: v for k, v in about.items() if isinstance(v, (str, int, bool)) or (isinstance(v, float) and math.isfinite(v))
    }
