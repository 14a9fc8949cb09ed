r"""How an episode is written for a model: one layout of chat messages, whatever the model.

    system      role, the domain's rules (cut to a budget), output rules        (left out for tiny models)
    user        instruction
                [1] action
    assistant   reply
    user        [2] action
    assistant   <failed> reply
    user        [3] action
    assistant   <nothing> <done>

Real turns stay chat turns. Before an action there may be `k` demonstrations, recorded actions with their replies. A
reply has one strict form: optionally led by `<failed>` (an error message), optionally followed by `<reward x>` (where
the domain rewards steps) and `<done>` (the episode ends here), `<nothing>` where its text is empty. Such marks inside
a text are written with a backslash before them, so that no reply can forge them.

The judge's question shows what the world holds (the facts, sorted, whoever asked for them), what was done and came
back, then `<judge>`; the answer is `<right>` or `<wrong>`. Reading calls made before anything was changed belong to the
facts: whether an agent looked does not change what is right.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rlready.dream.base import Action, Reply
from rlready.dream.format import Unparsable
from rlready.dream.library import Steps, facts_of
from rlready.types import Message

if TYPE_CHECKING:
    from rlready.dream.domain import Domain

FAILED, DONE, NOTHING, JUDGE, RIGHT, WRONG = "<failed>", "<done>", "<nothing>", "<judge>", "<right>", "<wrong>"
CUT = " [...]"
Demos = Sequence[tuple[str, str]]
"""Recorded (action text, written reply) pairs, best first."""

ROLE = """You stand in for the environment of an agent. Each user message holds the agent's next action with its \
number. You write what the environment gives back, and nothing else: no advice, no comment, never the agent's part."""
OUTPUT = """Write the reply exactly as the environment words it.
Begin with <failed> where it is an error message. Write <nothing> where nothing comes back.
End with <done> where the episode is over.{reward}
What was said stays true: the same question about an unchanged world has the same answer.
Asked <judge>, answer <right> where the agent achieved what it was asked, else <wrong>."""
REWARD = "\nAfter the reply, before any <done>, write the reward of the step as <reward 0.5>."

_MARK = re.compile(r"\\*<(?=(?:failed|done|nothing|judge|right|wrong)>|reward )")
_ESCAPED = re.compile(r"\\(\\*<(?=(?:failed|done|nothing|judge|right|wrong)>|reward ))")
_REWARD = re.compile(r"(?:\A| )<reward ([^<>\s]+)>\Z")


@dataclass(frozen=True)
class Layout:
    """One way of writing episodes.

    Attributes:
        rules: the domain's rules.
        step_rewards: replies state a reward.
        system: whether there is a system message at all.
        rules_chars: budget of the rules in the system message.
        demos: demonstrations before each action.
        demo_chars: cap on each demonstration's reply.
        reply_chars: longer replies are shown cut where they are history.
    """

    rules: str = ""
    step_rewards: bool = False
    system: bool = True
    rules_chars: int = 8000
    demos: int = 0
    demo_chars: int = 2000
    reply_chars: int = 8000

    @classmethod
    def of(cls, domain: Domain, **settings: Any) -> Layout:
        """The layout of a domain."""
        return cls(rules=domain.rules, step_rewards=domain.step_rewards, **settings)

    @classmethod
    def tiny(cls, domain: Domain, **settings: Any) -> Layout:
        """The layout of a domain for a model trained on it alone, which needs no system message."""
        return cls(step_rewards=domain.step_rewards, system=False, **settings)

    # ------------------------------------------------------------------ messages

    @property
    def head(self) -> tuple[Message, ...]:
        """The system message, if there is one."""
        if not self.system:
            return ()
        output = OUTPUT.replace("{reward}", REWARD if self.step_rewards else "")
        rules = f"The rules of this environment, as its agent is told them:\n{cut(self.rules, self.rules_chars)}"
        return (Message("system", "\n\n".join([ROLE, *([rules] if self.rules else []), output])),)

    def ask(self, number: int, action: Action, demos: Demos = (), before: str = "") -> Message:
        """The user message of an action.

        Args:
            number: of the action, from 1.
            action: what was done.
            demos: as many are shown as the layout has.
            before: what the conversation opens with (instruction, facts), "" later on.
        """
        shown = [f"[like] {done}\n{cut(back, self.demo_chars)}" for done, back in demos[: self.demos]]
        return Message.user("\n".join([*([before] if before else []), *shown, f"[{number}] {action.text}"]))

    def episode(
        self,
        instruction: str,
        past: Sequence[tuple[Action, Reply]],
        action: Action,
        *,
        start: int = 0,
        demos: Callable[[int], Demos] | None = None,
    ) -> list[Message]:
        """The conversation up to where the reply to an action is to be written.

        Args:
            instruction: what the agent was asked.
            past: what happened.
            action: what is to be answered.
            start: the first step that is shown; older ones are dropped, their numbers stay used.
            demos: the demonstrations of the step with this index.
        """
        messages = list(self.head)
        before = instruction
        for i, (done, back) in enumerate([*past[start:], (action, None)], start):
            messages.append(self.ask(i + 1, done, demos(i) if demos is not None and self.demos else (), before))
            before = ""
            if back is not None:
                messages.append(Message("assistant", self.shown(back)))
        return messages

    def verdict(
        self, instruction: str, facts: Sequence[tuple[Action, Reply]], steps: Sequence[tuple[Action, Reply]], *,
        reads: Collection[str] = (), start: int = 0,
    ) -> list[Message]:  # fmt: skip
        """The conversation up to where the verdict is to be written; see `world_and_deeds` for facts and steps.

        The question repeats what was asked and what was changed, side by side: the calls that do not only
        read and did not fail, sorted.
        """
        messages = list(self.head)
        known = [f"[world] {asked.text}\n{self.shown(said)}" for asked, said in facts]
        before = "\n".join([instruction, *known])
        for i, (done, back) in enumerate(steps[start:], start):
            messages += [self.ask(i + 1, done, (), before), Message("assistant", self.shown(back))]
            before = ""
        changed = sorted(a.text for a, r in steps if a.tool and a.tool not in reads and not r.failed)
        question = [f"[task] {instruction}", *(f"[changed] {text}" for text in changed), JUDGE]
        return [*messages, Message.user("\n".join([*([before] if before else []), *question]))]

    def shown(self, reply: Reply) -> str:
        """A reply as history shows it: its written form, cut where the text is long."""
        return self.write(reply, self.reply_chars)

    # ------------------------------------------------------------------ the strict form

    def write(self, reply: Reply, most: int | None = None) -> str:
        """A reply in its strict form; its text cut to `most` characters."""
        text = reply.text if most is None else cut(reply.text, most)
        parts = [FAILED] if reply.failed else []
        parts.append(_MARK.sub(r"\\\g<0>", text) if text else NOTHING)
        if self.step_rewards:
            parts.append(f"<reward {reply.reward or 0.0!r}>")
        if reply.done:
            parts.append(DONE)
        return " ".join(parts)

    def read(self, text: str) -> Reply:
        """Inverse of `write`.

        Raises:
            Unparsable: there is no reply, a mark stands where it does not belong, or the reward is missing, not finite
                or not asked for.
        """
        body, done = _strip_end(text, DONE)
        reward = None
        if self.step_rewards:
            found = _REWARD.search(body)
            if found is None:
                raise Unparsable("the reply states no reward")
            reward = _number(found.group(1))
            body = body[: found.start()]
        body, failed = _strip_start(body, FAILED)
        if body == NOTHING:
            return Reply("", failed, done, reward)
        if not body:
            raise Unparsable("there is no reply")
        for mark in _MARK.findall(body):
            if mark == "<":
                raise Unparsable("a mark stands inside the reply")
        return Reply(_ESCAPED.sub(r"\1", body), failed, done, reward)

    @staticmethod
    def read_verdict(text: str) -> bool:
        """Whether the verdict is "right".

        Raises:
            Unparsable: it is neither "right" nor "wrong".
        """
        if text not in (RIGHT, WRONG):
            raise Unparsable(f"the verdict is {text[:40]!r}")
        return text == RIGHT

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Layout:
        """Inverse of `to_json`."""
        return cls(**record)


def world_and_deeds(
    facts: Sequence[tuple[Action, Reply]], past: Sequence[tuple[Action, Reply]], reads: Collection[str]
) -> tuple[Steps, Steps]:
    """What the world holds, sorted, and what was done besides asking for it.

    Args:
        facts: answers that are known of the untouched world.
        past: the episode.
        reads: tools that change nothing.
    """
    known = {action.text: (action, reply) for action, reply in facts}
    early = facts_of(past, reads)
    for action, reply in early:
        known.setdefault(action.text, (action, reply))
    moved = {action.text for action, _ in early}
    deeds, untouched = [], True
    for action, reply in past:
        if untouched and action.text in moved:
            continue
        deeds.append((action, reply))
        untouched = untouched and (not action.tool or action.tool in reads or reply.failed)
    return tuple(known[text] for text in sorted(known)), tuple(deeds)


def cut(text: str, most: int) -> str:
    """The first `most` characters, with a sign where something is missing."""
    return text if len(text) <= most else text[: max(0, most - len(CUT))] + CUT


def _strip_end(text: str, mark: str) -> tuple[str, bool]:
    if text == mark:
        return "", True
    return (text[: -len(mark) - 1], True) if text.endswith(f" {mark}") else (text, False)


def _strip_start(text: str, mark: str) -> tuple[str, bool]:
    if text == mark:
        return "", True
    return (text[len(mark) + 1 :], True) if text.startswith(f"{mark} ") else (text, False)


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise Unparsable(f"the reward is {text[:20]!r}, no finite number")
    return value
