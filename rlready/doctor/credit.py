"""Masks and credit: which tokens are trained, how often, and with which advantage."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from rlready.aio import run_sync
from rlready.algorithms.base import Algorithm
from rlready.doctor.evidence import Evidence
from rlready.doctor.logprobs import place
from rlready.doctor.tokens import likely_answers
from rlready.errors import UserError
from rlready.findings import Findings, Where
from rlready.policy.base import Renderer
from rlready.rollout.compile import OBSERVE, compile_groups
from rlready.types import Group, Message, Row, Task, Trajectory, Turn


def check_mask(tasks: Sequence[Task], renderer: Renderer, answers: Sequence[str] | None = None) -> Findings:
    """Compile made-up episodes of two turns and compare what is trained with what was sampled.

    Args:
        tasks: some tasks.
        renderer: the policy's.
        answers: texts that a policy could say; None: those that each task's data name.
    """
    findings = Findings("mask")
    trained = shown = 0
    for task in tasks:
        answer = next(iter(likely_answers(task) if answers is None else answers), None)
        if answer is None or not task.prompt:
            continue
        try:
            first = renderer.render(task.prompt)
            said = renderer.encode_completion(answer)
            second = renderer.extend(first, said, task.prompt[:1])
        except UserError:
            continue  # told by the template check
        turns = [Turn(first, said, [-1.0] * len(said), advantage=1.0)]
        turns.append(Turn(second, said, [-1.0] * len(said), parent=0, advantage=1.0))
        rows = compile_groups([Group(task, [Trajectory(task, turns, reward=1.0)])])
        tokens = [int(t) for row in rows for t in row.tokens[row.weights["policy"] > 0]]
        if tokens != said + said:
            findings.error(
                "mask", f"{len(tokens)} tokens would be trained, {2 * len(said)} were sampled.", Where(task=task.id)
            )
        if len(rows) != 1:
            findings.error("mask", f"Two turns of one conversation became {len(rows)} rows.", Where(task=task.id))
        trained += len(tokens)
        shown += sum(len(row) for row in rows)
    if shown:
        findings.note("mask", f"{trained} of {shown} tokens are trained, the sampled ones and no others.")
    return findings


def check_trained(evidence: Evidence, found: Findings) -> None:
    """In the recorded update: exactly the sampled tokens, each once, with weights that are a mask."""
    trainable = sum(t.length for tr in evidence.valid for t in tr.turns if t.trainable)
    if not trainable:
        found.error("mask", "No token of the first batch is trainable: the mask is all zeros.", _first(evidence))
        return
    if not evidence.rows:
        dull = all(group.variance == 0 for group in evidence.groups)  # nothing to compare: `spread` says so
        if evidence.learner is not None and not evidence.failed and not (dull and _chooses(evidence.algorithm)):
            found.error("mask", f"{trainable} tokens were sampled, and the update trains none.", _first(evidence))
        return
    _context(evidence, found)
    _values(evidence, found)
    _twice(evidence, found)
    _lost(evidence, found)


def _chooses(algorithm: Algorithm) -> bool:
    """Whether it learns from some of the answers only: right ones, pairs, groups that differ."""
    return "policy" not in algorithm.streams or bool(getattr(algorithm, "drop_uniform", False))


def _first(evidence: Evidence) -> Where:
    trajectory = next(iter(evidence.trajectories), None)
    return Where(task=None if trajectory is None else trajectory.task.id, trajectory=0, turn=0)


def _context(evidence: Evidence, found: Findings) -> None:
    """Weight on tokens that were not sampled."""
    for stream in sorted({s for row in evidence.rows for s in row.weights}):
        if stream == OBSERVE:
            continue
        bad = [(row, np.flatnonzero((row.weights[stream] != 0) & (row.turn < 0))) for row in evidence.rows
               if stream in row.weights and row.turn is not None]  # fmt: skip
        hit = [(row, at) for row, at in bad if len(at)]
        if hit:
            row, at = hit[0]
            count = sum(len(a) for _, a in hit)
            found.error(
                "mask", f'The stream "{stream}" weighs {count} tokens that were not sampled (context, replies of the '
                "environment, retrieved text).", place(evidence, row, int(at[0])),
            )  # fmt: skip


def _values(evidence: Evidence, found: Findings) -> None:
    """Within a row the weights of a stream are one number, and positive."""
    for row in evidence.rows:
        for stream, weight in row.weights.items():
            used = weight[weight != 0]
            if not len(used):
                continue
            at = int(np.flatnonzero(weight)[0])
            like = len(used) > 0 and np.allclose(used, row.advantage[weight != 0], rtol=1e-4)
            negative = bool((weight < 0).any())
            uneven = float(used.max() - used.min()) > 1e-3 * float(np.abs(used).max())
            if negative or uneven:
                how = "negative" if negative else "uneven within a row"
                also = ", and equal to the advantages" if like else ""
                found.error(
                    "mask values", f'The weights of the stream "{stream}" are {how}{also} '
                    f"({float(used.min()):.3g} to {float(used.max()):.3g}): that is no mask.", place(evidence, row, at),
                )  # fmt: skip
                return


def _twice(evidence: Evidence, found: Findings) -> None:
    """Every sampled token in one row only."""
    times: Counter[tuple[int, int, int]] = Counter()
    home: dict[tuple[int, int, int], Row] = {}
    for row in evidence.rows:
        if row.turn is None or row.trajectory < 0 or "policy" not in row.weights:
            continue
        for t in np.flatnonzero(row.weights["policy"] != 0):
            key = (row.trajectory, int(row.turn[t]), int(t))
            times[key] += 1
            home[key] = row
    again = [key for key, n in times.items() if n > 1]
    if again:
        found.error(
            "trained twice", f"{len(again)} of {len(times)} sampled tokens are trained {max(times.values())} times in "
            "one pass.", place(evidence, home[again[0]], again[0][2]),
        )  # fmt: skip


def _lost(evidence: Evidence, found: Findings) -> None:
    """Sampled tokens with an advantage that no row trains. Rows without advantage may be skipped."""
    trained: set[tuple[int, int]] = set()
    for row in evidence.rows:
        if row.turn is None or row.trajectory < 0 or "policy" not in row.weights:
            return
        trained |= {(row.trajectory, int(j)) for j in np.unique(row.turn[row.weights["policy"] != 0])}
    lost = kept = 0
    where: Where | None = None
    index = {id(t): i for i, t in enumerate(evidence.trajectories)}
    for i, trajectory in enumerate(evidence.valid):
        for j, turn in enumerate(trajectory.turns):
            if turn.trainable and turn.length and np.any(np.asarray(turn.advantage or 0.0)):
                missing = (i, j) not in trained
                lost, kept = lost + missing, kept + (not missing)
                if missing and where is None:
                    where = Where(task=trajectory.task.id, trajectory=index[id(trajectory)], turn=j)
    truncating = getattr(evidence.algorithm, "truncated", "keep") != "keep"
    if lost and not truncating:
        found.error("mask", f"{lost} of {lost + kept} turns with an advantage are not trained at all.", where)


# ---- credit


def check_credit(evidence: Evidence, found: Findings) -> None:
    """Advantages of the batch, and of made-up groups whose answer is known."""
    if "policy" not in evidence.algorithm.streams or evidence.failed:
        return
    _finite(evidence, found)
    _rises(evidence, found)
    _changed(evidence, found)
    _last_turn(evidence, found)
    if evidence.setup.group_size < 2 and _all_zero(evidence):
        found.error(
            "groups of one", f"group_size is {evidence.setup.group_size}, and every advantage of "
            f"{type(evidence.algorithm).__name__} is 0.", _first(evidence),
        )  # fmt: skip
    else:
        _made_up(evidence, found)


def mean_advantage(turn: Turn) -> float:
    """One number for a turn's advantage; nan where it has none."""
    return float("nan") if turn.advantage is None else float(np.mean(np.asarray(turn.advantage, dtype=np.float64)))


