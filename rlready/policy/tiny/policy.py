"""The tiny policy: renderer, sampler and learner put together."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

from rlready.errors import UserError
from rlready.policy.base import OptimizerConfig, Policy, Renderer
from rlready.policy.render import ChatRenderer
from rlready.policy.threads import choose_threads
from rlready.policy.tiny.learner import TinyLearner
from rlready.policy.tiny.model import TinyConfig, TinyModel
from rlready.policy.tiny.sampler import TinySampler
from rlready.policy.tiny.save import fresh_folder, read_weights, write_weights
from rlready.policy.tokenize import TextTokenizer


@dataclass
class TinyPolicy(Policy):
    """A policy on a tiny transformer. `sampler` is a `TinySampler`, `learner` a `TinyLearner`."""

    @classmethod
    def create(
        cls,
        renderer: Renderer,
        config: TinyConfig,
        seed: int = 0,
        optimizer: OptimizerConfig | None = None,
        threads: int | None = None,
        max_batch: int = 128,
    ) -> Self:
        """A new policy with random weights.

        Args:
            renderer: messages to ids. If it has a `tokenizer`, the vocabulary must be the model's.
            config: shape of the model; `vocab_size` 0 takes the tokenizer's.
            seed: of the initial weights.
            optimizer: settings of the learner.
            threads: torch threads to set; None leaves them as they are.
            max_batch: most rows the sampler computes at once.

        Raises:
            UserError: vocabulary and model do not fit, or a setting makes no sense.
        """
        tokenizer = getattr(renderer, "tokenizer", None)
        if tokenizer is not None:
            if config.vocab_size == 0:
                config = dataclasses.replace(config, vocab_size=len(tokenizer))
            if config.vocab_size != len(tokenizer):
                raise UserError(
                    f"The model has {config.vocab_size} ids and the tokenizer {len(tokenizer)}. "
                    "Set TinyConfig.vocab_size to 0, and the tokenizer's is taken."
                )
        return cls._of(renderer, TinyModel(config, seed), optimizer, threads, max_batch, 0)

    @classmethod
    def _of(
        cls,
        renderer: Renderer,
        model: TinyModel,
        optimizer: OptimizerConfig | None,
        threads: int | None,
        max_batch: int,
        version: int,
    ) -> Self:
        if threads is not None:
            choose_threads(threads)
        learner = TinyLearner(model, optimizer, version=version)
        sampler = TinySampler(model.config, learner.weights(), version=version, max_batch=max_batch)
        return cls(sampler, renderer, learner)

    @property
    def config(self) -> TinyConfig:
        """Shape of the model."""
        return cast(TinySampler, self.sampler).config

    def clone(self, optimizer: OptimizerConfig | None = None) -> Self:
        """An independent copy of the learner's weights, at version 0, with a fresh optimizer.

        Args:
            optimizer: its settings; the learner's present ones by default.
        """
        learner, sampler = cast(TinyLearner, self.learner), cast(TinySampler, self.sampler)
        model = TinyModel(self.config)
        model.load_state_dict(dict(learner.weights()))
        return self._of(self.renderer, model, optimizer or learner.optimizer, None, sampler.max_batch, 0)

    def save(self, folder: str | Path) -> None:
        """Write the learner's weights as a Hugging Face folder, in one move.

        An older folder of that name stays until the new one is whole.

        Raises:
            UserError: the renderer cannot be saved.
        """
        with fresh_folder(Path(folder)) as work:
            self.save_pretrained(work)

    def save_pretrained(self, path: Path) -> None:
        """Write the folder's files into `path`, which exists.

        Raises:
            UserError: the renderer cannot be saved.
        """
        learner, renderer = cast(TinyLearner, self.learner), self.renderer
        bos = eos = None
        dialect: Mapping[str, Any] | None = None
        if isinstance(renderer, ChatRenderer):
            dialect = renderer.to_json()
            bos = None if renderer.bos is None else renderer.tokenizer.id(renderer.bos)
            eos = None if renderer.end is None else renderer.tokenizer.id(renderer.end)
            renderer.tokenizer.save(path, bos=renderer.bos, eos=renderer.end, chat_template=renderer.chat_template())
        elif isinstance(tokenizer := getattr(renderer, "tokenizer", None), TextTokenizer):
            tokenizer.save(path)
        extra = {"renderer": dialect, "version": learner.version}
        write_weights(path, self.config, learner.weights(), bos=bos, eos=eos, extra=extra)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        renderer: Renderer | None = None,
        optimizer: OptimizerConfig | None = None,
        threads: int | None = None,
        max_batch: int = 128,
        expect: TinyConfig | None = None,
    ) -> Self:
        """Read what `save` wrote.

        Args:
            folder: the checkpoint.
            renderer: needed where the policy was saved with a renderer other than `ChatRenderer`.
            optimizer: settings of the learner, which starts afresh.
            threads: torch threads to set; None leaves them as they are.
            max_batch: most rows the sampler computes at once.
            expect: refuse a model of another shape than this.

        Raises:
            UserError: the folder is no checkpoint of ours, is damaged, or holds another model or vocabulary.
        """
        folder = Path(folder)
        config, state, ours = read_weights(folder, expect)
        if renderer is None:
            if ours.get("renderer") is None:
                raise UserError(f"{folder} was saved with a renderer of its own kind; pass it as renderer=...")
            renderer = ChatRenderer.from_json(TextTokenizer.load(folder), ours["renderer"])
        tokenizer = getattr(renderer, "tokenizer", None)
        if tokenizer is not None and len(tokenizer) != config.vocab_size:
            raise UserError(
                f"{folder} holds a model of {config.vocab_size} ids, but the tokenizer has {len(tokenizer)}: "
                "they do not belong together."
            )
        model = TinyModel(config)
        model.load_state_dict(state)
        return cls._of(renderer, model, optimizer, threads, max_batch, int(ours.get("version", 0)))


def clone_policy(policy: Policy, optimizer: OptimizerConfig | None = None) -> TinyPolicy:
    """An independent copy of a tiny policy with a fresh optimizer; see `TinyPolicy.clone`."""
    return tiny_of(policy).clone(optimizer)


def save_policy(policy: Policy, folder: str | Path) -> None:
    """Write a tiny policy as a Hugging Face folder; see `TinyPolicy.save`."""
    tiny_of(policy).save(folder)


def load_policy(folder: str | Path, **options: Any) -> TinyPolicy:
    """Read what `save_policy` wrote; options are those of `TinyPolicy.load`."""
    return TinyPolicy.load(folder, **options)


def tiny_of(policy: Policy) -> TinyPolicy:
    """The policy as a `TinyPolicy`.

    Raises:
        UserError: it is another kind of policy.
    """
    if isinstance(policy, TinyPolicy):
        return policy
    if isinstance(policy.sampler, TinySampler) and isinstance(policy.learner, TinyLearner):
        return TinyPolicy(policy.sampler, policy.renderer, policy.learner)
    raise UserError(f"This needs a tiny policy with a learner, not a {type(policy.sampler).__name__}.")
