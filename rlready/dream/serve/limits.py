"""What a server allows, and how it says no: one table of codes for every transport."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from rlready.errors import UserError

STATUS: Mapping[str, int] = {
    "INVALID_JSON": 400,
    "VALIDATION_ERROR": 422,
    "UNKNOWN_TYPE": 422,
    "TOO_LARGE": 413,
    "FORBIDDEN": 403,
    "UNKNOWN_SESSION": 404,
    "SESSION_EXPIRED": 410,
    "SESSION_CLOSED": 410,
    "NO_EPISODE": 409,
    "EPISODE_OVER": 409,
    "EPISODE_FAILED": 409,
    "STILL_WORKING": 409,
    "UNSEEN_REPLY": 409,
    "CANCELLED": 409,
    "EXECUTION_ERROR": 500,
    "FACTORY_ERROR": 500,
    "CAPACITY_REACHED": 503,
    "QUEUE_FULL": 503,
    "CLOSING": 503,
    "TIMEOUT": 504,
}
"""Every code and its HTTP status. Names that openenv-core knows are used where it has one."""


class Refusal(Exception):
    """Why a request is not answered with an observation.

    Attributes:
        code: one of `STATUS`.
        message: a sentence that says what is wrong and what to do.
        retry_after: seconds after which another try may succeed; None where trying again does not help.
        request_id: which request it is about.
    """

    def __init__(
        self, code: str, message: str, *, retry_after: int | None = None, request_id: str | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after = retry_after
        self.request_id = request_id

    @property
    def status(self) -> int:
        """The HTTP status."""
        return STATUS[self.code]

    def to_json(self) -> dict[str, Any]:
        """The body of an error: `message`, `code`, and what is known of `request_id` and `retry_after`."""
        out: dict[str, Any] = {"message": self.message, "code": self.code}
        if self.request_id is not None:
            out["request_id"] = self.request_id
        if self.retry_after is not None:
            out["retry_after"] = self.retry_after
        return out


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a server.

    Attributes:
        max_sessions: episodes held open at once; each holds an environment.
        idle_seconds: a session without a request for this long is closed, and its environment with it.
        deadline: seconds for a request, waiting in the queue and the environment's time together. The default is
            shorter than the 60 s after which openenv-core's client stops listening, so that the server always speaks
            first and no reply is left over for the next request.
        queue: requests that may wait for their turn; further ones are told that the server is busy.
        at_once: requests that environments work on at once. Simulators batch what they are asked at once.
        max_bytes: the largest request.
        max_steps: an episode is truncated after this many steps; None leaves that to the environment.
        grace: seconds for an environment to let go when it is cancelled or closed.
    """

    max_sessions: int = 256
    idle_seconds: float = 300.0
    deadline: float = 50.0
    queue: int = 256
    at_once: int = 256
    max_bytes: int = 1_000_000
    max_steps: int | None = None
    grace: float = 5.0

    def __post_init__(self) -> None:
        """Check them.

        Raises:
            UserError: one is not positive.
        """
        for f in fields(self):
            value = getattr(self, f.name)
            least = 0 if f.name == "queue" else 1 if isinstance(value, int) else 1e-9
            if value is not None and value < least:
                raise UserError(f"serve: {f.name} must be positive, but is {value}.")