def _all_zero(evidence: Evidence) -> bool:
    return all(mean_advantage(u) == 0 for t in evidence.valid for u in t.turns if u.trainable and u.length)


def _finite(evidence: Evidence, found: Findings) -> None:
    if "policy" not in evidence.algorithm.streams:
        return  # it clones or prefers, and assigns none
    for i, trajectory, j, turn in evidence.turns():
        if trajectory.excluded or not turn.trainable or not turn.length:
            continue
        value = mean_advantage(turn)
        if not np.isfinite(value):
            shown = "none" if turn.advantage is None else f"{value}"
            found.error("credit", f"The advantage of a trainable turn is {shown}.",
                        Where(task=trajectory.task.id, trajectory=i, turn=j))  # fmt: skip
            return


def _rises(evidence: Evidence, found: Findings) -> None:
    """Within groups, more reward means more advantage."""
    x, y = [], []
    for group in evidence.groups:
        for trajectory in group.valid:
            values = [mean_advantage(u) for u in trajectory.turns if u.trainable and u.length]
            if values and group.variance > 0 and np.isfinite(values).all():
                x.append(trajectory.reward - float(group.rewards.mean()))
                y.append(float(np.mean(values)))
    if len(x) < 4 or np.std(y) < 1e-9:
        return
    correlation = float(np.corrcoef(x, y)[0, 1])
    if correlation < -0.3:
        found.error(
            "credit", f"Within groups the advantage falls as the reward rises (correlation {correlation:.2f}).",
            _first(evidence),
        )  # fmt: skip


