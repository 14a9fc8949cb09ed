"""openenv-core's client, with request ids.

The stock client takes the next message for its answer. That is safe with this server as long as the server speaks
first: its deadline is shorter than the client's. Where a client wants to give up earlier (its own timeout, a cancelled
task), a reply may already be on its way, and the stock client would take it for the answer to its next request. This
one numbers its requests, skips what answers another, and asks again for what it never got:

    async with DreamClient(base_url=server.url) as env:
        result = await env.reset(seed=1)
        result = await env.step({"text": "..."})
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from rlready.errors import UserError


def __getattr__(name: str) -> Any:
    """Build the class when it is first asked for: its base needs openenv-core, which this module does not."""
    if name == "DreamClient":
        return client_class()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@cache
def client_class() -> Any:
    """The class `DreamClient`.

    Raises:
        UserError: openenv-core is not installed.
    """
    try:
        from openenv.core.generic_client import GenericEnvClient  # type: ignore[import-untyped]
    except ImportError as error:
        raise UserError(f"DreamClient builds on openenv-core: pip install openenv-core. ({error})") from error

    class DreamClient(GenericEnvClient):  # type: ignore[misc]  # the package has no type marker
        """A `GenericEnvClient` whose replies cannot be shifted.

        A step that was given up (its timeout, a cancelled task) is asked for again, under its id, before the next one
        goes out; its reply then stands in `missed`.
        """

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            """Takes what `GenericEnvClient` takes."""
            super().__init__(*args, **kwargs)
            self._ids = itertools.count(1)
            self._open: dict[str, Any] | None = None
            self.missed: dict[str, Any] | None = None

        async def _send_and_receive(self, message: dict[str, Any]) -> dict[str, Any]:
            if message["type"] == "reset":
                self._open = None  # a reset overtakes whatever is under way
            elif message["type"] == "step" and self._open is not None:
                self.missed = await self._exchange(self._open)
            return await self._exchange({**message, "request_id": f"c{next(self._ids)}"})

        async def _exchange(self, message: dict[str, Any]) -> dict[str, Any]:
            """Send, and read until the answer to this very request comes.

            Raises:
                RuntimeError: the server refused, as the stock client says it.
                TimeoutError: no answer in time.
            """
            steps = message["type"] in ("step", "reset")
            if steps:
                self._open = message
            await self._send(message)
            limit = asyncio.get_running_loop().time() + self._message_timeout
            while True:
                left = limit - asyncio.get_running_loop().time()
                reply = json.loads(await asyncio.wait_for(self._ws.recv(), max(left, 0.0)))
                if reply.get("request_id") == message["request_id"]:
                    break
            data: Mapping[str, Any] = reply.get("data", {})
            if reply.get("type") == "error":
                if data.get("code") != "TIMEOUT":
                    self._open = None if steps else self._open
                raise RuntimeError(f"Server error: {data.get('message')} (code: {data.get('code')})")
            if steps:
                self._open = None
            return dict(reply)

    return DreamClient
