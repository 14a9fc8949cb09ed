"""A simulator that is prompted: any language model behind an OpenAI-compatible endpoint.

One template file per role (`dream/templates/simulator.md`, `judge.md`, or the domain's own) makes the system message;
its slots are filled from the domain and the logs (`simulators.slots`). Real turns stay chat turns: the numbered action
is the user's, the reply the assistant's. Before the action that is to be answered stand the nearest recorded ones.

Answers are read strictly: `<reply>`, `<failed>`, `<done>` and `<confidence>`, in this order and nothing else (a leading
`<think>` of models that reason aloud is taken off). The confidence comes after the reply: a model that must commit
itself first says more than it knows. What cannot be read is sent back once with the reason.

Decoding is greedy and a seed is sent along, but few providers give the same answer twice. So every answer is remembered
by its exact request, in the process or on disk: the same actions give the same episode, as long as the memory lives.
The gate's test of determinism checks it; without a file, a new process may dream another world.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from rlready.dream.base import Action, Moment, Reply
from rlready.dream.format import Unparsable
from rlready.dream.library import Library, Steps
from rlready.dream.roles import Template, read_simulation, read_verdict, simulator_tags
from rlready.dream.simulators import slots
from rlready.dream.simulators.layout import cut, world_and_deeds
from rlready.dream.simulators.retrieval import Retrieval
from rlready.endpoint import Endpoint, Prices, Talker
from rlready.errors import UserError, did_you_mean
from rlready.remembered import Answers
from rlready.seeds import derive
from rlready.toolcalls import without_thoughts
from rlready.types import Message

if TYPE_CHECKING:
    from rlready.dream.domain import Domain

T = TypeVar("T")

SETTINGS = "endpoint.json"
CRITERIA = "criteria.json"
MEMORY = "answers.sqlite"
KEY, OPENAI_KEY = "RLREADY_ENDPOINT_KEY", "OPENAI_API_KEY"
NO_CRITERIA = "(none were fixed beforehand: what was asked must be achieved within the rules)"


class EndpointSimulator:
    """Replies and verdicts of a prompted language model.

    Attributes:
        endpoint: the model.
        templates: by role, "simulator" and "judge".
        library: the recordings.
        domain: their form.
        name: as a user writes it.
        demos: recorded transitions that are shown before the action.
        criteria: what counts as success, by task, fixed beforehand.
        demo_chars, reply_chars, world_chars, history_chars: caps on what is shown of one demonstration, of one earlier
            reply, of the world's facts, and of the conversation (the oldest turns are left out).
        exclude_own: whether recordings of the moment's own task are left out, as measuring does.
        resampled: answers that could not be read at first.
    """

    def __init__(
        self,
        endpoint: Talker,
        templates: Mapping[str, Template],
        library: Library,
        domain: Domain,
        *,
        name: str = "",
        demos: int = 5,
        criteria: Mapping[str, str] | None = None,
        demo_chars: int = 2000,
        reply_chars: int = 4000,
        world_chars: int = 12000,
        history_chars: int = 60000,
        exclude_own: bool = False,
    ) -> None:
        """Put the parts together; roles that `templates` misses have rlready's own."""
        self.endpoint = endpoint
        if isinstance(endpoint, Endpoint):
            name = name or f"{endpoint.base_url}#{endpoint.model}"
            if endpoint.answers is None:
                endpoint.answers = Answers()
        self.templates = {role: templates.get(role) or Template.load(role) for role in ("simulator", "judge")}
        self.library, self.domain, self.name = library, domain, name
        self.demos = demos
        self.criteria = dict(criteria or {})
        self.demo_chars, self.reply_chars = demo_chars, reply_chars
        self.world_chars, self.history_chars = world_chars, history_chars
        self.exclude_own = exclude_own
        self.resampled = 0

    # ------------------------------------------------------------------ the simulator

    async def reply(self, moment: Moment, action: Action) -> Reply:
        """What the model says comes back; the confidence is the one it states, raw.

        Raises:
            Unparsable: it could not be read, twice.
            UserError: the endpoint failed, or the budget is spent.
        """

        def read(text: str) -> Reply:
            said = read_simulation(text, step_rewards=self.domain.step_rewards)
            return Reply(said.text, said.failed, said.done, said.reward, "model", said.confidence)

        return await self._asked(self.conversation(moment, action), read, moment.noise("reply", action.text))

    async def judge(self, moment: Moment) -> float:
        """Probability that the finished episode achieved its task, as the model states it.

        Raises:
            Unparsable: it could not be read, twice.
            UserError: the endpoint failed, or the budget is spent.
        """
        return await self._asked(self.question(moment), read_verdict, moment.noise("judge"))

    def release(self, world: int) -> None:
        """Nothing is forgotten: other members of the group may still ask the same."""

    async def learn(self, library: Library, ids: Sequence[str], *, seed: int = 0) -> dict[str, float]:
        """Take a library that has grown: new recordings are shown as demonstrations. Nothing is trained."""
        self._take(library)
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Nothing is learned but what the library holds."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any], library: Library) -> None:
        """Take the library that had grown."""
        self._take(library)

    async def close(self) -> None:
        """Close the connections."""
        if isinstance(self.endpoint, Endpoint):
            await self.endpoint.close()

    async def _asked(self, messages: Sequence[Message], read: Callable[[str], T], seed: int) -> T:
        """The answer as it is read; one that cannot be read is sent back once."""
        text = await self.endpoint.chat(messages, seed=seed)
        try:
            return read(_answer(text))
        except Unparsable as error:
            self.resampled += 1
            again = f"This could not be read ({error}). Give the same answer again, in exactly the form asked for."
            tried = [*messages, Message("assistant", text), Message.user(again)]
        return read(_answer(await self.endpoint.chat(tried, seed=derive("again", seed))))

    # ------------------------------------------------------------------ what it is shown

    def conversation(self, moment: Moment, action: Action) -> list[Message]:
        """The messages up to where the reply to an action is to be written."""
        system = self.templates["simulator"].render(
            task=moment.instruction, world=slots.facts(self._known(moment), self.world_chars), **self._fixed
        )
        turns: list[Message] = []
        used = 0
        for number in range(len(moment.past), 0, -1):
            done, back = moment.past[number - 1]
            pair = [Message.user(f"[{number}] {done.text}"), Message("assistant", self.write(back, self.reply_chars))]
            used += sum(len(m.text) for m in pair)
            if used > self.history_chars:
                turns.insert(0, Message.user(f"[1] to [{number}] are left out here; what they settled still holds."))
                turns.insert(1, Message("assistant", self.write(Reply(""))))
                break
            turns[:0] = pair
        near = self._near(moment, action)
        asked = "\n\n".join([*near, f"[{len(moment.past) + 1}] {action.text}"])
        form = "".join(f"<{tag}></{tag}>" for tag in self._tags)
        return [Message("system", system), *turns, Message.user(f"{asked}\n\n(Write {form}.)")]

    def question(self, moment: Moment) -> list[Message]:
        """The judge's question about a finished episode."""
        reads = self.library.state.reads
        facts, deeds = world_and_deeds(moment.facts or self._known(moment), moment.past, reads)
        lines = [f"[{i}] {a.text}\n{self.write(r, self.reply_chars)}" for i, (a, r) in enumerate(deeds, 1)]
        text = self.templates["judge"].render(
            task=moment.instruction,
            rules=self.domain.rules or "(none given)",
            criteria=self.criteria.get(moment.task_id, NO_CRITERIA),
            world=slots.facts(facts, self.world_chars),
            transcript="\n\n".join(lines) or "(nothing)",
        )
        return [Message.user(text)]

    def write(self, reply: Reply, chars: int | None = None) -> str:
        """A reply in the form of an answer, without a confidence: nobody stated one."""
        text = reply.text if chars is None else cut(reply.text, chars)
        held = {
            "reply": text,
            "failed": "yes" if reply.failed else "no",
            "done": "yes" if reply.done else "no",
            "reward": f"{reply.reward or 0.0:g}",
        }
        return "".join(f"<{tag}>{held[tag]}</{tag}>" for tag in self._tags if tag in held)

    def _known(self, moment: Moment) -> Steps:
        """What recordings say of the moment's hidden world."""
        if self.exclude_own or moment.anchor not in self.library.episodes:
            return ()
        return self.library.world_facts(moment.anchor)

    def _near(self, moment: Moment, action: Action) -> list[str]:
        found = self._retrieval.nearest(moment, action, self.demos) if self.demos else []
        shown = ((f.action.text, slots.shortened(replace(f.reply, text=f.text), self.demo_chars)) for f in found)
        return [slots.like(text, self.write(reply)) for text, reply in shown]

    @property
    def _tags(self) -> tuple[str, ...]:
        return simulator_tags(self.domain.step_rewards)

    @cached_property
    def _retrieval(self) -> Retrieval:
        return Retrieval(self.library, k=max(1, self.demos), exclude_own=self.exclude_own)

    @cached_property
    def _fixed(self) -> dict[str, str]:
        """The slots that are the same for all moments."""
        domain, library = self.domain, self.library
        return {
            "rules": domain.rules or "(none given)",
            "states": slots.states(domain, library),
            "effects": slots.effects(domain, library),
            "tools": slots.tools(domain),
            "errors": slots.errors(domain, library),
            "demonstrations": slots.samples(library, self.write),
            "output": slots.output(self._tags),
        }

    def _take(self, library: Library) -> None:
        self.library = library
        for name in ("_retrieval", "_fixed"):
            self.__dict__.pop(name, None)


