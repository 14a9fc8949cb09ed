"""A domain: what logs say about the form of an agent's world, and the one place where that form is put into code.

Logs, dream and deployment must agree on how an action is read, how a task is posed and how a reply is shown; else an
agent learns a syntax that its real environment does not take. So all three go through here:

    call_text        the canonical text of a tool call
    Domain.parse     what an agent wrote -> actions
    Domain.prompt    an instruction -> the first observation
    Domain.answer    a reply -> the message that the agent is shown

`Domain.fingerprint` hashes the version of the parser, the template, the tools' schemas, the ending and the flags; a run
that was trained under one fingerprint is not to be deployed under another.

What a domain cannot know from logs it does not make up: a kind of error that was never recorded has a sentence of ours
and says so (`ErrorForm.recorded`).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rlready.dream.base import Action, Reply
from rlready.envs.tools import SYSTEM
from rlready.experience.episode import LoggedEpisode
from rlready.toolcalls import CLOSE, OPEN, parse_calls, without_thoughts
from rlready.types import Message

PARSER = 1
"""Version of `parse`; a change of what it reads is a new version, and so a new fingerprint."""

SPEAKING = """You can call tools. To call one, write
<tool_call>{"name": "...", "arguments": {...}}</tool_call>
and wait for its result. What you write without a tool call is said to the user. The tools:
{tools}"""
"""As `envs.tools.SYSTEM`, for domains where plain words do not end the episode."""

KINDS = ("malformed", "unknown_tool", "missing_argument", "unknown_argument", "wrong_type", "inadmissible")

DEFAULTS = {
    "malformed": "Error: $problem",
    "unknown_tool": 'Error: there is no tool "$tool". The tools are: $tools.',
    "missing_argument": 'Error: $tool needs the argument "$argument".',
    "unknown_argument": 'Error: $tool has no argument "$argument"; it takes $arguments.',
    "wrong_type": 'Error: "$argument" must be $wanted, not $value.',
    "inadmissible": "Error: $value is not possible here.",
}
"""Our own sentences, in the words of `ToolEnv`, for kinds of error that the logs do not show."""

_SLOT = re.compile(r"\$(\$|tools|tool|arguments|argument|value|problem|wanted)")
_plain = json.JSONEncoder(ensure_ascii=False, sort_keys=True).encode
_strict = json.JSONEncoder(ensure_ascii=False, sort_keys=True, allow_nan=False).encode


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """The canonical text of a tool call: `toolcalls.render_call` with the keys sorted at every level.

    Tags of thoughts inside a text are written with an escape, so that the parser reads back what was meant.
    """
    return _call_text(name, _plain(arguments if isinstance(arguments, dict) else dict(arguments)))


def _call_text(name: str, body: str) -> str:
    return _tagless(f'{OPEN}{{"name": {_plain(name)}, "arguments": {body}}}{CLOSE}')


def _tagless(text: str) -> str:
    """A call's text in which no tag of a thought stands, so that reading it again reads the same."""
    if "think>" in text:
        text = text.replace("<think>", "\\u003cthink>").replace("</think>", "\\u003c/think>")
    return text


def parse(text: str) -> tuple[Action, ...]:
    """What an agent wrote, as actions.

    One action for every tool call, malformed ones included (with `problem`, their text as written); where there is no
    call, one action of plain words. Thoughts (`<think>...</think>`) and words beside a call are no actions.
    """
    calls = parse_calls(text)
    if not calls:
        return (Action(without_thoughts(text).strip()),)
    out = []
    for call in calls:
        if call.arguments is None:
            out.append(Action(_tagless(call.written.strip()), call.name, None, call.problem))
            continue
        try:
            out.append(Action(_call_text(call.name, _strict(call.arguments)), call.name, call.arguments))
        except (ValueError, RecursionError):
            problem = "The tool call holds a number that JSON has no form for, or is nested too deeply."
            out.append(Action(_tagless(call.written.strip()), call.name, None, problem))
    return tuple(out)


