"""Who plays: a policy, or a scripted player. Both make turns of exact token ids.

An `Actor` starts a `Player` for each episode; the player answers each observation with a `Turn`. `Conversation` keeps
what the model really saw and sampled: while the environment's messages continue it, the next prompt is an extension of
the same ids; where the context was rewritten, the messages are rendered anew and the turn has no parent.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from rlready.envs.base import Observation, Script
from rlready.errors import UserError, did_you_mean
from rlready.policy.base import Choices, Policy, Renderer, SampleRequest, SamplingParams
from rlready.seeds import derive, rng
from rlready.types import Message, Task, Trajectory, Turn

_sessions = itertools.count()


class Player(Protocol):
    """One actor in one episode."""

    async def act(self, observation: Observation, trajectory: Trajectory) -> Turn:
        """Answer an observation. The turn's index will be `len(trajectory.turns)`."""
        ...

    def close(self) -> None:
        """The episode is over."""
        ...


class Actor(Protocol):
    """Anything that can play episodes."""

    def start(self, task: Task, seed: int, sample: int = 0) -> Player:
        """Begin an episode: `seed` is the environment's, `sample` tells apart the members of a group."""
        ...


class Conversation:
    """Token ids of one episode's context, extended while the messages extend what was said."""

    __slots__ = ("_completion", "_index", "_prompt", "_renderer", "_seen", "_text")

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._seen: tuple[Message, ...] = ()
        self._text = ""
        self._prompt: list[int] = []
        self._completion: list[int] = []
        self._index = -1

    def prompt(self, messages: tuple[Message, ...]) -> tuple[list[int], int | None, tuple[Message, ...]]:
        """The next prompt.

        Returns:
            Its ids [P], the parent turn (None where the context was rewritten), and the messages new in it.
        """
        n = len(self._seen)
        if self._index >= 0 and len(messages) > n:
            said = messages[n]
            if (
                said.role == "assistant"
                and said.text in (self._text, self._text.strip())
                and messages[:n] == self._seen
            ):
                new = messages[n + 1 :]
                ids = self._renderer.extend(self._prompt, self._completion, new)
                self._seen = messages
                return ids, self._index, new
        self._seen = messages
        return self._renderer.render(messages), None, messages

    def record(self, index: int, prompt_ids: list[int], completion_ids: list[int], text: str) -> None:
        """What was sampled at the prompt that was asked for last."""
        self._index = index
        self._prompt = prompt_ids
        self._completion = completion_ids
        self._text = text


class PolicyActor:
    """A policy that plays. Request seeds are hashes of (run seed, task, episode seed, sample, turn)."""

    def __init__(self, policy: Policy, params: SamplingParams | None = None, seed: int = 0, *, tag: str = "") -> None:
        """Bind a policy to decoding parameters.

        Args:
            policy: sampler and renderer.
            params: decoding; stop ids default to the renderer's; admissible actions of an observation become choices.
            seed: the run's.
            tag: given to every turn.
        """
        self.policy = policy
        params = params or SamplingParams()
        self.params = params if params.stop_ids else replace(params, stop_ids=policy.renderer.stop_ids)
        self.seed = seed
        self.tag = tag
        self._limited: dict[tuple[str, ...], SamplingParams] = {}

    def start(self, task: Task, seed: int, sample: int = 0) -> PolicyPlayer:
        """Begin an episode."""
        return PolicyPlayer(self, task, seed, sample)

    def params_for(self, actions: tuple[str, ...] | None) -> SamplingParams:
        """Decoding limited to these actions; built once per set of actions.

        Raises:
            UserError: there are no actions.
        """
        if actions is None:
            return self.params
        known = self._limited.get(actions)
        if known is None:
            if not actions:
                raise UserError(
                    "An observation has an empty list of actions. Give at least one, or None for free text."
                )
            if len(self._limited) >= 4096:
                self._limited.clear()
            encode = self.policy.renderer.encode_completion
            known = replace(self.params, choices=Choices([encode(action) for action in actions]))
            self._limited[actions] = known
        return known


