"""A Hugging Face causal language model as a policy: loaded, sampled from, trained, saved."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

from rlready.errors import UserError
from rlready.policy.base import OptimizerConfig, Policy
from rlready.policy.hf.body import Body
from rlready.policy.hf.learner import HFLearner
from rlready.policy.hf.loading import OURS, LoraSettings, load
from rlready.policy.hf.packages import need_transformers
from rlready.policy.hf.renderer import HFRenderer
from rlready.policy.hf.sampler import HFSampler
from rlready.policy.threads import choose_threads
from rlready.policy.tiny.save import fresh_folder

LORA_LR = 2e-4
FULL_LR = 1e-5
"""Learning rates where none is given (ours): of an adapter, and of all weights."""


@dataclass
class HFPolicy(Policy):
    """A policy on a Hugging Face model. `sampler` is an `HFSampler`, `learner` an `HFLearner`.

    Attributes:
        base: where the base model came from.
        adapted: whether an adapter learns, rather than all weights.
    """

    base: str = ""
    adapted: bool = False

    @classmethod
    def load(
        cls,
        source: str | Path,
        *,
        lora: LoraSettings | None = None,
        dtype: str = "auto",
        device: str | None = None,
        threads: int | None = None,
        seed: int = 0,
        optimizer: OptimizerConfig | None = None,
        exact: bool = False,
        max_batch: int = 32,
        micro_tokens: int | None = None,
        chat_template: str | None = None,
        otherwise: str | None = None,
        options: Mapping[str, Any] = {},
    ) -> Self:
        """Read a model.

        Args:
            source: name on the hub, folder of a model or of an adapter, GGUF file, or folder with one GGUF file.
            lora: train a new adapter of this kind; None trains all weights (or the adapter that the folder holds).
            dtype: of the weights; "auto" keeps the file's where an adapter learns, and takes single precision where all
                weights do (small updates vanish in half precision).
            device: as torch names it; None takes the GPU if there is one.
            threads: torch threads to set; None leaves them as they are.
            seed: of a new adapter's weights.
            optimizer: settings; by default AdamW at 2e-4 for an adapter, at 1e-5 for all weights.
            exact: decode each request alone, so that a sample depends on nothing else to the last bit: for dreams.
            max_batch: most requests decoded together.
            micro_tokens: padded tokens per micro-batch of the learner.
            chat_template: in place of the tokenizer's own.
            otherwise: the chat template where the tokenizer has none of its own, as those of base models.
            options: given to the chat template, such as `{"enable_thinking": False}`.

        Raises:
            UserError: a package is missing, there is no such model, or its chat template cannot be used.
        """
        if threads is not None:
            choose_threads(threads)
        loaded = load(source, lora, dtype, device, seed)
        if chat_template is not None:
            loaded.tokenizer.chat_template = chat_template
        elif not loaded.tokenizer.chat_template:
            loaded.tokenizer.chat_template = otherwise
        body = Body(loaded.model)
        renderer = HFRenderer(loaded.tokenizer, name=str(source), ends=_ends(loaded.model), options=options)
        version = int(loaded.ours.get("version", 0))
        chosen = optimizer or OptimizerConfig(lr=LORA_LR if loaded.adapted else FULL_LR)
        dropout = lora is not None and lora.dropout > 0
        learner = HFLearner(body, chosen, version=version, micro_tokens=micro_tokens, dropout=dropout)
        sampler = HFSampler(body, version=version, exact=exact, max_batch=max_batch)
        return cls(sampler, renderer, learner, base=loaded.base, adapted=loaded.adapted)

    @property
    def body(self) -> Body:
        """The model that sampler and learner share."""
        return cast(HFSampler, self.sampler).body

    @property
    def max_len(self) -> int:
        """Longest context, in tokens."""
        return self.body.max_len

    def save(self, folder: str | Path, *, merged: bool = False) -> None:
        """Write the learner's weights as a folder that `transformers` and `peft` load, in one move.

        An older folder of that name stays until the new one is whole.

        Args:
            folder: where to.
            merged: write an adapter into the weights of its model, and that model whole.

        Raises:
            UserError: `merged` is asked for without an adapter.
        """
        if merged and not self.adapted:
            raise UserError("merged=True needs an adapter to merge; this policy trains all weights.")
        with fresh_folder(Path(folder)) as work:
            self.save_pretrained(work, merged=merged)

    def save_pretrained(self, path: Path, *, merged: bool = False) -> None:
        """Write the folder's files into `path`, which exists."""
        need_transformers()
        model, renderer = self.body.model, cast(HFRenderer, self.renderer)
        with self.body.using(None):
            if merged:
                copy.deepcopy(model).merge_and_unload().save_pretrained(path)
            elif self.adapted:
                model.save_pretrained(path, save_embedding_layers=False)
            else:
                model.save_pretrained(path)
        renderer.tokenizer.save_pretrained(path)
        ours = {"version": cast(HFLearner, self.learner).version}
        if self.adapted and not merged:
            ours["base"] = self.base  # type: ignore[assignment]
        (path / OURS).write_text(json.dumps(ours, indent=1), encoding="utf-8")


def _ends(model: Any) -> list[int]:
    """Ids at which the model's own generation settings stop."""
    given = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    if given is None:
        return []
    return [int(i) for i in given] if isinstance(given, (list, tuple)) else [int(given)]