def is_call(action: Action) -> bool:
    """Whether an action is a tool call, a malformed one included."""
    return bool(action.tool or action.problem)


def head_of(words: str) -> str:
    """What kind of plain action a text is: "click[" for "click[Buy now]", the text itself where there is no bracket."""
    found = re.match(r"[^\[(]{0,60}?[\[(]", words)
    return found.group() if found else words


@dataclass(frozen=True)
class ToolSpec:
    """One tool.

    Attributes:
        name: as it is called.
        parameters: JSON schema of the arguments.
        description: from the log; "" where it holds none.
        given: whether the schema stood in the log (or was passed), rather than being learned from calls.
        calls: recorded calls, failed ones included.
        open: arguments that the schema does not list are accepted (recorded calls had some, or were too few to tell).
        lenient: arguments in which recorded calls broke a given schema without failing; they are not checked.
    """

    name: str
    parameters: Mapping[str, Any]
    description: str = ""
    given: bool = False
    calls: int = 0
    open: bool = False
    lenient: tuple[str, ...] = ()

    def schema(self) -> dict[str, Any]:
        """As models are shown it: `{"name", "description", "parameters"}`."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}


@dataclass(frozen=True)
class Ending:
    """How episodes end.

    Attributes:
        words_close: plain words end an episode.
        tools: tools whose call ends it.
        marks: texts in a reply that end it.
        heads: kinds of plain actions (see `head_of`) that end it, such as "answer[".
        cap: number of actions after which an episode is cut: where recorded ones were, or half as many again as the
            longest that came to its end.
    """

    words_close: bool = False
    tools: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    cap: int = 30


@dataclass(frozen=True)
class ErrorForm:
    """How one kind of error is worded.

    Attributes:
        text: with the slots $tool, $tools, $argument, $arguments, $value, $wanted, $problem; "$$" is a dollar sign.
        recorded: whether the wording comes from the logs.
        count: how many recorded errors of the kind are worded so.
    """

    text: str
    recorded: bool = False
    count: int = 0

    def fill(self, **slots: str) -> str:
        """The sentence with its slots filled; a slot without a value stays empty."""
        return _SLOT.sub(lambda m: "$" if m.group(1) == "$" else slots.get(m.group(1), ""), self.text)


def _default_errors() -> dict[str, ErrorForm]:
    return {kind: ErrorForm(text) for kind, text in DEFAULTS.items()}


@dataclass(frozen=True)
class Domain:
    """The form of an agent's world.

    Attributes:
        rules: the system prompt that all runs share; "" where there is none.
        tools: by name, in the order of the log.
        says: plain words are an action after which the episode goes on (what is said to a user, a text command).
        actions: all recorded action texts, failed ones included, where they are few and no new ones turned up; None
            elsewhere. Only then may decoding be limited to them.
        ending: how episodes end.
        errors: how each kind of error in `KINDS` is worded.
        step_rewards: whether the logs state a reward for each step.
        structured: share of the replies that are JSON objects or lists, in [0, 1].
    """

    rules: str = ""
    tools: Mapping[str, ToolSpec] = field(default_factory=dict)
    says: bool = True
    actions: tuple[str, ...] | None = None
    ending: Ending = field(default_factory=Ending)
    errors: Mapping[str, ErrorForm] = field(default_factory=_default_errors)
    step_rewards: bool = False
    structured: float = 0.0

    @classmethod
    def learn(
        cls, episodes: Sequence[LoggedEpisode], *, rules: str = "", tools: Sequence[Mapping[str, Any]] = ()
    ) -> Domain:
        """What the logs say.

        Args:
            episodes: of the training split; their action texts are canonical (`call_text`).
            rules: the system prompt that all runs share.
            tools: schemas from the log, `{"name", "description", "parameters"}`, also inside `{"function": ...}`.

        Raises:
            UserError: a schema has no name, or no recording is given.
        """
        from rlready.dream.domain_learn import learn  # it builds on this module

        return learn(episodes, rules=rules, tools=tools)

    def parse(self, text: str) -> tuple[Action, ...]:
        """What an agent wrote, as actions; the one parser (see `parse`).

        Where the logs know no tools the whole text, thoughts left out, is one action.
        """
        if not self.tools:
            return (Action(without_thoughts(text).strip()),)
        return parse(text)

    def prompt(self, instruction: str) -> tuple[Message, ...]:
        """The first observation: rules and tools as the system message, then what the agent is asked."""
        system = self.system
        first = (Message("system", system),) if system else ()
        return (*first, Message.user(instruction))

    @property
    def template(self) -> str:
        """The form of the tools' part of the system message; "" where there are no tools."""
        if not self.tools:
            return ""
        return SPEAKING if self.says else SYSTEM

    @property
    def system(self) -> str:
        """The system message: the rules, then the tools as `ToolEnv` shows them; "" where there is neither."""
        tools = "\n".join(json.dumps(tool.schema(), ensure_ascii=False) for tool in self.tools.values())
        return "\n\n".join(part for part in (self.rules, self.template.replace("{tools}", tools)) if part)

    def answer(self, action: Action, reply: Reply, number: int, index: int = 0) -> Message:
        """A reply as the agent is shown it.

        Args:
            action: what it answers.
            reply: the answer.
            number: of the agent's message in the episode, from 1.
            index: of the call in that message, from 0.
        """
        if self.tools and is_call(action):
            return Message("tool", reply.text, tool_call_id=f"call_{number}_{index}")
        return Message.user(reply.text)

    def closes(self, action: Action, reply: Reply | None = None) -> bool:
        """Whether an action, or the reply to it, ends the episode. An action that failed ends nothing by itself."""
        if reply is not None:
            if reply.done or any(mark in reply.text for mark in self.ending.marks):
                return True
            if reply.failed:
                return False
        if is_call(action):
            return action.tool in self.ending.tools and not action.problem
        return self.ending.words_close or (bool(self.ending.heads) and head_of(action.text) in self.ending.heads)

    def finishes(self, episode: LoggedEpisode) -> bool:
        """Whether a recorded run came to an end: the log says so, or its last action or reply closes episodes."""
        if episode.finished or not len(episode):
            return episode.finished
        last = len(episode) - 1
        (action, *more) = self.parse(episode.actions[last])
        return not more and self.closes(action, Reply(episode.replies[last], last in episode.errors))

    @property
    def fingerprint(self) -> str:
        """16 hex digits that change with the parser, the template, the rules, the tools, the ending or a flag."""
        seen = {
            "parser": PARSER,
            "template": self.template,
            "rules": self.rules,
            "tools": [tool.schema() for tool in self.tools.values()],
            "ending": asdict(self.ending),
            "says": self.says,
            "actions": self.actions,
            "step_rewards": self.step_rewards,
        }
        return hashlib.blake2b(json.dumps(seen, sort_keys=True).encode(), digest_size=8).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """As a JSON-ready mapping."""
        return {
            "rules": self.rules,
            "tools": [asdict(tool) for tool in self.tools.values()],
            "says": self.says,
            "actions": None if self.actions is None else list(self.actions),
            "ending": asdict(self.ending),
            "errors": {kind: asdict(form) for kind, form in self.errors.items()},
            "step_rewards": self.step_rewards,
            "structured": self.structured,
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Domain:
        """Inverse of `to_json`."""
        kw = dict(record)
        kw["tools"] = {
            tool["name"]: ToolSpec(**{**tool, "lenient": tuple(tool["lenient"])}) for tool in record["tools"]
        }
        kw["actions"] = None if record["actions"] is None else tuple(record["actions"])
        ending = record["ending"]
        lists = {name: tuple(ending[name]) for name in ("tools", "marks", "heads")}
        kw["ending"] = Ending(**{**ending, **lists})
        kw["errors"] = {kind: ErrorForm(**form) for kind, form in record["errors"].items()}
        return cls(**kw)


def cap_for(longest: int) -> int:
    """The cap on actions for a longest finished episode: one and a half times its length (ours), at least 1."""
    return max(1, math.ceil(1.5 * longest))
