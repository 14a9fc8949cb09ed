"""A language model behind an OpenAI-compatible endpoint: retries, rate limits, tokens, cost, budget, memory."""

from __future__ import annotations

import asyncio
import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx

from rlready.errors import UserError
from rlready.remembered import Answers
from rlready.seeds import hashed_uniform
from rlready.types import Message

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


class Writer(Protocol):
    """Anything that completes a prompt with text."""

    async def write(self, prompt: str, *, seed: int = 0) -> str:
        """The completion. The seed is a wish; a model behind an endpoint may ignore it."""
        ...


class Talker(Protocol):
    """Anything that continues a conversation with text."""

    async def chat(self, messages: Sequence[Message], *, seed: int = 0) -> str:
        """What the assistant says next. The seed is a wish; a model behind an endpoint may ignore it."""
        ...


@dataclass(frozen=True, slots=True)
class Prices:
    """What a million tokens cost, in any one currency."""

    prompt: float
    completion: float

    def of(self, prompt_tokens: int, completion_tokens: int) -> float:
        """The cost of some tokens."""
        return (self.prompt * prompt_tokens + self.completion * completion_tokens) / 1e6


@dataclass
class Usage:
    """What was asked and spent.

    Attributes:
        requests: answered by the endpoint.
        remembered: answered from memory.
        retries: attempts after the first.
        prompt_tokens, completion_tokens: as the endpoint counts them.
        cost: in the currency of the prices; 0 where there are none.
    """

    requests: int = 0
    remembered: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0


