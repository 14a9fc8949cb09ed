"""The order of the examination: tasks, tokens, first batch, first update."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rlready.doctor.catalogue import explained
from rlready.doctor.credit import check_credit, check_mask, check_trained
from rlready.doctor.episodes import check_environment, check_episodes, offered
from rlready.doctor.evidence import Evidence, put_back, record_update, roll_out, room_of
from rlready.doctor.logprobs import check_logprobs, check_settings, check_sync
from rlready.doctor.losses import check_losses
from rlready.doctor.selftest import check_rewards, check_spread
from rlready.doctor.setup import Setup, is_chat
from rlready.doctor.splits import check_splits
from rlready.doctor.tokens import check_contexts, check_template
from rlready.errors import UserError
from rlready.findings import Findings, Where

Progress = Callable[[str], None]
_SOME = 64


def audit(setup: Setup, *, on_progress: Progress | None = None) -> Findings:
    """Examine a set-up before its first step.

    Args:
        setup: what would be trained.
        on_progress: called with what is being looked at.

    Returns:
        The findings, errors first, each with where, why and what to do.

    Raises:
        UserError: the set-up cannot be started at all.
    """
    return examine(setup, on_progress=on_progress)[0]


def examine(setup: Setup, *, on_progress: Progress | None = None) -> tuple[Findings, Evidence]:
    """As `audit`; also what was seen, for showing the mask."""
    tell = on_progress or _silent
    full, algorithm, env = setup.completed()
    evidence = Evidence(full, algorithm, env)
    found = Findings(full.name)

    tell("splits")
    check_splits(full.tasks, full.splits, found)
    tell("reward")
    check_rewards(full.tasks, found, seed=full.seed, deadline=full.deadline, gold=full.gold)
    tell("environment")
    check_environment(full.tasks, env, found, closing=full.closing, deadline=full.deadline)
    tell("template")
    some = list(full.tasks.head(_SOME))
    room = _room(evidence)
    said = None if is_chat(env) else offered(env, full.tasks)
    with _own_parts(found, "round trip", "renderer"):
        found.extend(check_template(some, full.policy.renderer, answers=said, room=room))
        found.extend(check_mask(some, full.policy.renderer, said))

    with put_back(full.policy):
        full.policy.sync()
        tell("first batch")
        try:
            roll_out(evidence)
        except Exception as error:  # whatever the set-up's own parts raise is what is looked for
            what = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            found.error("failures", f"The first batch cannot be rolled out: {what}", Where(place="first batch"))
            return explained(found, full.name), evidence
        _own_form(evidence, found)
        tell("episodes")
        check_episodes(evidence, found)
        if full.group_size > 1:
            check_spread([[t.reward for t in group.valid] for group in evidence.groups], found)
        check_contexts(evidence, found)
        tell("log-probs")
        rated = check_logprobs(evidence, found)
        if rated:
            with _own_parts(found, "log-probs", "sampler or learner"):
                check_settings(evidence, found)
        tell("first update")
        learner = evidence.learner
        if learner is None:
            text = "The policy has no learner: log-probs, update, credit, loss and sync were not looked at."
            found.warning("update", text, Where(place="set-up"))
        if learner is not None and evidence.valid:
            if algorithm.needs_reference and learner.state_dict().get("reference") is None:
                learner.freeze_reference()
            record_update(evidence)
            tell("mask and credit")
            check_trained(evidence, found)
            check_credit(evidence, found)
            tell("loss")
            check_losses(evidence, found)
        tell("weights after an update")
        if evidence.valid and rated:
            with _own_parts(found, "sync", "sampler or learner"):
                check_sync(evidence, found)
    return explained(found, full.name), evidence


@contextmanager
def _own_parts(found: Findings, check: str, part: str) -> Iterator[None]:
    """What the set-up's own parts raise is a fault of the set-up, told as a finding with the line it came from."""
    try:
        yield
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        what = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        place = f"{Path(last.filename).name}, line {last.lineno}"
        found.error(check, f"The {part} raises, so this was not looked at: {what}", Where(place=place))


def _own_form(evidence: Evidence, found: Findings) -> None:
    """Gold answers that no usual form gets paid are no fault where the policy was right: the form is the task's own."""
    if evidence.setup.gold is not None or not any(t.success for t in evidence.valid):
        return
    found.items = [
        replace(f, level="note", text=f"{f.text} The policy was right in the first batch, in a form of its own.")
        if f.check == "gold answers" and f.level == "error"
        else f
        for f in found.items
    ]


def _room(evidence: Evidence) -> int | None:
    """Tokens that a prompt may have where the answer is the only turn; None where that is not known."""
    longest = room_of(evidence.policy)
    if longest >= 10**9 or not is_chat(evidence.env):
        return None
    return longest - evidence.setup.params.max_tokens


def _silent(_: str) -> None:
    pass
