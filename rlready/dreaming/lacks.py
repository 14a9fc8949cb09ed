"""What is missing in a log and why that hurts, a sentence each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlready.dreaming.understand import Understanding

_FEW_TASKS = 10


@dataclass(frozen=True)
class Lack:
    """A gap in a log.

    Attributes:
        name: a short key, for programs.
        what: what is missing, a sentence.
        hurts: why that hurts, a sentence.
        mend: what would help, a sentence; "" where nothing but other logs would.
    """

    name: str
    what: str
    hurts: str
    mend: str = ""

    def __str__(self) -> str:
        """All of it, in a line."""
        return " ".join(part for part in (self.what, self.hurts, self.mend) if part)


def lacks_of(u: Understanding) -> Iterator[Lack]:
    """The gaps, the worst first. The limits are ours."""
    if not u.judged:
        yield Lack(
            "rewards",
            "No run has a reward.",
            "No verdict can be learned: a dream would not know which of its episodes succeeded.",
            "Give --rewards FILE (lines of id, reward) or --verifier my.py:score.",
        )
    elif u.judged < u.runs:
        yield Lack(
            "some rewards",
            f"{u.runs - u.judged} of {u.runs} runs have no reward.",
            "They teach replies, but no verdicts.",
            "Give them by --rewards FILE.",
        )
    if u.judged and not u.successes:
        yield Lack(
            "successes",
            f"None of the {u.judged} judged runs succeeded.",
            "Nothing shows what success is; a learned judge would always say no.",
            "Add runs that succeeded, or give --verifier.",
        )
    if u.judged and u.successes == u.judged:
        yield Lack(
            "failures",
            f"All {u.judged} judged runs succeeded.",
            "The dream cannot learn what wrong actions lead to, and its judge would always say yes.",
            "Log failed runs too.",
        )
    if u.tasks == 1:
        yield Lack(
            "tasks",
            "All runs are of one task.",
            "Nothing can be held out, so no figure below says how the dream does on a task that it has not seen.",
            "Log more tasks, or name them apart by task_id.",
        )
    elif u.tasks < _FEW_TASKS:
        yield Lack(
            "few tasks",
            f"There are only {u.tasks} tasks.",
            "Figures on the held-out ones rest on very few of them.",
            "Log more tasks.",
        )
    if not u.errors:
        yield Lack(
            "errors",
            "No reply is an error.",
            "The dream cannot learn how this world refuses a wrong call; it refuses in words of ours.",
            "Log failed calls too: they are often filtered out.",
        )
    if not u.random:
        expert = u.judged and u.successes >= 0.95 * u.judged
        yield Lack(
            "random play",
            "Nearly every run is an expert's." if expert else "There is no random play.",
            "What a learner tries and a trained agent never does was not recorded, and its reply is a guess.",
            "Add runs of a weak or random agent (--random-source NAME says which they are).",
        )
    repeated = u.calls.places
    if repeated >= 10 and u.calls.differing > 0.05 * repeated:
        yield Lack(
            "contradictions",
            f"At {u.calls.differing} of {repeated} places the same call after the same history was answered "
            "differently.",
            "Something that the log does not show decides the reply (a clock, a seed, other users); no dream can get "
            "those right.",
            "Log what decides it, such as the seed.",
        )
    if u.prompts > 1 and u.prompt_share < 1:
        yield Lack(
            "one prompt",
            f"The runs have {u.prompts} different system prompts ({1 - u.prompt_share:.0%} have not the commonest).",
            "Those carry theirs in front of the instruction; an agent that is trained here reads both forms.",
        )
    if u.finished < u.runs:
        yield Lack(
            "endings",
            f"{u.runs - u.finished} of {u.runs} runs end without a last word, as if they had been cut.",
            "They teach replies, but not how an episode ends, and their verdict may be the cut's.",
            "Log done or truncated where it is known.",
        )
    if u.unanswered:
        yield Lack(
            "results",
            f"{u.unanswered} tool calls have no result.",
            "Their replies are empty, and the dream may learn to say nothing.",
            "Check that results are logged with the id of their call.",
        )
    if u.called and not u.tools:
        yield Lack(
            "schemas",
            "The log holds no tool schemas.",
            "They are learned from the calls: an argument or a tool that nobody used is unknown to the dream.",
            "Log the tools that the agent was given.",
        )
    if u.unused:
        named = ", ".join(u.unused[:5]) + (" ..." if len(u.unused) > 5 else "")
        yield Lack(
            "coverage",
            f"{len(u.unused)} of {u.tools} tools were never called: {named}.",
            "Their replies are a guess.",
            "Log runs that use them, or leave them out of the agent's tools.",
        )
    if not u.step_seconds.n:
        yield Lack(
            "times",
            "The log has no times.",
            "Whether the real environment is cheaper than a dream cannot be said.",
            "Give --step-seconds and --setup-seconds of the real one.",
        )
    if u.unmatched:
        yield Lack(
            "reward ids",
            f"{len(u.unmatched)} ids of the rewards fit no run, such as {u.unmatched[0]}.",
            "What they say is lost.",
            "Name the runs as the log does.",
        )
    records = u.dropped + u.runs
    if u.dropped > 0.05 * records:
        yield Lack(
            "readable records",
            f"{u.dropped} records could not be read.",
            "What is dropped is seldom dropped by chance.",
            "See dropped.jsonl for file, line and reason.",
        )
    if u.duplicates > 0.1 * u.runs:
        yield Lack(
            "variety",
            f"{u.duplicates} of {u.runs} runs are exact duplicates.",
            "They are kept once, so there is less to learn from than it looks.",
        )
