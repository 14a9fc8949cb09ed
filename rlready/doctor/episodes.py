"""Episodes: failures, cut-off or empty answers, unused tools, solved starts, what a given-up step leaves behind."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from contextlib import suppress

from rlready.aio import run_sync
from rlready.doctor.evidence import Evidence
from rlready.doctor.setup import is_chat
from rlready.envs.base import Env, EnvFactory, Observation
from rlready.envs.check import check_env
from rlready.envs.tools import ToolEnv
from rlready.findings import Findings, Where
from rlready.seeds import derive, rng
from rlready.tasks.base import TaskSet
from rlready.toolcalls import parse_calls
from rlready.types import Task, Trajectory, Turn, Verdict

_PROBES = ("look", "help", "1", "yes")
_BUDGET = 5.0  # seconds for each of the two checks that play on their own


def check_environment(
    tasks: TaskSet, env: EnvFactory, found: Findings, *, closing: str | None, deadline: float
) -> None:
    """`check_env`, solved starts, and a step that is given up."""
    if is_chat(env):
        return
    report = check_env(env, tasks.head(200), closing=closing, deadline=deadline)
    for finding in report:
        name = "start state" if finding.check == "start state" else "environment"
        text = finding.text if name == "start state" else f"{finding.check}: {finding.text}"
        if finding.level == "note":
            found.note("environment", text)
        else:
            (found.error if finding.level == "error" else found.warning)(name, text, Where(place=report.subject))
    if any(f.check in ("hang", "factory", "types", "reset", "step", "determinism") for f in report.errors):
        return
    run_sync(_solved(tasks, env, found))
    run_sync(_given_up(tasks, env, found))


async def _solved(tasks: TaskSet, env: EnvFactory, found: Findings) -> None:
    """Tasks in which every first action is paid in full at once."""
    if found.of("start state"):
        return
    solved: list[str] = []
    looked: list[Task] = []
    began = time.monotonic()
    for task in list(tasks)[:12]:
        if time.monotonic() - began > _BUDGET:
            break
        looked.append(task)
        actions = [*_actions(await _first(env, task))][:6]
        outcomes = [await _one_step(env, task, action, tasks) for action in actions]
        if len(outcomes) >= 2 and all(outcomes):
            solved.append(task.id)
    if solved:
        found.error(
            "start state", f"{len(solved)} of {len(looked)} tasks are right after any first action.",
            Where(task=solved[0], turn=0),
        )  # fmt: skip


async def _first(env: EnvFactory, task: Task) -> Observation | None:
    made = env()
    try:
        return await made.reset(task, derive(0, "doctor", task.id))
    except Exception:
        return None  # check_env has told
    finally:
        with suppress(Exception):
            await made.close()


def offered(env: EnvFactory, tasks: TaskSet) -> tuple[str, ...]:
    """Some actions that an environment offers at a first observation."""
    first = run_sync(_first(env, tasks[0]))
    return () if first is None else tuple(first.actions or ())[:4]


def _actions(observation: Observation | None) -> tuple[str, ...]:
    if observation is None:
        return ()
    return observation.actions if observation.actions else _PROBES


async def _one_step(env: EnvFactory, task: Task, action: str, tasks: TaskSet) -> bool:
    """Whether one action ends the episode with success."""
    made = env()
    try:
        first = await made.reset(task, derive(0, "doctor", task.id))
        step = await made.step(action)
        if not step.terminated:
            return False
        turn = Turn([0], [0], [-1.0], reward=step.reward, text=action, context=first.messages)
        score = await tasks.score(task, Trajectory(task, [turn], env_steps=1))
        return score.verdict is Verdict.RIGHT
    except Exception:
        return False
    finally:
        with suppress(Exception):
            await made.close()


async def _given_up(tasks: TaskSet, env: EnvFactory, found: Findings) -> None:
    """Play, give up a step in another episode, and play again: the replies must be the same."""
    task = tasks[0]
    before, actions = await _replies(env, task, None)
    if len(before) < 2:
        return
    began = time.monotonic()
    for patience in (1, 0, 3, -1):
        if time.monotonic() - began > _BUDGET:
            return
        other = tasks[1] if len(tasks) > 1 else task
        await _abandon(env, other, patience)
        again, _ = await _replies(env, task, actions)
        if again == before:
            continue
        i = next(
            (k for k, (a, b) in enumerate(zip(before, again, strict=False)) if a != b), min(len(before), len(again))
        )
        shifted = len(again) > 1 and sum(a == b for a, b in zip(before, again[1:], strict=False)) >= len(again) - 2
        how = "every reply is that to the request before" if shifted else "the episode is another one"
        got = again[i] if i < len(again) else "nothing"
        wanted = before[i] if i < len(before) else "nothing"
        found.error(
            "shifted replies", f'After a step was given up, {how}: reply {i} is "{got[:60]}" and was "{wanted[:60]}".',
            Where(task=task.id, turn=i),
        )  # fmt: skip
        return


async def _replies(env: EnvFactory, task: Task, actions: list[str] | None) -> tuple[list[str], list[str]]:
    """The texts of an episode of drawn or given actions, and the actions."""
    draw = rng(0, "doctor replies", task.id)
    made = env()
    played: list[str] = []
    try:
        observation = await made.reset(task, derive(0, "doctor", task.id))
        texts = [_said(observation)]
        for k in range(8 if actions is None else len(actions)):
            action = draw.choice(_actions(observation)) if actions is None else actions[k]
            played.append(action)
            step = await made.step(action)
            observation = step.observation
            texts.append(f"{_said(observation)} [{step.reward:g}]")
            if step.terminated or step.truncated:
                break
    except Exception as error:
        texts = [*locals().get("texts", []), f"{type(error).__name__}: {error}"]
    finally:
        with suppress(Exception):
            await made.close()
    return texts, played


def _said(observation: Observation) -> str:
    return observation.messages[-1].text


async def _abandon(env: EnvFactory, task: Task, patience: int) -> None:
    """Begin an episode, begin a step, and cancel it after so many turns of the loop (-1: after 20 ms)."""
    made: Env = env()
    try:
        observation = await made.reset(task, derive(1, "doctor", task.id))
        work = asyncio.ensure_future(made.step(_actions(observation)[0]))
        if patience < 0:
            await asyncio.sleep(0.02)
        for _ in range(max(patience, 0) + 1):
            await asyncio.sleep(0)
        work.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await work
    except Exception:
        return
    finally:
        with suppress(Exception):
            await made.close()


# ---- the first batch


def check_episodes(evidence: Evidence, found: Findings) -> None:
    """Failures, cut-off answers and what they earn, answers without anything to judge, tools."""
    _failures(evidence, found)
    _cut_off(evidence, found)
    _no_answer(evidence, found)
    _tools(evidence, found)


def _failures(evidence: Evidence, found: Findings) -> None:
    bad: Counter[str] = Counter()
    first: dict[str, Where] = {}
    every = evidence.trajectories
    for i, t in enumerate(every):
        if t.excluded:
            note = str(t.info.get("note", "")).replace(f" for task {t.task.id}", "").replace(t.task.id, "...")
            reason = t.failure or note or ("no reward" if math.isnan(t.reward) else "the grader failed")
            bad[reason] += 1
            first.setdefault(reason, Where(task=t.task.id, trajectory=i))
    if not bad:
        return
    reason, times = bad.most_common(1)[0]
    told = f"{bad.total()} of {len(every)} episodes failed; most often ({times}): {reason.rstrip('.')}."
    (found.error if bad.total() > 0.05 * len(every) else found.warning)("failures", told, first[reason])


def _cut_off(evidence: Evidence, found: Findings) -> None:
    valid = evidence.valid
    if not evidence.policy.renderer.stop_ids or not valid:
        return  # every turn ends by choices or length
    cut = [t for t in valid if t.cut_off]
    if not cut:
        return
    share = len(cut) / len(valid)
    paid = [t for t in cut if t.reward > 0]
    mean = math.fsum(t.reward for t in cut) / len(cut)
    others = [t.reward for t in valid if not t.cut_off]
    beside = f", the others {math.fsum(others) / len(others):.3g}" if others else ""
    told = (
        f"{share:.0%} of {len(valid)} episodes were stopped by the length cap; they earn {mean:.3g} on average{beside}"
    )
    where = Where(task=cut[0].task.id, trajectory=evidence.trajectories.index(cut[0]))
    treated = getattr(evidence.algorithm, "truncated", "keep") != "keep"
    if paid and not treated and len(paid) > 0.05 * len(valid):
        where = Where(task=paid[0].task.id, trajectory=evidence.trajectories.index(paid[0]))
        found.warning("cut off", f"{told}; {len(paid)} of them are paid.", where)
    elif share > 0.05:
        found.warning("cut off", f"{told}.", where)
    else:
        found.note("cut off", f"{told}.")


def _no_answer(evidence: Evidence, found: Findings) -> None:
    valid = evidence.valid
    empty = [t for t in valid if t.verdict is Verdict.NO_ANSWER]
    if not empty:
        return
    where = Where(task=empty[0].task.id, trajectory=evidence.trajectories.index(empty[0]))
    told = f"{len(empty)} of {len(valid)} answers hold nothing to judge."
    (found.warning if len(empty) > 0.2 * len(valid) else found.note)("no answer", told, where)


def _tools(evidence: Evidence, found: Findings) -> None:
    """Tools that the environment offers and nobody calls."""
    try:
        made = evidence.env()
    except Exception:
        return
    offers = isinstance(made, ToolEnv) or bool(getattr(made, "tools", None))
    valid = evidence.valid
    if not offers or not valid:
        return
    called = [t for t in valid if _calls(t)]
    attempts = sum(bool(parse_calls(turn.text)) for t in valid for turn in t.turns)
    where = Where(task=valid[0].task.id, trajectory=evidence.trajectories.index(valid[0]))
    if not called:
        tried = f", though {attempts} turns tried to" if attempts else ""
        found.error("tools never called", f"In {len(valid)} episodes no tool was called{tried}.", where)
    else:
        found.note("tools never called", f"{len(called)} of {len(valid)} episodes call a tool.")


def _calls(trajectory: Trajectory) -> bool:
    counts = trajectory.info.get("env", {})
    if "tool_calls" in counts:
        return bool(counts["tool_calls"])
    return any(parse_calls(turn.text) for turn in trajectory.turns)
