"""Keys and values of prompt prefixes, kept in blocks, so that a shared beginning is computed once.

A prefix is cut into blocks of `BLOCK` tokens from its start, and each block is computed alone, on top of the blocks
before it. What a block holds is therefore a function of the tokens up to its end and the weights, whether it was
computed for this request or found: a request that is decoded alone gives the same bits with a full and with an empty
store.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlready.policy.hf.body import Body

BLOCK = 64
"""Tokens per block. Smaller ones share more and are slower to compute: a pass over 64 tokens keeps a core busy."""

Layers = list[tuple[Tensor, Tensor]]
"""Keys and values by layer, each [1, heads, tokens, width]."""


class Prefixes:
    """A bounded store of blocks, the longest unused dropped first.

    Attributes:
        limit: bytes that are kept.
        computed, reused: tokens computed for the store, and found in it.
    """

    def __init__(self, body: Body, limit: int = 1 << 30) -> None:
        self.body = body
        self.limit = limit
        self.computed = self.reused = 0
        self.clear()

    def clear(self) -> None:
        """Forget everything: the weights have changed."""
        self._blocks: OrderedDict[bytes, Layers] = OrderedDict()
        self._bytes = 0

    def into(self, cache: Any, prefix: Sequence[int], rows: int) -> int:
        """Put the longest whole number of blocks of a prefix into an empty cache.

        Args:
            cache: of the model; it is given `rows` equal rows.
            prefix: ids that all rows begin with, the last id of a prompt left out (something must be left to compute).
            rows: how many rows the cache is for.

        Returns:
            Tokens that the cache holds afterwards; 0 where the model's cache cannot be kept.
        """
        whole = len(prefix) // BLOCK * BLOCK
        if whole == 0 or self.body.plain is False:
            return 0
        blocks = self._blocks_of(prefix[:whole])
        if blocks is None:
            return 0
        for layer in range(len(blocks[0])):
            keys = torch.cat([block[layer][0] for block in blocks], dim=-2)
            values = torch.cat([block[layer][1] for block in blocks], dim=-2)
            cache.update(keys.expand(rows, -1, -1, -1), values.expand(rows, -1, -1, -1), layer)
        return whole

    def _blocks_of(self, prefix: Sequence[int]) -> list[Layers] | None:
        names = _names(prefix)
        found: list[Layers] = []
        for name in names:
            block = self._blocks.get(name)
            if block is None:
                break
            self._blocks.move_to_end(name)
            found.append(block)
        self.reused += BLOCK * len(found)
        if len(found) == len(names):
            return found
        cache = self.body.new_cache()
        for layer in range(len(found[0]) if found else 0):
            keys = torch.cat([block[layer][0] for block in found], dim=-2)
            values = torch.cat([block[layer][1] for block in found], dim=-2)
            cache.update(keys, values, layer)
        for k in range(len(found), len(names)):
            tokens = torch.tensor([prefix[k * BLOCK : (k + 1) * BLOCK]], device=self.body.device)
            self.body.forward(tokens, keep=1, cache=cache)
            self.computed += BLOCK
            if self.body.plain is None:
                self.body.plain = _is_plain(cache)
            if not self.body.plain:
                return None
            block = [(e.keys[..., -BLOCK:, :].clone(), e.values[..., -BLOCK:, :].clone()) for e in cache.layers]
            self._keep(names[k], block)
            found.append(block)
        return found

    def _keep(self, name: bytes, block: Layers) -> None:
        self._blocks[name] = block
        self._bytes += _size(block)
        while self._bytes > self.limit and len(self._blocks) > 1:
            _, dropped = self._blocks.popitem(last=False)
            self._bytes -= _size(dropped)


def _is_plain(cache: Any) -> bool:
    """Whether all layers keep all positions: no sliding window, no recurrent state, no layer that borrows another's."""
    return all(type(e).__name__ == "DynamicLayer" and e.is_initialized for e in cache.layers)


def _size(block: Layers) -> int:
    return sum(t.numel() * t.element_size() for pair in block for t in pair)


def _names(prefix: Sequence[int]) -> list[bytes]:
    """A name for each block: a hash of all tokens up to its end."""
    ids = np.asarray(prefix, dtype=np.int64)
    digest = hashlib.blake2b(digest_size=16)
    out = []
    for start in range(0, len(ids), BLOCK):
        digest.update(ids[start : start + BLOCK].tobytes())
        out.append(digest.copy().digest())
    return out
