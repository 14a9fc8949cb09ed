"""A simulator that writes its replies: any `Policy`, asked in the one layout of `simulators.layout`.

Everything drawn is a function of the weights, the moment and the action: the seed is hashed from the world, what
happened in it, and the action. A question about the world itself is asked by the caller with an empty past, so every
member of a group hears the same.

`TextModel.fit` trains the embedded small transformer (see `simulators.fitting`); a Hugging Face policy is put into a
`TextModel` as it is.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlready.dream.base import Action, Moment, Reply
from rlready.dream.format import Unparsable
from rlready.dream.library import Library
from rlready.dream.simulators.layout import Layout, world_and_deeds
from rlready.dream.simulators.prompts import Prompts
from rlready.errors import UserError
from rlready.policy.base import OptimizerConfig, Policy, SampleRequest, SamplingParams, require_learner
from rlready.policy.supervised import descend, plan
from rlready.seeds import derive, rng

if TYPE_CHECKING:
    from rlready.dream.domain import Domain
    from rlready.dream.simulators.fitting import OnFit, TextConfig

FILE = "text.json"
_LEARN_LR, _LEARN_EPOCHS, _LEARN_TOKENS = 2e-4, 2, 4096


class TextModel:
    """Replies written by a policy.

    Attributes:
        policy: samples; its renderer writes the layout's messages.
        layout: how episodes are written.
        library: the recordings, for demonstrations and for which tools only read.
        name: as a user writes it.
        greedy, temperature, min_p, max_tokens: how replies are decoded.
        max_len: most tokens of a context with its reply.
        prompts: writes what the policy is shown.
        metrics: of the fit, if there was one.
        resampled: replies that could not be read at first.
    """

    def __init__(
        self,
        policy: Policy,
        layout: Layout,
        library: Library,
        *,
        name: str,
        greedy: bool = False,
        temperature: float = 1.0,
        min_p: float = 0.1,
        max_tokens: int = 512,
        max_len: int | None = None,
        exclude_own: bool = False,
        metrics: dict[str, float] | None = None,
    ) -> None:
        """Put the parts together.

        `max_len` is by default what the policy's `config` or the policy itself says, else 4,096.
        """
        self.policy, self.layout, self.library, self.name = policy, layout, library, name
        self.greedy, self.temperature, self.min_p = greedy, temperature, min_p
        self.max_tokens = max_tokens
        known = getattr(getattr(policy, "config", policy), "max_len", None)
        self.max_len = int(max_len or known or 4096)
        self.prompts = Prompts(
            policy.renderer, layout, library, max_tokens=max_tokens, max_len=self.max_len, exclude_own=exclude_own
        )
        self.metrics = dict(metrics or {})
        self.resampled = 0
        self._learned = False
        self._sessions: dict[int, dict[int, tuple[int, int]]] = {}
        self._count = itertools.count()

    @classmethod
    async def fit(
        cls,
        library: Library,
        domain: Domain,
        *,
        config: TextConfig | None = None,
        on_step: OnFit | None = None,
        state: dict[str, Any] | None = None,
    ) -> TextModel:
        """Train the embedded small transformer on a library.

        Args:
            library: what was recorded.
            domain: its form.
            config: size, training, decoding.
            on_step: called after every step with (the fitting, its metrics); `fitting.state_dict()` is all that going
                on later needs. Returning True ends the training.
            state: such a state, to go on from.

        Returns:
            The model; `metrics` holds the loss of the first step and over the last tenth, in nats per trained token.

        Raises:
            UserError: nothing was recorded, or the state belongs to other recordings or another config.
        """
        from rlready.dream.simulators.fitting import Fitting  # it builds on this module

        return await Fitting(library, domain, config, state).run(on_step)

    # ------------------------------------------------------------------ the simulator

    async def reply(self, moment: Moment, action: Action) -> Reply:
        """What the policy writes; the confidence is exp(mean log-probability of its tokens), raw.

        A reply that cannot be read is drawn once more, with other noise.

        Raises:
            Unparsable: the second one could not be read either.
        """
        prompt = self.prompts.reply(moment, action)
        noise = moment.noise(action.text)
        params = SamplingParams(
            temperature=0.0 if self.greedy else self.temperature,
            min_p=self.min_p,
            max_tokens=max(1, min(self.max_tokens, self.max_len - len(prompt))),
            stop_ids=self.policy.renderer.stop_ids,
        )
        session = self._sessions.setdefault(moment.world, {}).pop(moment.noise(), None)
        session = session or (moment.world, next(self._count))
        try:
            reply = await self._draw(prompt, params, noise, session)
        except Unparsable:
            self.resampled += 1
            params = replace(params, temperature=self.temperature or 1.0)
            reply = await self._draw(prompt, params, derive("again", noise), session)
        after = replace(moment, past=(*moment.past, (action, reply))).noise()
        self._sessions.setdefault(moment.world, {})[after] = session
        return reply

    async def judge(self, moment: Moment) -> float:
        """P(`<right>`) against `<wrong>`, in [0, 1]."""
        facts, deeds = world_and_deeds(moment.facts, moment.past, self.library.state.reads)
        choices = self.prompts.verdicts
        prompt = self.prompts.verdict(moment.instruction, facts, deeds)
        params = SamplingParams(temperature=0.0, max_tokens=self.prompts.verdict_tokens, choices=choices)
        (sample,) = await self.policy.sampler.sample([SampleRequest(prompt, params)])
        p = math.exp(min(0.0, sum(sample.logprobs)))
        return p if self.layout.read_verdict(self.policy.renderer.decode(sample.completion_ids)) else 1.0 - p

    def release(self, world: int) -> None:
        """Forget the contexts of a world that the sampler still holds."""
        for session in self._sessions.pop(world, {}).values():
            self.policy.sampler.release(session)

    # ------------------------------------------------------------------ further recordings

    async def learn(self, library: Library, ids: Sequence[str], *, seed: int) -> dict[str, float]:
        """Take a grown library, and a few steps on the new recordings mixed with as many old ones.

        A policy that cannot learn takes the library only, for demonstrations.

        Returns:
            `learn/steps`, and the loss of the first and the last step in nats per trained token.
        """
        from rlready.dream.simulators.rows import RowWriter

        self.library = library
        self.prompts = self.prompts.over(library)
        learner = self.policy.learner
        if learner is None or not ids:
            return {"learn/steps": 0.0}
        new = frozenset(ids)
        old = [id for id in library if id not in new]
        rng(seed, "learn").shuffle(old)
        rows = RowWriter(self.prompts.over(library, exclude_own=True)).rows([*sorted(new), *old[: len(new)]])
        learner.configure(OptimizerConfig(lr=_LEARN_LR, warmup=2))
        losses = []
        for batch in plan([len(r) for r in rows], _LEARN_EPOCHS, _LEARN_TOKENS, seed):
            losses.append(descend(learner, [rows[i] for i in batch])["nll"])
            await asyncio.sleep(0)
        self.policy.sync()
        self._learned = True
        if not losses:
            return {"learn/steps": 0.0}
        return {"learn/steps": float(len(losses)), "learn/first_loss": losses[0], "learn/loss": losses[-1]}

    def state_dict(self) -> dict[str, Any]:
        """What `learn` changed; empty where it was never called."""
        return {"learner": require_learner(self.policy).state_dict()} if self._learned else {}

    def load_state_dict(self, state: Mapping[str, Any], library: Library) -> None:
        """Inverse of `state_dict`, with the grown library."""
        self.library = library
        self.prompts = self.prompts.over(library)
        if state:
            require_learner(self.policy).load_state_dict(state["learner"])
            self.policy.sync()
            self._learned = True

    async def _draw(self, prompt: list[int], params: SamplingParams, noise: int, session: tuple[int, int]) -> Reply:
        (sample,) = await self.policy.sampler.sample([SampleRequest(prompt, params, noise, session)])
        if sample.stop == "length":
            raise Unparsable(f"the reply did not end within {params.max_tokens} tokens")
        text = self.policy.renderer.decode(sample.completion_ids)
        unknown = getattr(getattr(self.policy.renderer, "tokenizer", None), "unk", None)
        if unknown and unknown in text.split():
            raise Unparsable("the reply holds a word that the model has no token for")
        mean = sum(sample.logprobs) / max(1, len(sample.logprobs))
        return replace(self.layout.read(text), confidence=min(1.0, math.exp(mean)))

    # ------------------------------------------------------------------ saving

    def settings(self) -> dict[str, Any]:
        """Layout and decoding, JSON-ready."""
        return {
            "layout": self.layout.to_json(),
            "name": self.name,
            "greedy": self.greedy,
            "temperature": self.temperature,
            "min_p": self.min_p,
            "max_tokens": self.max_tokens,
            "max_len": self.max_len,
            "metrics": self.metrics,
        }

    def save(self, folder: str | Path) -> None:
        """Write weights, layout and decoding as one folder; an older one stays until the new one is whole.

        Raises:
            UserError: the policy is not a tiny one.
        """
        from rlready.policy.tiny import TinyPolicy
        from rlready.policy.tiny.save import fresh_folder

        if not isinstance(self.policy, TinyPolicy):
            raise UserError("Only the embedded transformer is saved here; save another policy with its own save().")
        with fresh_folder(Path(folder)) as work:
            self.policy.save_pretrained(work)
            self.save_settings(work)

    def save_settings(self, folder: Path) -> None:
        """Write layout and decoding into a folder that holds the policy."""
        (folder / FILE).write_text(json.dumps(self.settings(), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path, library: Library, *, exclude_own: bool = False) -> TextModel:
        """Inverse of `save`.

        Raises:
            UserError: the folder holds no such model.
        """
        from rlready.policy.tiny import TinyPolicy

        record = read_settings(folder)
        layout = Layout.from_json(record.pop("layout"))
        return cls(TinyPolicy.load(folder), layout, library, exclude_own=exclude_own, **record)


def read_settings(folder: str | Path) -> dict[str, Any]:
    """What `TextModel.settings` gave, from a folder.

    Raises:
        UserError: it is not there, or damaged.
    """
    path = Path(folder) / FILE
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise UserError(f"There is no fitted simulator in {folder} (no {FILE}). Fit one: rlready dream fit.") from error
    except ValueError as error:
        raise UserError(f"{path} is damaged ({error}). Fit the simulator again.") from error
    if not isinstance(record, dict) or "layout" not in record:
        raise UserError(f"{path} is damaged (it has no layout). Fit the simulator again.")
    return record