def load_endpoint(spec: str, folder: str | Path, library: Library, domain: Domain) -> EndpointSimulator:
    """The simulator of a gym's folder.

    The folder may hold `templates/simulator.md`, `templates/judge.md`, `templates/criteria.json` (task id to what
    counts as success) and `endpoint.json` with fields of `Endpoint` ("prices" as [prompt, completion] per million
    tokens) and of `EndpointSimulator`. Answers are remembered in `answers.sqlite` beside them. A key is taken from the
    environment: `RLREADY_ENDPOINT_KEY`, or `OPENAI_API_KEY` for the address it belongs to.

    Args:
        spec: "http(s)://ADDRESS#MODEL".
        folder: the gym's.
        library: the recordings.
        domain: their form.

    Raises:
        UserError: no model is named, a file in the folder is damaged, or a setting is unknown.
    """
    base, _, model = spec.partition("#")
    if not model:
        raise UserError(f"The simulator {spec} names no model. Write URL#MODEL, such as {spec.rstrip('/')}#my-model.")
    folder = Path(folder)
    own = folder / "templates"
    templates = {role: Template.load(role, own) for role in ("simulator", "judge") if (own / f"{role}.md").is_file()}
    settings = _object(folder / SETTINGS)
    asked = {name: settings.pop(name) for name in _OURS if name in settings}
    for name in settings:
        if name not in _THEIRS:
            raise did_you_mean(f"setting in {folder / SETTINGS}:", name, (*_OURS, *_THEIRS))
    if settings.get("prices") is not None:
        try:
            settings["prices"] = Prices(*map(float, settings["prices"]))
        except (TypeError, ValueError) as error:
            raise UserError(
                f'{folder / SETTINGS}: "prices" is a list of two numbers, what a million tokens cost to read and to '
                "write."
            ) from error
    host = urlsplit(base).hostname or ""
    own_key = OPENAI_KEY if host == "api.openai.com" and os.environ.get(OPENAI_KEY) else None
    settings.setdefault("key_variable", KEY if os.environ.get(KEY) else own_key)
    endpoint = Endpoint(base, model, answers=Answers(folder / MEMORY), **settings)
    return EndpointSimulator(endpoint, templates, library, domain, name=spec, criteria=_object(own / CRITERIA), **asked)


_OURS = ("demos", "demo_chars", "reply_chars", "world_chars", "history_chars")
_THEIRS = (
    "key_variable", "temperature", "max_tokens", "extra", "concurrency", "tries", "pause", "longest_pause", "timeout",
    "prices", "budget",
)  # fmt: skip


def _object(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty where there is none."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not valid JSON ({error}).") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} must hold a JSON object, not {type(value).__name__}.")
    return value


def _answer(text: str) -> str:
    """An answer without the thoughts that some models write before it."""
    stripped = text.lstrip()
    head, closed, _ = stripped.partition("</think>")
    if stripped.startswith("<think>") or (closed and "<reply>" not in head and "<verdict>" not in head):
        return without_thoughts(text)
    return text