@dataclass
class Endpoint:
    """`POST <base_url>/chat/completions`.

    Attributes:
        base_url: such as "http://localhost:8000/v1".
        model: the name that the endpoint knows it by.
        key_variable: environment variable that holds the key, where one is needed.
        temperature, max_tokens: of the completion.
        extra: further fields of the request; a field that is None is left out of it ("seed", for endpoints that
            refuse one).
        concurrency: most requests in flight.
        tries: attempts per request; pauses grow as `pause * 2 ** attempt` with jitter, or as long as the server asks,
            and never exceed `longest_pause` seconds. A server that limits its rate is left alone by all requests.
        timeout: seconds for one attempt.
        prices: what tokens cost; None counts no cost.
        budget: most that may be spent; the requests in flight when it is reached are still paid. None: no limit.
        answers: memory of answers by the exact request; None asks every time.
        usage: totals so far.
    """

    base_url: str
    model: str
    key_variable: str | None = None
    temperature: float = 0.0
    max_tokens: int = 1024
    extra: Mapping[str, Any] = field(default_factory=dict)
    concurrency: int = 8
    tries: int = 5
    pause: float = 0.5
    longest_pause: float = 30.0
    timeout: float = 120.0
    prices: Prices | None = None
    budget: float | None = None
    answers: Answers | None = None
    usage: Usage = field(default_factory=Usage)
    _client: httpx.AsyncClient | None = field(default=None, repr=False)
    _gate: asyncio.Semaphore | None = field(default=None, repr=False)
    _loop: asyncio.AbstractEventLoop | None = field(default=None, repr=False)
    _pending: dict[str, asyncio.Future[None]] = field(default_factory=dict, repr=False)
    _quiet_until: float = field(default=0.0, repr=False)

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            UserError: there is a budget and no price.
        """
        if self.budget is not None and self.prices is None:
            raise UserError(f"A budget for {self.base_url} needs prices: say what a million tokens cost.")

    async def write(self, prompt: str, *, seed: int = 0) -> str:
        """Complete a prompt; see `chat`."""
        return await self.chat((Message.user(prompt),), seed=seed)

    async def chat(self, messages: Sequence[Message], *, seed: int = 0) -> str:
        """What the assistant says next.

        Where there is a memory, an answer that is in it is not asked for again, and a question that is being asked
        already is waited for.

        Raises:
            UserError: the endpoint refused the request, did not answer in all tries, or the budget is spent.
        """
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [{"role": m.role, "content": m.text} for m in messages],
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "seed": seed % 2**31,
        } | dict(self.extra)
        body = {name: value for name, value in body.items() if value is not None}
        self._ready()
        if self.answers is None:
            return await self._ask(body, seed)
        key = json.dumps([self.base_url, body], sort_keys=True, ensure_ascii=False)
        while True:
            known = self.answers.get(key)
            if known is not None:
                self.usage.remembered += 1
                return known
            running = self._pending.get(key)
            if running is None:
                break
            await asyncio.wait([running])  # whoever asks first; where that fails, the next one asks
        mine = self._pending[key] = asyncio.get_running_loop().create_future()
        try:
            return self.answers.put(key, await self._ask(body, seed))
        finally:
            del self._pending[key]
            mine.set_result(None)

    async def close(self) -> None:
        """Close the connections; the endpoint can be used again after."""
        client, self._client, self._gate = self._client, None, None
        if client is not None:
            await client.aclose()

    async def _ask(self, body: Mapping[str, Any], seed: int) -> str:
        problem = ""
        for attempt in range(self.tries):
            wait: str | None = None
            limited = False
            client, gate = self._ready()
            async with gate:
                await self._rest()
                self._check_budget()
                try:
                    reply = await client.post(f"{self.base_url.rstrip('/')}/chat/completions", json=body)
                except httpx.HTTPError as error:
                    problem = f"{type(error).__name__}: {error}".rstrip(": ")
                else:
                    if reply.status_code == 200:
                        return self._take(reply)
                    problem = f"HTTP {reply.status_code}: {reply.text[:200]}"
                    if reply.status_code not in RETRIED:
                        raise UserError(f"{self.base_url} refused the request ({problem}). Check model name and key.")
                    wait, limited = reply.headers.get("retry-after"), reply.status_code == 429
            if attempt + 1 < self.tries:
                self.usage.retries += 1
                pause = self._pause(attempt, wait, seed)
                if limited:
                    self._quiet_until = max(self._quiet_until, asyncio.get_running_loop().time() + pause)
                await asyncio.sleep(pause)
        raise UserError(f"{self.base_url} did not answer in {self.tries} tries; the last one: {problem}.")

    async def _rest(self) -> None:
        """Wait as long as the server has asked all requests to."""
        while (left := self._quiet_until - asyncio.get_running_loop().time()) > 0:
            await asyncio.sleep(left)

    def _check_budget(self) -> None:
        if self.budget is not None and self.usage.cost >= self.budget:
            used = self.usage
            raise UserError(
                f"The budget of {self.budget:g} for {self.base_url} is spent: {used.cost:.4g} after {used.requests} "
                f"requests with {used.prompt_tokens:,} tokens read and {used.completion_tokens:,} written. "
                "Raise the budget to go on."
            )

    def _ready(self) -> tuple[httpx.AsyncClient, asyncio.Semaphore]:
        """Connections and gate of the running loop; those of an earlier loop are of no use any more."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._gate is None or self._loop is not loop:
            if self._loop is not loop:
                self._pending.clear()
                self._quiet_until = 0.0
            headers = {}
            if self.key_variable:
                key = os.environ.get(self.key_variable)
                if not key:
                    raise UserError(f"The environment variable {self.key_variable} is not set; it must hold the key.")
                headers["Authorization"] = f"Bearer {key}"
            self._client = httpx.AsyncClient(headers=headers, timeout=self.timeout)
            self._gate = asyncio.Semaphore(self.concurrency)
            self._loop = loop
        return self._client, self._gate

    def _take(self, reply: httpx.Response) -> str:
        try:
            record: dict[str, Any] = reply.json()
            text = record["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise UserError(f"{self.base_url} answered in another form than a chat completion: {error}.") from error
        if not isinstance(text, str):
            raise UserError(
                f"{self.base_url} answered without text (a tool call or a refusal). Use a plain chat model."
            )
        usage = record.get("usage") or {}
        read, written = int(usage.get("prompt_tokens", 0)), int(usage.get("completion_tokens", 0))
        self.usage.requests += 1
        self.usage.prompt_tokens += read
        self.usage.completion_tokens += written
        if self.prices is not None:
            self.usage.cost += self.prices.of(read, written)
        return text

    def _pause(self, attempt: int, asked: str | None, seed: int) -> float:
        try:
            given = float(asked or "")
        except ValueError:
            given = math.nan
        if math.isfinite(given):
            return min(max(given, 0.0), self.longest_pause)
        jitter = 0.5 + hashed_uniform("pause", seed, attempt)
        return min(self.pause * 2.0**attempt * jitter, self.longest_pause)
