"""Checks before the first training step: what goes silently wrong is found in seconds, not after a night.

template    does what the model is shown come back from the ids, and does extending a context equal rendering it afresh?
mask        are exactly the sampled tokens trained, each once, and none of the context?
tasks       is the reward sane, and what would trivial answers earn? (`tasks.check.check_taskset`)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlready.errors import UserError
from rlready.findings import Findings
from rlready.policy.base import Renderer
from rlready.rollout.compile import compile_groups
from rlready.types import Group, Message, Task, Trajectory, Turn


def check_template(
    tasks: Sequence[Task], renderer: Renderer, *, answers: Sequence[str] = (), room: int | None = None
) -> Findings:
    """Check that messages survive their way to token ids, and that the dialect only appends.

    Args:
        tasks: some tasks.
        renderer: the policy's.
        answers: texts that a policy could say; by default strings of the tasks' data.
        room: tokens that a prompt may have; None for no limit.
    """
    findings = Findings("template")
    lengths: list[int] = []
    distinct: dict[tuple[int, ...], tuple[Message, ...]] = {}
    alike = 0
    for task in tasks:
        try:
            prompt = renderer.render(task.prompt)
        except UserError as error:
            findings.error("template", f"task {task.id} cannot be rendered: {error}")
            continue
        lengths.append(len(prompt))
        alike += distinct.setdefault(tuple(prompt), task.prompt) != task.prompt
        if room is not None and len(prompt) > room:
            findings.error(
                "template",
                f"task {task.id}: the prompt has {len(prompt)} tokens, and the model has room for {room}. "
                "Raise tiny.max_len, or leave the task out.",
            )
            continue
        shown = renderer.decode(prompt)
        for message in task.prompt:
            if _words(message.text) not in _words(shown):
                findings.error("template", f"task {task.id}: the {message.role} message is not what the ids decode to.")
        for answer in answers or _answers(task):
            _check_answer(task, answer, prompt, renderer, findings)
    if alike:
        findings.warning("template", f"{alike} of {len(lengths)} prompts have the ids of a prompt with other words.")
    if lengths:
        findings.note(
            "template", f"prompts have {min(lengths)} to {max(lengths)} tokens, {np.mean(lengths):.0f} on average."
        )
    return findings


def check_mask(tasks: Sequence[Task], renderer: Renderer) -> Findings:
    """Compile made-up episodes of two turns and compare what is trained with what was sampled."""
    findings = Findings("mask")
    trained = shown = 0
    for task in tasks:
        answer = next(iter(_answers(task)), None)
        if answer is None:
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
                "mask", f"task {task.id}: {len(tokens)} tokens would be trained, {2 * len(said)} were sampled."
            )
        if len(rows) != 1:
            findings.error("mask", f"task {task.id}: two turns of one conversation became {len(rows)} rows.")
        trained += len(tokens)
        shown += sum(len(row) for row in rows)
    if shown:
        findings.note("mask", f"{trained} of {shown} tokens are trained, the sampled ones and no others.")
    else:
        findings.warning("mask", "no task has an answer in its data, so the mask was not tried.")
    return findings


def _check_answer(task: Task, answer: str, prompt: list[int], renderer: Renderer, findings: Findings) -> None:
    try:
        said = renderer.encode_completion(answer)
    except UserError as error:
        findings.error("template", f'task {task.id}: the answer "{answer}" cannot be written: {error}')
        return
    if _words(renderer.decode(said)) != _words(answer):
        findings.error(
            "template", f'task {task.id}: "{answer}" becomes "{renderer.decode(said)}" on its way through the ids.'
        )
    if any(i in renderer.stop_ids for i in said[:-1]):
        findings.error(
            "template", f'task {task.id}: the answer "{answer}" holds the end token, so it can never be said whole.'
        )
    extended = renderer.extend(prompt, said, task.prompt[:1])
    afresh = renderer.render((*task.prompt, Message("assistant", answer), *task.prompt[:1]))
    if extended[: len(prompt) + len(said)] != prompt + said:
        findings.error("template", f"task {task.id}: extending the context changes what the model saw and said.")
    elif extended != afresh:
        at = next((i for i, (a, b) in enumerate(zip(extended, afresh, strict=False)) if a != b), len(extended))
        findings.warning(
            "template", f'task {task.id}: after "{answer}", extending and rendering afresh differ from token {at} on.'
        )


def _answers(task: Task) -> list[str]:
    """Texts in a task's data that look like what a policy would say."""
    named = [task.data[k] for k in ("answer", "gold", "target", "solution") if k in task.data]
    found = named or list(task.data.values())
    texts = [str(v) for v in found if isinstance(v, (str, int, float)) and not isinstance(v, bool)]
    return [t for t in texts if t.strip()][:3]


def _words(text: str) -> str:
    return " ".join(text.split())