def _changed(evidence: Evidence, found: Findings) -> None:
    """The advantages that were trained with against those that credit gave: they may be masked, not rescaled."""
    given, used, rows = [], [], []
    valid = evidence.valid
    for row in evidence.rows:
        if row.turn is None or not 0 <= row.trajectory < len(valid):
            return
        for j in np.unique(row.turn[row.turn >= 0]):
            turn = valid[row.trajectory].turns[int(j)]
            if turn.trainable and isinstance(turn.advantage, (int, float)):
                given.append(float(turn.advantage))
                used.append(float(row.advantage[row.turn == j].mean()))
                rows.append(row)
    a, b = np.asarray(given), np.asarray(used)
    apart = ~np.isclose(a, b, rtol=0.02, atol=1e-5)
    if len(a) < 3 or np.mean(apart) < 0.5 or (getattr(evidence.algorithm, "kl_in", "loss") == "reward"
                                              and getattr(evidence.algorithm, "kl", 0)):  # fmt: skip
        return
    slope, offset = np.polyfit(a, b, 1) if a.std() > 1e-9 else (0.0, 0.0)
    affine = a.std() > 1e-9 and np.allclose(slope * a + offset, b, atol=0.02 * max(1e-9, float(np.abs(b).max())))
    how = (
        f"advantages were changed once more, to {slope:.3g} x A {offset:+.3g}" if affine else "advantages were changed"
    )
    i = int(np.argmax(apart))
    found.error(
        "normalised twice", f"After credit() the {how} (first: {a[i]:.4g} became {b[i]:.4g}).", place(evidence, rows[i])
    )


def _last_turn(evidence: Evidence, found: Findings) -> None:
    """Only the last trained turn has an advantage, in every trajectory that has one at all."""
    several = 0
    for trajectory in evidence.valid:
        turns = [u for u in trajectory.turns if u.trainable and u.length]
        values = [mean_advantage(u) for u in turns]
        if len(turns) < 2 or not any(values):
            continue
        if any(values[:-1]):
            return
        several += 1
    if several >= 2:
        trajectory = next(t for t in evidence.valid if len(t.turns) > 1 and any(mean_advantage(u) for u in t.turns))
        found.error(
            "last turn only", f"In all {several} trajectories of several turns, the turns before the last have the "
            "advantage 0.", Where(task=trajectory.task.id, trajectory=evidence.trajectories.index(trajectory), turn=0),
        )  # fmt: skip


def _made_up(evidence: Evidence, found: Findings) -> None:
    """Groups with known rewards: do more turns change the credit, does one success in many spike?"""
    template = next((t for t in evidence.valid if t.turns and t.turns[0].length), None)
    if template is None or type(evidence.algorithm).bind is not Algorithm.bind:
        return  # nothing was played, or credit plays on by itself
    base = template.turns[0]

    def made(rewards: Sequence[float], turns: Sequence[int]) -> list[float] | None:
        return _credit(evidence, base, template.task, rewards, turns)

    n = max(4, evidence.setup.group_size)
    rewards = [1.0] + [0.0] * (n - 1)
    one = made(rewards, [1] * n)
    if one is None:
        return
    if max(map(abs, one)) > 5 * n:
        found.error(
            "spikes", f"One success among {n} gets the advantage {max(one, key=abs):.3g}; a group of {n} allows "
            f"{n - 1} at most.", Where(place=f"{type(evidence.algorithm).__name__}.credit, a made-up group"),
        )  # fmt: skip
        return
    if any(len(t.turns) > 1 for t in evidence.valid):
        more = made(rewards, [1] + [3] * (n - 1))
        if more is not None and not np.allclose(one, more, rtol=1e-3, atol=1e-5):
            found.error(
                "turns counted", f"The advantages of one success and {n - 1} failures are {one[0]:.3g} and "
                f"{one[1]:.3g}, but {more[0]:.3g} and {more[1]:.3g} where the failures took three turns.",
                Where(place=f"{type(evidence.algorithm).__name__}.credit, a made-up group"),
            )  # fmt: skip


def _credit(
    evidence: Evidence, base: Turn, task: Task, rewards: Sequence[float], turns: Sequence[int]
) -> list[float] | None:
    """Advantage of each made-up trajectory; None where it differs between turns, or credit cannot judge them."""
    trajectories = []
    for k, (reward, count) in enumerate(zip(rewards, turns, strict=True)):
        made: list[Turn] = []
        prompt = list(base.prompt_ids)
        for j in range(count):
            made.append(Turn(prompt, list(base.completion_ids), list(base.logprobs), parent=None if j == 0 else j - 1,
                             temperature=base.temperature, support=base.support, text=base.text,
                             context=base.context if j == 0 else (Message.user(f"reply {k}"),)))  # fmt: skip
            prompt = prompt + list(base.completion_ids) + list(base.prompt_ids[-1:])
        trajectories.append(Trajectory(task, made, reward=reward, env_steps=count))
    state: Any = evidence.algorithm.state_dict()
    try:
        run_sync(evidence.algorithm.credit([Group(task, trajectories)], evidence.policy))
    except (ValueError, KeyError, TypeError, UserError):
        return None
    finally:
        evidence.algorithm.load_state_dict(state)
    out = []
    for trajectory in trajectories:
        values = [mean_advantage(u) for u in trajectory.turns]
        flat = all(isinstance(u.advantage, (int, float)) for u in trajectory.turns)
        if not flat or not np.isfinite(values).all() or np.ptp(values) > 1e-9:
            return None
        out.append(values[0])
    return out