class PolicyPlayer:
    """A policy in one episode."""

    __slots__ = ("_actor", "_conversation", "_key", "_session", "_turns")

    def __init__(self, actor: PolicyActor, task: Task, seed: int, sample: int) -> None:
        self._actor = actor
        self._conversation = Conversation(actor.policy.renderer)
        self._key = (task.id, seed, sample)
        self._session = ("episode", next(_sessions))
        self._turns = 0

    async def act(self, observation: Observation, trajectory: Trajectory) -> Turn:
        """Sample the next turn."""
        actor = self._actor
        policy = actor.policy
        params = actor.params_for(observation.actions)
        prompt, parent, new = self._conversation.prompt(observation.messages)
        seed = derive(actor.seed, "act", *self._key, self._turns)
        (sample,) = await policy.sampler.sample([SampleRequest(prompt, params, seed, self._session)])
        text = policy.renderer.decode(sample.completion_ids)
        self._conversation.record(len(trajectory.turns), prompt, sample.completion_ids, text)
        self._turns += 1
        return Turn(
            prompt,
            sample.completion_ids,
            sample.logprobs,
            parent=parent,
            tag=actor.tag,
            version=sample.version,
            stop=sample.stop,
            temperature=params.temperature,
            support=sample.support,
            entropy=sample.entropy,
            context=new,
            text=text,
        )

    def close(self) -> None:
        """Let the sampler forget the episode's cache."""
        self._actor.policy.sampler.release(self._session)


class ScriptActor:
    """Scripted players, for demonstrations and logs. Turns carry ids but no log-probabilities.

    A script is a generator: it yields an action and receives the reply's text; when it returns, the closing action is
    played. The name of the script that played is in `Trajectory.info["script"]`.
    """

    def __init__(
        self,
        scripts: Script | Mapping[str, Script],
        renderer: Renderer,
        *,
        closing: str,
        mix: Mapping[str, float] | None = None,
        seed: int = 0,
    ) -> None:
        """Choose the players.

        Args:
            scripts: one, or several by name.
            renderer: makes the token ids.
            closing: the action that ends an episode.
            mix: relative weight by name; default: all alike.
            seed: of the choice and of the scripts' own chance.

        Raises:
            UserError: the mix names an unknown script, is empty, or holds a weight that is not positive.
        """
        self.scripts: Mapping[str, Script] = scripts if isinstance(scripts, Mapping) else {"script": scripts}
        mix = dict.fromkeys(self.scripts, 1.0) if mix is None else mix
        for name, weight in mix.items():
            if name not in self.scripts:
                raise did_you_mean("script", name, self.scripts)
            if not weight > 0:
                raise UserError(f'The weight of script "{name}" is {weight}; it must be a positive number.')
        if not mix:
            raise UserError("A mix of scripts needs at least one script and its weight.")
        self.renderer = renderer
        self.closing = closing
        self.seed = seed
        self._names = list(mix)
        self._weights = [mix[name] for name in self._names]

    def start(self, task: Task, seed: int, sample: int = 0) -> ScriptPlayer:
        """Begin an episode."""
        chance = rng(self.seed, "script", task.id, seed, sample)
        name = chance.choices(self._names, self._weights)[0]
        return ScriptPlayer(self, name, self.scripts[name](task, chance))


class ScriptPlayer:
    """A script in one episode."""

    def __init__(self, actor: ScriptActor, name: str, moves: Generator[str, str, None]) -> None:
        self._actor = actor
        self._name = name
        self._moves = moves
        self._conversation = Conversation(actor.renderer)
        self._begun = False

    async def act(self, observation: Observation, trajectory: Trajectory) -> Turn:
        """The script's next action, as a turn."""
        actor = self._actor
        trajectory.info["script"] = self._name
        try:
            action = self._moves.send(reply_text(observation.messages)) if self._begun else next(self._moves)
        except StopIteration:
            action = actor.closing
        self._begun = True
        prompt, parent, new = self._conversation.prompt(observation.messages)
        completion = actor.renderer.encode_completion(action)
        self._conversation.record(len(trajectory.turns), prompt, completion, action)
        return Turn(prompt, completion, parent=parent, context=new, text=action)

    def close(self) -> None:
        """End the generator."""
        self._moves.close()


def reply_text(messages: Sequence[Message]) -> str:
    """The environment's last reply: text of the tool and user messages after the last assistant message."""
    start = len(messages)
    while start and messages[start - 1].role != "assistant":
        start -= 1
    return "\n".join(m.text for m in messages[start:] if m.role in ("tool", "user"))
