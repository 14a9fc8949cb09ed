"""What the benchmarks share: an event loop that knows how long it idled, a sampler without prefix reuse, results."""

from __future__ import annotations

import asyncio
import json
import selectors
import time
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlready.policy.base import Sample, Sampler, SampleRequest

RESULTS = Path(__file__).parent / "results"


class _Idling(selectors.DefaultSelector):
    """Adds up the seconds in which the event loop had nothing to do but wait."""

    idle = 0.0

    def select(self, timeout: float | None = None) -> Any:
        """Wait for events."""
        began = time.perf_counter()
        ready = super().select(timeout)
        if timeout is None or timeout > 0:
            self.idle += time.perf_counter() - began
        return ready


class Loop:
    """Runs coroutines on one event loop and knows how long it idled."""

    def __init__(self) -> None:
        """Open the loop."""
        self._selector = _Idling()
        self._loop = asyncio.SelectorEventLoop(self._selector)

    @property
    def idle(self) -> float:
        """Seconds spent waiting so far."""
        return self._selector.idle

    def run(self, work: Coroutine[Any, Any, Any]) -> list[Any]:
        """Await something; its result comes in a list, since asyncio formats the result of a task it traces."""
        out: list[Any] = []

        async def main() -> None:
            out.append(await work)

        self._loop.run_until_complete(main())
        return out


class Forgetful:
    """A sampler that computes every prompt from its first token: what prefix reuse is measured against."""

    def __init__(self, inner: Sampler) -> None:
        """Wrap a sampler."""
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def sample(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        """Sample without a session."""
        return await self.inner.sample([replace(request, session=None) for request in requests])


def write(name: str, result: Mapping[str, Any]) -> None:
    """Write `results/NAME.json`."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps({"benchmark": name} | dict(result), indent=1) + "\n")
