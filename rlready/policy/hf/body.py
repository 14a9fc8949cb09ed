"""A Hugging Face causal language model as sampler and learner use it: one module, several sets of trainable weights.

Sampler, learner and reference share the module and its frozen weights. What differs between them, the trainable
tensors (a LoRA adapter, or all of them), is kept by each and put in place for the length of one forward pass
(`Body.using`), by exchanging pointers. A lock makes a pass and the exchange one act, so that sampling and learning
may run in different threads.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from rlready.errors import UserError

Weights = Mapping[str, Tensor]


class Held(Protocol):
    """Holds a set of trainable tensors, or None for the live ones."""

    @property
    def tensors(self) -> Weights | None:
        """The set."""
        ...


class Body:
    """A causal language model.

    Attributes:
        model: the module, a `PreTrainedModel` or a `PeftModel` around one.
        trainable: the parameters that learn, by name. They are the learner's ("live") unless another set is in use.
        vocab_size: ids that logits are given for.
        max_len: longest context.
        device: where the model is.
        plain: whether every layer's cache holds keys and values of all positions, so that prefixes can be kept. It is
            found out at the first use of a cache.
    """

    def __init__(self, model: Any) -> None:
        """Take a loaded model; it is put into evaluation mode."""
        self.model = model.eval()
        text = model.config.get_text_config(decoder=True)
        self.vocab_size = int(model.get_output_embeddings().weight.shape[0])
        self.max_len = int(getattr(text, "max_position_embeddings", None) or 1 << 30)
        self.device: torch.device = next(model.parameters()).device
        self.trainable: dict[str, torch.nn.Parameter] = {
            name: p for name, p in model.named_parameters() if p.requires_grad
        }
        self.plain: bool | None = None
        self._lock = threading.RLock()
        self._before_change: list[Callable[[], None]] = []
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        names = inspect.signature(inner.forward).parameters
        self._cache = "cache" if "cache" in names else "past_key_values"
        self._positions = "position_ids" in names
        self._keeps = "logits_to_keep" in names

    def on_change(self, call: Callable[[], None]) -> None:
        """Have `call` run before the live weights change."""
        self._before_change.append(call)

    def changing(self) -> None:
        """To be called before the live weights change, so that who shares them can take a copy."""
        for call in self._before_change:
            call()

    def live(self) -> dict[str, Tensor]:
        """The learner's trainable tensors; not copies."""
        with self._lock:
            return {name: p.detach() for name, p in self.trainable.items()}

    def copy(self) -> dict[str, Tensor]:
        """Copies of the learner's trainable tensors."""
        return {name: tensor.clone() for name, tensor in self.live().items()}

    def shares(self, weights: Weights) -> bool:
        """Whether these are the live tensors themselves."""
        live = self.live()
        return weights.keys() == live.keys() and all(weights[n].data_ptr() == t.data_ptr() for n, t in live.items())

    def check(self, weights: Weights, what: str) -> None:
        """Refuse weights of another model.

        Raises:
            UserError: names or shapes differ.
        """
        live = self.live()
        if weights.keys() != live.keys():
            odd = sorted(weights.keys() ^ live.keys())
            raise UserError(f"{what} do not belong to this model: {len(odd)} names differ, such as {odd[0]}.")
        for name, tensor in live.items():
            if weights[name].shape != tensor.shape:
                raise UserError(
                    f"{what} do not belong to this model: {name} has the shape {tuple(weights[name].shape)}, "
                    f"not {tuple(tensor.shape)}."
                )

    @contextmanager
    def using(self, held: Held | Weights | None) -> Iterator[None]:
        """Compute with another set of trainable tensors; nobody else computes meanwhile.

        Args:
            held: the tensors, or a holder of them, which is looked into once nobody else computes. None: the live ones.
        """
        with self._lock:
            weights = held if held is None or isinstance(held, Mapping) else held.tensors
            if weights is None:
                yield
                return
            live = {name: p.data for name, p in self.trainable.items()}
            try:
                for name, p in self.trainable.items():
                    p.data = weights[name]
                yield
            finally:
                for name, p in self.trainable.items():
                    p.data = live[name]

    def new_cache(self) -> Any:
        """An empty cache of keys and values, of the kind that the model wants."""
        from rlready.policy.hf.packages import need_transformers

        return need_transformers().DynamicCache(config=self.model.config)

    def forward(
        self,
        tokens: Tensor,
        *,
        keep: int | Tensor,
        cache: Any = None,
        mask: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Logits of some columns, [B, C, V].

        Args:
            tokens: what is new, [B, T].
            keep: the last so many columns, or which columns.
            cache: holds what came before, and takes what is new.
            mask: 1 where something stands, 0 for padding, of cache and new tokens, [B, P + T]; None: nothing is padded.
            positions: of the new tokens, [B, T]; None counts on from the cache.
        """
        given: dict[str, Any] = {"input_ids": tokens, "use_cache": cache is not None}
        if cache is not None:
            given[self._cache] = cache
        if mask is not None:
            given["attention_mask"] = mask
        if positions is not None and self._positions:
            given["position_ids"] = positions
        if self._keeps:
            given["logits_to_keep"] = keep
        logits: Tensor = self.model(**given).logits
        if not self._keeps:
            logits = logits[:, -keep:] if isinstance(keep, int) else logits[:, keep]
        return logits
