r"""The form of a reasoned answer: thoughts between tags, then the answer, boxed or as a block of code.

    <think> thoughts </think> text with \boxed{answer}

Models of one family have changed their tags between releases, and every tool that had them built in broke. So the tags
are one object, `ThinkFormat`, that the prompt's template (`instruction`, `write`), the parser (`read`) and the reward
(`think_format`) share.

The gate is that of Magistral (arXiv 2506.10910): the answer starts with the opening tag, holds exactly one pair of
tags, and after the closing tag a box, or a fenced block of code with its language. Ours: the box must hold something.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from rlready.errors import UserError
from rlready.rewards.answers import boxed
from rlready.scoring import RewardFn, answer_text, declare
from rlready.types import Score, Task, Trajectory, Verdict

Kind = Literal["boxed", "code", "any"]
KINDS: tuple[Kind, ...] = ("boxed", "code", "any")
_FENCE = re.compile(r"^```[ \t]*([A-Za-z][\w+#.-]*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Reasoned:
    """A completion, taken apart.

    Attributes:
        thoughts: between the tags; empty where the form is broken.
        visible: what stands after the closing tag; the whole text where the form is broken.
        answer: what is in the last box, or in the first block of code; with "any" all that is visible.
        fault: in words what is wrong with the form; empty where nothing is.
    """

    thoughts: str
    visible: str
    answer: str
    fault: str = ""


@dataclass(frozen=True)
class ThinkFormat:
    r"""The form of answers.

    Attributes:
        open, close: the tags around the thoughts.
        answer: what must stand after them: a `\boxed{...}`, a fenced block of code with its language, or anything.
        opened: whether the prompt's template already wrote the opening tag, so that completions start behind it.
    """

    open: str = "<think>"
    close: str = "</think>"
    answer: Kind = "boxed"
    opened: bool = False

    def __post_init__(self) -> None:
        """Check the tags.

        Raises:
            UserError: a tag is empty or is part of the other, or the kind of answer is unknown.
        """
        if not self.open.strip() or not self.close.strip() or self.open in self.close or self.close in self.open:
            raise UserError(
                f'ThinkFormat: the tags "{self.open}" and "{self.close}" must be two texts, neither within the other.'
            )
        if self.answer not in KINDS:
            raise UserError(f'ThinkFormat: answer="{self.answer}" is unknown; choose one of {", ".join(KINDS)}.')

    def instruction(self) -> str:
        """A sentence for the system prompt that asks for this form, and for the user's language."""
        then = {
            "boxed": r"give the answer in \boxed{}",
            "code": "give the answer as one fenced code block that names its language",
            "any": "give the answer",
        }[self.answer]
        return f"Think between {self.open} and {self.close}, then {then}. Think and answer in the user's language."

    def write(self, thoughts: str, visible: str) -> str:
        """A completion of this form, such as a demonstration: tags, thoughts and what follows, joined by blanks."""
        head = "" if self.opened else f"{self.open} "
        return f"{head}{thoughts} {self.close} {visible}"

    def read(self, text: str) -> Reasoned:
        """Take a completion apart; blank space before the opening tag is let pass."""
        fault = self._fault(text)
        if fault:
            return Reasoned("", text, "", fault)
        head, _, visible = text.partition(self.close)
        thoughts = head if self.opened else head.partition(self.open)[2]
        answer = self._answer(visible)
        if answer is None:
            wanted = "box" if self.answer == "boxed" else "block of code with its language"
            return Reasoned("", text, "", f"there is no {wanted} after {self.close}")
        if not answer.strip():
            return Reasoned("", text, "", "the answer is empty")
        return Reasoned(thoughts.strip(), visible.strip(), answer.strip())

    def _fault(self, text: str) -> str:
        if not self.opened and not text.lstrip().startswith(self.open):
            return f"it does not start with {self.open}"
        opens, closes = text.count(self.open), text.count(self.close)
        if opens != (not self.opened) or closes != 1:
            return f"there are {opens} {self.open} and {closes} {self.close}"
        return ""

    def _answer(self, visible: str) -> str | None:
        if self.answer == "boxed":
            return boxed(visible)
        if self.answer == "code":
            found = _FENCE.search(visible)
            return None if found is None else found.group(2)
        return visible


def think_format(form: ThinkFormat | None = None) -> RewardFn:
    """A reward of 1 where the completion has the form, else 0 and no answer.

    Made to be the gate that stops all other grading: `compose({"format": (0.1, think_format(form)), ...},
    stops=["format"])`. The note of a score of 0 says what is wrong.
    """
    form = form or ThinkFormat()

    def think_format(task: Task, trajectory: Trajectory) -> Score:
        fault = form.read(answer_text(trajectory)).fault
        return Score.right() if not fault else Score(0.0, Verdict.NO_ANSWER, note=fault)

    return declare(think_format, name="think_format")


def answer_of(form: ThinkFormat, trajectory: Trajectory) -> str:
    """The answer in a trajectory's last turn that is no probe; empty where the form is broken."""
    return form.read(answer_text(trajectory)).answer
