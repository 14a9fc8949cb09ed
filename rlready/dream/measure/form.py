"""The gate's second check: one parser, one template and one set of flags for logs, dream and deployment."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rlready.dream.base import Reply
from rlready.dream.measure.determinism import Found, Script
from rlready.envs.base import EnvFactory
from rlready.errors import EnvError
from rlready.experience.episode import LoggedEpisode
from rlready.types import Message, Task

if TYPE_CHECKING:
    from rlready.dream.domain import Domain


async def form(
    env: EnvFactory,
    domain: Domain,
    scripts: Sequence[Script],
    *,
    real: EnvFactory | None,
    recorded: Sequence[LoggedEpisode],
    fingerprint: str,
    seed: int,
) -> Found:
    """Compare logs, dream, template and real environment; see `dream.gate`."""
    failures, notes = list[str](), list[str]()
    texts = _good_actions(recorded) if recorded else list(dict.fromkeys(t for _, actions in scripts for t in actions))
    unread = [t for t in texts if not _reads_back(domain, t)]
    if unread:
        failures.append(f"{len(unread)} of {len(texts)} recorded actions do not parse and render back: {unread[0]!r}.")
    if not texts:
        failures.append("There was no recorded action to parse, so nothing is known.")
    if fingerprint and fingerprint != domain.fingerprint:
        failures.append(f"Parser, template or flags are {domain.fingerprint} here and {fingerprint} in the run.")
    worlds = 0
    for task, actions in scripts[:4]:
        seen, limited = await look(env, task, seed, actions[:2])
        worlds += 1
        wrong = _misrendered(domain, task, seen, actions[:2])
        if wrong:
            failures.append(f"task {task.id}: {wrong}")
        if real is None or not seen:
            continue
        true, truly_limited = await look(real, task, seed, actions[:2])
        wrong = _unlike(seen, true, first=len(domain.prompt("")))
        if wrong:
            failures.append(f"task {task.id}: {wrong}")
        if limited != truly_limited:
            where = "dream" if limited else "real environment"
            failures.append(f"task {task.id}: only the {where} limits decoding to a list of actions.")
    if real is None:
        notes.append("no real environment was given, so its first observation was not compared")
    measured = {"actions": float(len(texts)), "unread": float(len(unread)), "worlds": float(worlds)}
    return Found(list(dict.fromkeys(failures)), measured, notes)


def _good_actions(recorded: Sequence[LoggedEpisode]) -> list[str]:
    """All recorded actions that were not refused."""
    good = (t for e in recorded for i, t in enumerate(e.actions) if i not in set(e.errors))
    return list(dict.fromkeys(good))


def _reads_back(domain: Domain, text: str) -> bool:
    read = domain.parse(text)
    return len(read) == 1 and not read[0].problem and read[0].text == text.strip()


async def look(
    env: EnvFactory, task: Task, seed: int, actions: Sequence[str]
) -> tuple[list[tuple[Message, ...]], bool]:
    """All messages after the reset and after each action, and whether decoding is limited to a list of actions."""
    world = env()
    try:
        observation = await world.reset(task, seed)
        seen, limited = [observation.messages], observation.actions is not None
        for action in actions:
            step = await world.step(action)
            seen.append(step.observation.messages)
            if step.terminated or step.truncated or "failure" in step.info:
                break
        return seen, limited
    except EnvError:
        return [], False
    finally:
        await world.close()


def _misrendered(domain: Domain, task: Task, seen: Sequence[tuple[Message, ...]], actions: Sequence[str]) -> str:
    """How a dream departs from the domain's template; "" where it does not."""
    if not seen:
        return "the first observation could not be made."
    asked = str(task.data.get("instruction") or "") or "\n".join(
        m.text for m in task.prompt if m.role not in ("assistant", "system")
    )
    wrong = _first_difference(seen[0], domain.prompt(asked), "the template")
    if wrong:
        return f"the first observation is not the template's: {wrong}"
    for turn, (before, after) in enumerate(itertools.pairwise(seen), 1):
        text = actions[turn - 1]
        if after[: len(before)] != before:
            return f"step {turn} rewrites what was shown before."
        new = after[len(before) :]
        if not new or (new[0].role, new[0].text) != ("assistant", text):
            return f"step {turn} does not show the action as it was written: {text!r}."
        parsed = domain.parse(text)
        for index, (message, action) in enumerate(zip(new[1:], parsed, strict=False)):
            wanted = domain.answer(action, Reply(message.text), turn, index)
            if message != wanted:
                return (
                    f"step {turn} shows its reply as {message.role} message {message.tool_call_id or ''}".rstrip()
                    + f", the template as {wanted.role} message {wanted.tool_call_id or ''}".rstrip()
                    + (f": {message.text[:80]!r}." if message.text != wanted.text else ".")
                )
    return ""


def _unlike(dream: Sequence[tuple[Message, ...]], true: Sequence[tuple[Message, ...]], *, first: int) -> str:
    """How dream and real environment differ in form; "" where they do not. Texts of replies may differ."""
    if not true:
        return "the real environment could not be reset to it."
    wrong = _first_difference(dream[0], true[0], "the real one")
    if wrong:
        return f"the first observations differ: {wrong}"
    for turn, (a, b) in enumerate(zip(dream[1:], true[1:], strict=False), 1):
        forms = [[(m.role, m.tool_call_id) for m in messages[first:]] for messages in (a, b)]
        if forms[0] != forms[1]:
            return f"after step {turn} the dream's messages are {forms[0]}, the real ones {forms[1]}."
    return ""


def _first_difference(a: Sequence[Message], b: Sequence[Message], other: str) -> str:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if (x.role, x.text) != (y.role, y.text):
            return f"message {i} is {_around(x, y)}, in {other} {_around(y, x)}."
    return "" if len(a) == len(b) else f"it has {len(a)} messages, {other} {len(b)}."


def _around(message: Message, other: Message) -> str:
    """A message's role and the part of its text where it departs from another."""
    at = next((i for i, (p, q) in enumerate(zip(message.text, other.text, strict=False)) if p != q), 0)
    return f"{message.role} {message.text[max(0, at - 20) : at + 60]!r}"
