"""The roles a large language model can play around a dream, their prompts, and one strict reader of what it writes.

    simulator   what comes back                   annotator   why it happened (the teacher of reasoning traces)
    judge       whether the task was achieved     world       what was so at the start
    taskgen     a new task and its first state    mapper      raw observation to abstract state
    quality     of a predicted state

A template is a text file with `$field` marks; a domain's own version is loaded from its folder and must name every
required field. The reader accepts exactly the tags that were asked for, in order, and nothing around them: one parser
for training, dreaming and judging, since a lenient one hides format faults.
"""

from __future__ import annotations

import re
import string
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from rlready.dream.format import Unparsable
from rlready.errors import UserError, did_you_mean

ASPECTS = ("consistency", "diversity", "informativeness", "hallucination")


@dataclass(frozen=True, slots=True)
class Role:
    """What a prompt must be given, and the tags that the answer must consist of."""

    fields: tuple[str, ...]
    tags: tuple[str, ...]


ROLES: Mapping[str, Role] = {
    "simulator": Role(
        ("task", "rules", "states", "effects", "world", "tools", "errors", "demonstrations", "output"),
        ("reply", "failed", "done", "confidence"),
    ),
    "judge": Role(("task", "rules", "criteria", "world", "transcript"), ("verdict", "confidence")),
    "annotator": Role(("instruction", "history", "state", "action", "next_state", "reward", "vocabulary"), ("think",)),
    "world": Role(("instruction", "trajectory", "outcome", "vocabulary"), ("card",)),
    "mapper": Role(("instruction", "observation"), ("state",)),
    "taskgen": Role(("seeds", "rules", "examples"), ("instruction", "state")),
    "quality": Role(("trajectory", "step", "predicted"), tuple(t for a in ASPECTS for t in (f"{a}_reason", a))),
}


@dataclass(frozen=True)
class Template:
    """A role's prompt."""

    role: str
    text: str

    def __post_init__(self) -> None:
        """Check the marks against the role.

        Raises:
            UserError: the role is unknown, or the text misses a required field or names another.
        """
        if self.role not in ROLES:
            raise did_you_mean("role", self.role, ROLES)
        named = set(string.Template(self.text).get_identifiers())
        wanted = set(ROLES[self.role].fields)
        if named != wanted:
            missing, odd = sorted(wanted - named), sorted(named - wanted)
            raise UserError(
                f"The template of the role {self.role} must name exactly the fields {sorted(wanted)}: "
                f"it misses {missing} and has {odd} too many."
            )

    @classmethod
    def load(cls, role: str, folder: str | Path | None = None) -> Template:
        """A role's template: the domain's own from `<folder>/<role>.md`, else the one that comes with rlready."""
        if role not in ROLES:
            raise did_you_mean("role", role, ROLES)
        if folder is not None:
            path = Path(folder) / f"{role}.md"
            try:
                return cls(role, path.read_text(encoding="utf-8"))
            except FileNotFoundError as error:
                raise UserError(f"There is no template {path}; write one, or leave the folder out.") from error
        return cls(role, (files("rlready.dream") / "templates" / f"{role}.md").read_text(encoding="utf-8"))

    def render(self, **fields: str) -> str:
        """The prompt. Values are inserted as they are; a `$` in them is nothing special.

        Raises:
            ValueError: a required field is missing or unknown.
        """
        if set(fields) != set(ROLES[self.role].fields):
            raise ValueError(f"{self.role} needs the fields {ROLES[self.role].fields}, not {tuple(fields)}.")
        return string.Template(self.text).substitute(fields)

    def read(self, text: str) -> dict[str, str]:
        """The tags of an answer.

        Raises:
            Unparsable: the answer is not exactly the role's tags in order.
        """
        return read_tags(text, ROLES[self.role].tags)


