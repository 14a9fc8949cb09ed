"""A language model behind an OpenAI-compatible endpoint: bounded concurrency, retries with pauses, token counts."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from typing import Any, Protocol

import httpx

from rlready.errors import UserError
from rlready.seeds import hashed_uniform

RETRIED = frozenset({408, 409, 425, 429, 500, 502, 503, 504})


class Writer(Protocol):
    """Anything that completes a prompt with text."""

    async def write(self, prompt: str, *, seed: int = 0) -> str:
        """The completion. The seed is a wish; a model behind an endpoint may ignore it."""
        ...


@dataclass
class Usage:
    """What was asked and spent."""

    requests: int = 0
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


@dataclass
class Endpoint:
    """`POST <base_url>/chat/completions` with one user message.

    Attributes:
        base_url: such as "http://localhost:8000/v1".
        model: the name that the endpoint knows it by.
        key_variable: environment variable that holds the key, where one is needed.
        temperature, max_tokens: of the completion.
        concurrency: most requests in flight.
        tries: attempts per request; pauses grow as `pause * 2 ** attempt` with jitter, or as long as the server asks,
            and never exceed `longest_pause` seconds.
        timeout: seconds for one attempt.
        usage: totals so far.
    """

    base_url: str
    model: str
    key_variable: str | None = None
    temperature: float = 0.0
    max_tokens: int = 1024
    concurrency: int = 8
    tries: int = 5
    pause: float = 0.5
    longest_pause: float = 30.0
    timeout: float = 120.0
    usage: Usage = field(default_factory=Usage)
    _client: httpx.AsyncClient | None = field(default=None, repr=False)
    _gate: asyncio.Semaphore | None = field(default=None, repr=False)

    async def write(self, prompt: str, *, seed: int = 0) -> str:
        """Complete a prompt.

        Raises:
            UserError: the endpoint refused the request, or did not answer in all tries.
        """
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": prompt}],
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            "seed": seed % 2**31,
        }
        client, gate = self._ready()
        problem = ""
        for attempt in range(self.tries):
            wait: str | None = None
            async with gate:
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
                    wait = reply.headers.get("retry-after")
            if attempt + 1 < self.tries:
                self.usage.retries += 1
                await asyncio.sleep(self._pause(attempt, wait, seed))
        raise UserError(f"{self.base_url} did not answer in {self.tries} tries; the last one: {problem}.")

    async def close(self) -> None:
        """Close the connections; the endpoint can be used again after."""
        client, self._client, self._gate = self._client, None, None
        if client is not None:
            await client.aclose()

    def _ready(self) -> tuple[httpx.AsyncClient, asyncio.Semaphore]:
        if self._client is None or self._gate is None:
            headers = {}
            if self.key_variable:
                key = os.environ.get(self.key_variable)
                if not key:
                    raise UserError(f"The environment variable {self.key_variable} is not set; it must hold the key.")
                headers["Authorization"] = f"Bearer {key}"
            self._client = httpx.AsyncClient(headers=headers, timeout=self.timeout)
            self._gate = asyncio.Semaphore(self.concurrency)
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
        self.usage.requests += 1
        self.usage.prompt_tokens += int(usage.get("prompt_tokens", 0))
        self.usage.completion_tokens += int(usage.get("completion_tokens", 0))
        return text

    def _pause(self, attempt: int, asked: str | None, seed: int) -> float:
        try:
            return min(max(float(asked or ""), 0.0), self.longest_pause)
        except ValueError:
            jitter = 0.5 + hashed_uniform("pause", seed, attempt)
            return min(self.pause * 2.0**attempt * jitter, self.longest_pause)
