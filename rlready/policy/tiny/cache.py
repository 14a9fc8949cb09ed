"""The key/value cache: slots, who holds them, and what is in them.

A slot holds the keys and values of one context. Slots of sessions stay filled between calls, so that the next turn only
computes what is new; the session used longest ago gives its slot up when slots run out. Both the number of slots and
their length grow as needed.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Container, Hashable, Sequence

import torch
from torch import Tensor

from rlready.policy.tiny.model import TinyConfig

_LENGTH_STEP = 64


class Cache:
    """Keys and values of every slot, and the table of slots.

    Attributes:
        keys, values: per layer, [slots * K, length, E]; row `slot * K + h` belongs to key/value head h.
        tokens: per slot the ids whose keys and values it holds, for slots of idle sessions.
        sessions: slot by session, least recently used first.
    """

    def __init__(self, config: TinyConfig, max_slots: int) -> None:
        """Start empty.

        Args:
            config: shape of the model.
            max_slots: most slots ever held.
        """
        self.config = config
        self.max_slots = max_slots
        self.slots = 0
        self.length = 0
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        self.tokens: dict[int, list[int]] = {}
        self.sessions: OrderedDict[Hashable, int] = OrderedDict()
        self.evictions = 0
        self._free: list[int] = []

    def reset(self) -> None:
        """Drop everything, memory included."""
        self.__init__(self.config, self.max_slots)  # type: ignore[misc]

    def forget(self, busy: Container[Hashable]) -> None:
        """Drop all sessions but those in use: the weights changed."""
        for session in [s for s in self.sessions if s not in busy]:
            self.release(session)

    def take(self, session: Hashable, busy: Container[Hashable]) -> int | None:
        """Get an empty slot, evicting an idle session if need be.

        Args:
            session: who keeps the slot; None for one request only.
            busy: sessions whose slot is in use.

        Returns:
            The slot, or None where every slot is in use.
        """
        if not self._free and self.slots < self.max_slots:
            self._grow(min(self.max_slots, max(16, 2 * self.slots)), self.length)
        if not self._free:
            idle = next((s for s in self.sessions if s not in busy), None)
            if idle is None:
                return None
            self.evictions += 1
            self.release(idle)
        slot = heapq.heappop(self._free)
        if session is not None:
            self.sessions[session] = slot
        return slot

    def give(self, slot: int) -> None:
        """Return a slot that no session holds."""
        self.tokens.pop(slot, None)
        heapq.heappush(self._free, slot)

    def release(self, session: Hashable) -> None:
        """Return a session's slot; unknown sessions are no error."""
        slot = self.sessions.pop(session, None)
        if slot is not None:
            self.give(slot)

    def ensure(self, length: int) -> None:
        """Make every slot at least `length` tokens long."""
        if length > self.length:
            most = max(self.config.max_len, length)
            self._grow(self.slots, min(most, max(length + _LENGTH_STEP, self.length * 3 // 2)))

    def copy(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first `length` positions of some slots into others."""
        heads = self.config.kv_heads
        source, target = (
            (torch.tensor(s)[:, None] * heads + torch.arange(heads)).flatten() for s in (sources, targets)
        )
        for store in (*self.keys, *self.values):
            store[target, :length] = store[source, :length]

    def _grow(self, slots: int, length: int) -> None:
        heads, width = self.config.kv_heads, self.config.head_dim
        for stores in (self.keys, self.values):
            old = list(stores) or [torch.zeros(0, 0, width)] * self.config.layers
            stores.clear()
            for store in old:
                grown = torch.zeros(slots * heads, length, width)
                grown[: self.slots * heads, : self.length] = store
                stores.append(grown)
        for slot in range(self.slots, slots):
            heapq.heappush(self._free, slot)
        self.slots, self.length = slots, length


def shared_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix of two lists of ids."""
    most = min(len(a), len(b))
    if a[:most] == b[:most]:
        return most
    low, high = 0, most  # a[:low] == b[:low] and a[:high] != b[:high]
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low