def read_tags(text: str, tags: Sequence[str], *, verbatim: Collection[str] = ()) -> dict[str, str]:
    """Contents of `<a>...</a><b>...</b>`, which must be all there is.

    Args:
        text: the answer.
        tags: in their order.
        verbatim: tags whose content keeps its blank space, but for one line break at each end.

    Raises:
        Unparsable: a tag is missing, repeated, out of order, or there is other text around them.
    """
    out: dict[str, str] = {}
    rest = text.strip()
    for tag in tags:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if not rest.startswith(opening):
            raise Unparsable(f"expected {opening}, found {rest[:40]!r}")
        body, found, rest = rest[len(opening) :].partition(closing)
        if not found:
            raise Unparsable(f"{opening} is not closed")
        if re.search("|".join(f"</?{t}>" for t in tags), body):
            raise Unparsable(f"a tag stands inside {opening}")
        out[tag] = body.removeprefix("\n").removesuffix("\n") if tag in verbatim else body.strip()
        rest = rest.lstrip()
    if rest:
        raise Unparsable(f"text after the last tag: {rest[:40]!r}")
    return out


@dataclass(frozen=True, slots=True)
class Said:
    """What a simulator wrote.

    Attributes:
        text: of the reply.
        failed: it is an error message.
        done: the episode ends.
        confidence: in [0, 1].
        reward: of the step; None where none is asked for.
    """

    text: str
    failed: bool
    done: bool
    confidence: float
    reward: float | None = None


def simulator_tags(step_rewards: bool) -> tuple[str, ...]:
    """The tags of a simulator's answer, in their order."""
    tags = ROLES["simulator"].tags
    return (*tags[:-1], "reward", tags[-1]) if step_rewards else tags


def read_simulation(text: str, *, step_rewards: bool = False) -> Said:
    """The simulator's answer.

    Args:
        text: what it wrote.
        step_rewards: a reward is asked for.

    Raises:
        Unparsable: the tags are wrong, or a tag holds something else than it should.
    """
    tags = read_tags(text, simulator_tags(step_rewards), verbatim=("reply",))
    flags = [_choice(tags, name, ("yes", "no")) == "yes" for name in ("failed", "done")]
    reward = _number(tags, "reward") if step_rewards else None
    return Said(tags["reply"], flags[0], flags[1], _confidence(tags), reward)


def read_verdict(text: str) -> float:
    """The judge's answer, as the probability that the task was achieved.

    Raises:
        Unparsable: the tags are wrong, or a tag holds something else than it should.
    """
    tags = read_tags(text, ROLES["judge"].tags)
    right = _choice(tags, "verdict", ("right", "wrong")) == "right"
    confidence = _confidence(tags)
    return confidence if right else 1.0 - confidence


def _choice(tags: Mapping[str, str], name: str, known: tuple[str, str]) -> str:
    if tags[name] not in known:
        raise Unparsable(f"<{name}> holds {tags[name][:40]!r}, not {known[0]} or {known[1]}")
    return tags[name]


def _number(tags: Mapping[str, str], name: str) -> float:
    text = tags[name]
    if not re.fullmatch(r"[+-]?\d{1,12}(\.\d{1,12})?", text):
        raise Unparsable(f"<{name}> holds {text[:40]!r}, which is no number")
    return float(text)


def _confidence(tags: Mapping[str, str]) -> float:
    value = _number(tags, "confidence")
    if not 0 <= value <= 100:
        raise Unparsable(f"<confidence> holds {value:g}, which is not between 0 and 100")
    return value / 100


def read_scores(text: str) -> dict[str, int]:
    """The four scores of a predicted state's quality, each 0, 1 or 2.

    Raises:
        Unparsable: the tags are wrong, a score is another value, or a reason is missing.
    """
    tags = read_tags(text, ROLES["quality"].tags)
    for aspect in ASPECTS:
        if tags[aspect] not in ("0", "1", "2"):
            raise Unparsable(f"<{aspect}> holds {tags[aspect]!r}, not 0, 1 or 2")
        if not tags[f"{aspect}_reason"]:
            raise Unparsable(f"<{aspect}_reason> is empty")
    return {aspect: int(tags[aspect]) for aspect in ASPECTS}
