"""The gate's third check: what is no action is refused, changes nothing and earns nothing.

Wrong actions are made from a domain's schemas and recorded calls, kind by kind.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlready.dream.actions import ActionChecks
from rlready.dream.checks import Replayed, invalid_recall, replay
from rlready.dream.domain import call_text
from rlready.dream.library import read_action
from rlready.dream.measure.determinism import Found, Script
from rlready.dream.measure.walk import looks_failed
from rlready.dream.simulators.words import f1
from rlready.envs.base import EnvFactory
from rlready.experience.episode import LoggedEpisode
from rlready.toolcalls import CLOSE, OPEN

if TYPE_CHECKING:
    from rlready.dream.domain import Domain

Told = Callable[[str], bool]
"""Whether a reply says that something was wrong."""

_NEVER_USED = "no_such_name_7f3a"
_SLOT = re.compile(r"\\\$(?:tools|tool|arguments|argument|value|problem|wanted)")
_LITERAL = 4
"""An error's wording is recognised by at least so many characters outside its slots."""
MOST_REFUSED = 0.25
"""Valid actions that may be refused beyond the recorded share of errors. A dream that refuses everything would pass
all else; one that errs on a quarter more of what the logs' agents did is no world to learn in (ours)."""
LIKE_RECORDED = 0.5
"""Least F1 of words between an error and the recorded one for the same action: names in it may differ, the kind of
sentence may not (ours)."""


def invalid_actions(domain: Domain, known: Iterable[str], *, tools: int = 4) -> dict[str, list[str]]:
    """Texts of every kind of invalid action that the domain's schemas can tell.

    Args:
        domain: the schemas.
        known: recorded actions, the templates from which wrong calls are made.
        tools: of so many of the most called tools.

    Returns:
        Texts by kind ("malformed", "unknown_tool", "missing_argument", "unknown_argument", "wrong_type",
        "inadmissible"); a kind that cannot be made (no tool has a required argument) is absent. The empty text is not
        among them: what it means depends on the domain.
    """
    checks = ActionChecks(domain)
    out: dict[str, list[str]] = defaultdict(list)

    def add(kind: str, text: str) -> None:
        read = domain.parse(text)
        found = checks.kind_of(read[0]) if len(read) == 1 else None
        if found is not None and found[0] == kind and text not in out[kind]:
            out[kind].append(text)

    if not domain.tools:
        add("inadmissible", _NEVER_USED)
        return {k: v for k, v in out.items() if v}
    calls: dict[str, dict[str, Any]] = {}
    for text in known:
        action = read_action(text, domain)
        if action.arguments is not None and checks.kind_of(action) is None:
            calls.setdefault(action.tool, dict(action.arguments))
    add("unknown_tool", call_text(_NEVER_USED, {}))
    most = sorted(domain.tools.values(), key=lambda t: (-t.calls, t.name))
    for spec in most[:tools]:
        add("malformed", f'{OPEN}{{"name": "{spec.name}", "arguments": {{{CLOSE}')
        call = calls.get(spec.name)
        if call is None:
            continue
        properties: Mapping[str, Any] = spec.parameters.get("properties") or {}
        for name in sorted(call):
            add("missing_argument", call_text(spec.name, {k: v for k, v in call.items() if k != name}))
            add("wrong_type", call_text(spec.name, {**call, name: _other_type(properties.get(name), call[name])}))
        add("unknown_argument", call_text(spec.name, {**call, _NEVER_USED: 1}))
    return {kind: texts[:tools] for kind, texts in out.items() if texts}


def _other_type(schema: object, value: object) -> object:
    """A value of another type than a recorded one."""
    allowed = schema.get("type") if isinstance(schema, Mapping) else None
    names = set(allowed) if isinstance(allowed, list) else {allowed}
    for candidate, name in (({"a": [1]}, "object"), ([{"a": 1}], "array"), (12345, "integer"), ("x", "string")):
        if name not in names and not isinstance(value, type(candidate)):
            return candidate
    return None


def told(domain: Domain) -> Told:
    """Whether a reply, as the agent reads it, says that something was wrong: an error text, or a recorded wording."""
    patterns = []
    for form in domain.errors.values():
        literal = _SLOT.split(re.escape(form.text).replace(re.escape("$$"), re.escape("$")))
        if sum(len(part) for part in literal) >= _LITERAL:
            patterns.append(re.compile(".*?".join(literal), re.DOTALL))

    def reads_as_error(text: str) -> bool:
        return looks_failed(text) or any(p.fullmatch(text.strip()) for p in patterns)

    return reads_as_error


