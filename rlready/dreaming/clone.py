"""Cloning a gym's recordings: the warm start, and the rival that RL in the dream has to beat."""

from __future__ import annotations

from collections.abc import Sequence

from rlready.algorithms.sft import SFT
from rlready.dream.gym import Gym
from rlready.errors import UserError
from rlready.policy.base import Policy, Renderer
from rlready.rollout.actors import Conversation
from rlready.rollout.compile import compile_trajectory
from rlready.run import Run
from rlready.seeds import np_rng
from rlready.types import Message, Row, Task, Trajectory, Turn


def trajectory_of(gym: Gym, id: str, renderer: Renderer) -> Trajectory:
    """A recording as the turns that a policy would have made, written through the gym's own template.

    An action that closed nothing and that the checks refuse stays in the context but is not learned.
    """
    episode = gym.library.episodes[id]
    messages: tuple[Message, ...] = gym.domain.prompt(episode.instruction)
    talk = Conversation(renderer)
    out = Trajectory(Task(messages, id=episode.task_id), seed=episode.seed)
    for number, (action, reply) in enumerate(gym.library.steps(id), 1):
        if not action.text:
            break
        prompt, parent, new = talk.prompt(messages)
        completion = renderer.encode_completion(action.text)
        talk.record(len(out.turns), prompt, completion, action.text)
        good = not reply.failed and not action.problem
        out.turns.append(Turn(prompt, completion, parent=parent, context=new, text=action.text, trainable=good))
        messages += (Message("assistant", action.text),)
        if reply.text or not reply.done:
            messages += (gym.domain.answer(action, reply, number),)
    return out


def rows_of(gym: Gym, ids: Sequence[str], policy: Policy, longest: int | None = None) -> tuple[list[Row], int]:
    """Supervised rows of recordings, and how many recordings were too long for the policy.

    Args:
        gym: holds them.
        ids: which.
        policy: its renderer writes them.
        longest: most tokens of a row; None for no limit.
    """
    rows: list[Row] = []
    left_out = 0
    for id in ids:
        made = compile_trajectory(trajectory_of(gym, id, policy.renderer), streams=("nll",))
        if longest is not None and any(len(row) > longest for row in made):
            left_out += 1
            continue
        for row in made:
            row.trajectory = row.group = -1
        rows += made
    return rows, left_out


def clone(
    gym: Gym, policy: Policy, run: Run, *, successes: bool, epochs: int, batch_tokens: int, most: int = 4000
) -> dict[str, float]:
    """Clone a gym's recordings with progress and time left; random play is never cloned.

    Args:
        gym: whose recordings.
        policy: changed in place.
        run: keeps progress and metrics.
        successes: only the recorded successes (filtered cloning).
        epochs: passes.
        batch_tokens: tokens per batch.
        most: recordings used at most, drawn at random.

    Returns:
        Counts and losses.

    Raises:
        UserError: there is nothing to clone.
    """
    episodes = gym.library.episodes
    ids = [i for i, e in episodes.items() if e.source != "random" and (not successes or (e.judged and e.success))]
    if not ids:
        what = "recorded success" if successes else "recording of an agent"
        raise UserError(
            f"The gym holds no {what} to clone. Record some, give rewards (--rewards), or start from a policy folder."
        )
    if len(ids) > most:
        ids = sorted(np_rng(run.seed, "clone").choice(ids, most, replace=False).tolist())
    config = getattr(policy, "config", None)
    rows, left_out = rows_of(gym, ids, policy, getattr(config, "max_len", None))
    if not rows:
        raise UserError(
            f"All {len(ids)} recordings are longer than the policy's {getattr(config, 'max_len', 0)} tokens. "
            "Set tiny.max_len higher."
        )
    with run.progress.track("clone", 1) as bar:

        def on_step(step: int, total: int, metrics: dict[str, float]) -> None:
            bar.total = total
            bar.show(metrics)
            bar.advance()
            if step == 1 or step % max(1, total // 50) == 0:
                run.log(step, metrics)

        history = SFT(seed=run.seed).fit_rows(policy, rows, epochs=epochs, batch_tokens=batch_tokens, on_step=on_step)
    return {
        "recordings": float(len(ids)),
        "too_long": float(left_out),
        "steps": float(len(history)),
        "loss": history[-1]["loss/nll"],
    }
