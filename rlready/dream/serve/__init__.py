"""A dream, or any other environment of ours, for other tools.

    serve(factory, tasks, port=8000)            HTTP and WebSocket, the protocol of openenv-core's client; and `/mcp`
    with Server(factory, tasks) as server:      the same in a thread; `server.url`
    as_gymnasium(factory, tasks)                a Gymnasium environment in this process
    serve_stdio(factory, tasks, domain)         the domain's tools as an MCP server on standard input and output

Modules: `limits` (what is allowed, how it is refused), `wire` (JSON), `session` (one episode after another; why a late
reply never answers the next request), `sessions` (all of them: capacity, queue, idle ones), `websocket`, `http`,
`server`, `mcp_server`, `client` (openenv-core's client with request ids).

Environments run on the server's event loop. One that blocks it holds up everybody: wrap it in
`envs.process.ProcessEnv`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rlready.dream.serve.limits import Limits, Refusal
from rlready.dream.serve.server import Server, serve
from rlready.envs.base import EnvFactory
from rlready.tasks.base import TaskSet
from rlready.types import Task

if TYPE_CHECKING:
    from rlready.dream.domain import Domain
    from rlready.envs.gym import ToGym

__all__ = ["Limits", "Refusal", "Server", "as_gymnasium", "serve", "serve_stdio"]


def as_gymnasium(
    env_factory: EnvFactory,
    tasks: TaskSet | Sequence[Task],
    *,
    actions: Sequence[str] | None = None,
    max_steps: int | None = None,
    max_length: int = 100_000,
) -> ToGym:
    """A `gymnasium.Env` in this process: `envs.gym.to_gym`, see there.

    Raises:
        UserError: there are no tasks.
    """
    from rlready.envs.gym import to_gym

    return to_gym(env_factory, tasks, actions=actions, max_steps=max_steps, max_length=max_length)


def serve_stdio(env_factory: EnvFactory, tasks: TaskSet | Sequence[Task], domain: Domain, **options: Any) -> None:
    """Serve one MCP client over standard input and output: `mcp_server.serve_stdio`, see there.

    Raises:
        UserError: the `mcp` package is missing, or as there.
    """
    from rlready.dream.serve.mcp_server import serve_stdio as run

    run(env_factory, tasks, domain, **options)