async def refusals(
    env: EnvFactory,
    domain: Domain,
    scripts: Sequence[Script],
    alone: Sequence[Replayed],
    *,
    recorded: Sequence[LoggedEpisode],
    seed: int,
) -> Found:
    """Slip every kind of invalid action into scripts; see `dream.gate`."""
    failures, notes = list[str](), list[str]()
    measured: dict[str, float] = {}
    is_error, cap = told(domain), domain.ending.cap
    played = [(task, list(actions)[: max(1, cap - 2)]) for task, actions in scripts if actions][:3]
    texts = [t for e in recorded for t in e.actions] + [t for _, actions in scripts for t in actions]
    made = invalid_actions(domain, texts)
    blank_is_fine = any(not t.strip() and i not in e.errors for e in recorded for i, t in enumerate(e.actions))
    if not played:
        failures.append("There was no script to slip an invalid action into, so nothing is known.")
    for kind, wrong in made.items():
        shares = []
        for before, some in ((0, wrong), (-1, wrong[:1])):  # with all of the script to come, and with none
            recall = await invalid_recall(env, played, some, told=is_error, before=before, seed=seed)
            shares.append((recall.told, recall.unchanged))
            if recall.told < 1:
                failures.append(
                    f"{kind}: {1 - recall.told:.0%} of {recall.attempts} were not refused; {recall.untold}."
                )
            if recall.unchanged < 1:
                share = f"{1 - recall.unchanged:.0%} of {recall.attempts}"
                failures.append(f"{kind}: {share} changed the episode; {recall.moved}.")
        measured[f"{kind}/told"], measured[f"{kind}/unchanged"] = (min(values) for values in zip(*shares, strict=True))
    if not made:
        notes.append("the domain knows no schemas and no list of actions, so only the empty text could be tried")
    for task, actions in played:
        wrong_only = [t for wrong in made.values() for t in wrong[:1]][: max(1, cap - 1)]
        run = await replay(env, task, seed, wrong_only)
        if run.reward > 0:
            failures.append(f"task {task.id}: an episode of nothing but invalid actions earns {run.reward:g}.")
        empty = await replay(env, task, seed, [*actions[:-1], "", *actions[-1:]])
        problem = "" if blank_is_fine else _empty_text(empty, len(actions), is_error)
        if problem:
            failures.append(f"task {task.id}: the empty text {problem}.")
    failures += await _recorded_errors(env, domain, scripts, recorded, is_error, seed)
    refused, base = _refused(domain, alone, is_error), _error_share(recorded)
    measured["valid refused"], measured["recorded errors"] = refused, base
    if refused > base + MOST_REFUSED:
        failures.append(
            f"{refused:.0%} of valid actions are refused; of the recorded ones {base:.0%} were. A dream that refuses "
            "what is right is as misleading as one that takes what is wrong."
        )
    return Found(list(dict.fromkeys(failures)), measured, notes)


def _empty_text(run: Replayed, steps: int, is_error: Told) -> str:
    """What is wrong with how an empty text slipped in before the last action was taken; "" where it is well.

    It may be refused, or be taken as the closing word; then it must earn nothing.
    """
    at = max((i for i, (role, said) in enumerate(run.shown) if role == "assistant" and not said.strip()), default=None)
    if at is None or run.failure:
        return ""  # the script ended before it
    if run.steps == steps:  # it closed the episode
        return f"ends the episode with reward {run.reward:g}" if run.reward > 0 else ""
    reply = run.shown[at + 1][1] if at + 1 < len(run.shown) else ""
    return "" if is_error(reply) else f"is taken as an action and answered by {reply!r}"


async def _recorded_errors(
    env: EnvFactory,
    domain: Domain,
    scripts: Sequence[Script],
    recorded: Sequence[LoggedEpisode],
    is_error: Told,
    seed: int,
) -> list[str]:
    """Recorded actions that were refused for their form must be refused here, in the recorded kind of sentence."""
    checks, out, seen = ActionChecks(domain), [], set[str]()
    if not scripts:
        return []
    task = scripts[0][0]
    for episode in recorded:
        for i in episode.errors:
            text, truth = episode.actions[i], episode.replies[i]
            found = checks.kind_of(read_action(text, domain))
            if found is None or text in seen or len(seen) >= 8 or not truth.strip():
                continue
            seen.add(text)
            run = await replay(env, task, seed, [text])
            reply = run.shown[-1][1] if run.shown and run.shown[-1][0] != "assistant" else ""
            if not is_error(reply):
                out.append(f"{text!r} was refused in the logs ({truth!r}), and is answered here by {reply!r}.")
            elif domain.errors[found[0]].recorded and f1(reply, truth) < LIKE_RECORDED:
                out.append(f"{text!r} is refused by {reply!r}; in the logs it was {truth!r}.")
    return out[:3]


def _refused(domain: Domain, alone: Sequence[Replayed], is_error: Told) -> float:
    """Share of well-formed script actions whose reply is an error."""
    checks, tried, refused = ActionChecks(domain), 0, 0
    for run in alone:
        for (role, text), (answered, reply) in zip(run.shown, run.shown[1:], strict=False):
            if role != "assistant" or answered == "assistant" or checks.kind_of(read_action(text, domain)) is not None:
                continue
            tried, refused = tried + 1, refused + is_error(reply)
    return refused / tried if tried else 0.0


def _error_share(recorded: Sequence[LoggedEpisode]) -> float:
    steps = sum(len(e) for e in recorded)
    return sum(len(e.errors) for e in recorded) / steps if steps else 0.0
