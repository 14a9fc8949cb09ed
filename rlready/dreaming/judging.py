"""Who says whether a dream succeeded: chosen by what the logs bear out, and said."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from rlready.dream.criteria import Changes, Criteria, changes
from rlready.dream.gym import RewardSource
from rlready.dream.library import Library
from rlready.dreaming.options import FitOptions

RIGHT = 0.9
"""Least agreement with the logs' rewards (ours)."""
KNOWN = 0.5
"""Least share of the training tasks that have criteria (ours)."""


def choose_reward_source(criteria: Criteria, library: Library, options: FitOptions) -> tuple[RewardSource, str]:
    """Who says whether a dream succeeded, and why, as a sentence.

    The verifier where there is one. Else the pinned criteria where changes decide: at least half of the training
    tasks have a recorded success to compare with, and comparing each run with the others of its task agrees with the
    logs' rewards nine times in ten (the numbers are ours). Else the simulator judges.

    Args:
        criteria: learned from the library.
        library: the recordings that are learned from.
        options: what was asked for.
    """
    if options.reward_source:
        return options.reward_source, "as was asked for"  # type: ignore[return-value]  # checked by FitOptions
    if options.verifier:
        return "verifier", f"{options.verifier} was given"
    runs: dict[str, list[tuple[Changes, bool]]] = {}
    for id, episode in library.episodes.items():
        if episode.judged:
            made = changes(library.steps(id), criteria.reads)
            runs.setdefault(episode.task_id, []).append((made, episode.success))
    if not runs:
        return "model", "no run has a reward, so its verdicts are guesses"
    if not any(made and success for found in runs.values() for made, success in found):
        return "model", "no recorded success changed anything by a call, so calls do not decide"
    tasks = set(library.by_task)
    known = sum(criteria.known(task) for task in tasks)
    share = f"{known} of {len(tasks)} training tasks have a recorded success to compare with"
    if known < KNOWN * len(tasks):
        return "model", f"only {share}"
    agree, compared = _agreement(runs)
    if not compared:
        return "model", "no task has a success and another run, so comparing changes cannot be tried on the logs"
    said = f"{agree / compared:.0%} of {compared} runs, each compared with the others of its task"
    if agree < RIGHT * compared:
        return "model", f"comparing changes agrees with the logs' rewards on only {said}"
    return "criteria", f"{share}, and comparing changes agrees with the logs' rewards on {said}"


def _agreement(runs: Mapping[str, Sequence[tuple[Changes, bool]]]) -> tuple[int, int]:
    """On how many runs, and of how many, criteria learned from the other runs of the task say what the log says."""
    agree = compared = 0
    for found in runs.values():
        for i, (made, success) in enumerate(found):
            score = Counter[Changes]()
            for j, (other, won) in enumerate(found):
                if i != j:
                    score[other] += 1 if won else -1
            right = {other for j, (other, won) in enumerate(found) if i != j and won and score[other] > 0}
            if right:
                compared += 1
                agree += (made in right) == success
    return agree, compared
