"""The gate's first check: the same actions get the same replies, whoever else is playing and in whatever session."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlready.dream.checks import Replayed, replay, same_actions
from rlready.dream.library import read_action
from rlready.envs.base import EnvFactory
from rlready.errors import EnvError
from rlready.seeds import rng
from rlready.types import Task

if TYPE_CHECKING:
    from rlready.dream.domain import Domain

Script = tuple[Task, Sequence[str]]


@dataclass
class Found:
    """What one check of the gate found.

    Attributes:
        failures: what failed, a sentence with an example each.
        measured: the numbers behind it.
        notes: what could not be checked.
    """

    failures: list[str]
    measured: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


async def determinism(
    env: EnvFactory,
    domain: Domain,
    scripts: Sequence[Script],
    alone: Sequence[Replayed],
    *,
    sessions: Sequence[EnvFactory],
    reads: frozenset[str],
    replays: int,
    seed: int,
) -> Found:
    """Compare every script's episode within a group, among other episodes, and in fresh sessions; see `dream.gate`."""
    failures: list[str] = []
    if not any(actions for _, actions in scripts):
        failures.append("There was no script to play, so nothing is known.")
    same = await same_actions(env, scripts, replays=replays, seed=seed)
    if not same.passed:
        failures.append(f"{same.different} of {same.scripts} scripts differ within a group: {same.example}.")
    together = await round_robin(env, scripts, seed)
    found = _differing(scripts, alone, together)
    if found:
        failures.append(f"{len(found)} of {len(scripts)} scripts differ when played among others: {found[0]}.")
    for number, session in enumerate(sessions, 1):
        again = [await replay(session, task, seed, actions) for task, actions in scripts]
        found = _differing(scripts, alone, again)
        if found:
            failures.append(
                f"{len(found)} of {len(scripts)} scripts are another world in session {number}: {found[0]}."
            )
    order = await _order_of_reading(env, domain, scripts, reads, seed)
    if order:
        failures.append(order)
    void = [run.failure for run in alone if run.failure]
    if len(void) * 2 > len(alone):
        failures.append(f"{len(void)} of {len(alone)} scripts could not be played: {void[0]}.")
    measured = {
        "scripts": float(len(scripts)),
        "replays": float(replays),
        "different": float(same.different),
        "reward_variance": same.reward_variance,
        "void": float(len(void)),
        "sessions": float(len(sessions)),
    }
    return Found(failures, measured)


async def round_robin(env: EnvFactory, scripts: Sequence[Script], seed: int) -> list[Replayed]:
    """Play all scripts by turns in one thread of time: a step of each, in an order hashed anew for each round."""
    worlds = [env() for _ in scripts]
    shown: list[tuple[tuple[str, str], ...]] = [() for _ in scripts]
    reward, steps = [0.0] * len(scripts), [0] * len(scripts)
    failure: list[str | None] = [None] * len(scripts)
    open_ = set(range(len(scripts)))
    draw = rng(seed, "gate", "round robin")
    turn = -1
    try:
        while open_:
            order = sorted(open_)
            draw.shuffle(order)
            for i in order:
                task, actions = scripts[i]
                try:
                    if turn < 0:
                        seen, ended = await worlds[i].reset(task, seed), False
                    elif turn >= len(actions):
                        open_.discard(i)
                        continue
                    else:
                        step = await worlds[i].step(actions[turn])
                        seen, ended = step.observation, step.terminated or step.truncated
                        reward[i], steps[i] = reward[i] + step.reward, steps[i] + 1
                        if "failure" in step.info:
                            failure[i], ended = str(step.info["failure"]), True
                    shown[i] = tuple((m.role, m.text) for m in seen.messages)
                except EnvError as error:
                    shown[i], failure[i], ended = (), str(error), True
                if ended:
                    open_.discard(i)
            turn += 1
    finally:
        for world in worlds:
            await world.close()
    return [Replayed(*each) for each in zip(shown, reward, steps, failure, strict=True)]


async def _order_of_reading(
    env: EnvFactory, domain: Domain, scripts: Sequence[Script], reads: frozenset[str], seed: int
) -> str:
    """Ask two questions of an untouched world in both orders; a sentence where the answers differ."""
    for task, actions in scripts:
        questions = [t for t in dict.fromkeys(actions) if read_action(t, domain).tool in reads][:2]
        if len(questions) < 2:
            continue
        heard = []
        for order in (questions, questions[::-1]):
            run = await replay(env, task, seed, order)
            said = [i for i, (role, _) in enumerate(run.shown) if role == "assistant"]
            heard.append({text: run.shown[i + 1 : i + 2] for text, i in zip(order, said, strict=False)})
        if heard[0] != heard[1]:
            return f"task {task.id}: what {questions[0]!r} hears depends on whether {questions[1]!r} was asked before."
    return ""


def _differing(scripts: Sequence[Script], a: Sequence[Replayed], b: Sequence[Replayed]) -> list[str]:
    out = []
    for (task, _), x, y in zip(scripts, a, b, strict=True):
        if x == y:
            continue
        pairs = [(p[1], q[1]) for p, q in zip(x.shown, y.shown, strict=False) if p != q]
        told_ = f"{pairs[0][0]!r} or {pairs[0][1]!r}" if pairs else f"reward {x.reward:g} or {y.reward:g}"
        out.append(f"task {task.id}: {told_}")
    return out


def digest(run: Replayed) -> str:
    """A hash of all that a script was shown and paid."""
    body = json.dumps([run.shown, run.reward, run.failure], ensure_ascii=False)
    return hashlib.blake2b(body.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
