"""The roles a large language model can play around a dream, their prompts, and one strict reader of what it writes.

    simulator   what happens next                 annotator   why it happened (the teacher of reasoning traces)
    world       what was so at the start          mapper      raw observation to abstract state
    taskgen     a new task and its first state    judge       quality of a predicted state

A template is a text file with `$field` marks; a domain's own version is loaded from its folder and must name every
required field. The reader accepts exactly the tags that were asked for, in order, and nothing around them: one parser
for training, dreaming and judging, since a lenient one hides format faults.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence
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
        ("rules", "demonstrations", "instruction", "history", "state", "action"),
        ("think", "next_state", "reward", "done"),
    ),
    "annotator": Role(("instruction", "history", "state", "action", "next_state", "reward", "vocabulary"), ("think",)),
    "world": Role(("instruction", "trajectory", "outcome", "vocabulary"), ("card",)),
    "mapper": Role(("instruction", "observation"), ("state",)),
    "taskgen": Role(("seeds", "rules", "examples"), ("instruction", "state")),
    "judge": Role(("trajectory", "step", "predicted"), tuple(t for a in ASPECTS for t in (f"{a}_reason", a))),
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


def read_tags(text: str, tags: Sequence[str]) -> dict[str, str]:
    """Contents of `<a>...</a><b>...</b>`, which must be all there is.

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
        out[tag] = body.strip()
        rest = rest.lstrip()
    if rest:
        raise Unparsable(f"text after the last tag: {rest[:40]!r}")
    return out


@dataclass(frozen=True, slots=True)
class Simulation:
    """One simulated transition."""

    think: str
    next_state: str
    reward: int
    done: bool


def read_simulation(text: str) -> Simulation:
    """The simulator's answer.

    Raises:
        Unparsable: the tags are wrong, the next state is empty, reward or done is not 0 or 1, or a reward is paid
            while the episode goes on.
    """
    tags = read_tags(text, ROLES["simulator"].tags)
    for name in ("reward", "done"):
        if tags[name] not in ("0", "1"):
            raise Unparsable(f"<{name}> holds {tags[name]!r}, not 0 or 1")
    if not tags["next_state"]:
        raise Unparsable("<next_state> is empty")
    if tags["reward"] == "1" and tags["done"] == "0":
        raise Unparsable("a reward is paid, but the episode goes on")
    return Simulation(tags["think"], tags["next_state"], int(tags["reward"]), tags["done"] == "1")


def read_scores(text: str) -> dict[str, int]:
    """The judge's four scores, each 0, 1 or 2.

    Raises:
        Unparsable: the tags are wrong, a score is another value, or a reason is missing.
    """
    tags = read_tags(text, ROLES["judge"].tags)
    for aspect in ASPECTS:
        if tags[aspect] not in ("0", "1", "2"):
            raise Unparsable(f"<{aspect}> holds {tags[aspect]!r}, not 0, 1 or 2")
        if not tags[f"{aspect}_reason"]:
            raise Unparsable(f"<{aspect}_reason> is empty")
    return {aspect: int(tags[aspect]) for aspect in ASPECTS}
