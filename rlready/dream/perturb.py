"""Trouble on purpose: what real tools do now and then, added to a dream in code, at stated rates.

    error      a transient error: the same call made again goes through
    slow       the call times out once; made again it goes through, and it costs a step like any other
    partial    a list or object in a JSON reply lacks a part, and says so; made again it is whole
    page       a long list comes in pages; the same call made again brings the next page, then the first again

Whether a call is hit is hashed from the world, the kind, the call and how often it was made, so a group shares its
trouble and the same actions meet the same trouble. Evaluation switches it off. (Controlled perturbation in a dream of
tools raised real scores where an uncontrolled dream did not: Qwen-AgentWorld, arXiv 2606.24597.)
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rlready.dream.base import Action, Reply
from rlready.errors import UserError, did_you_mean
from rlready.seeds import hashed_uniform, rng

Kind = Literal["error", "slow", "partial", "page"]
KINDS: tuple[Kind, ...] = ("error", "slow", "partial", "page")

Shown = Sequence[tuple[Action, Reply]]
"""The episode so far as the agent saw it, trouble included. Simulators and state see what would have been true."""

ERROR = "Error: the service is temporarily unavailable. Try again."
SLOW = "Error: the request timed out. Try again."


@dataclass(frozen=True, slots=True)
class Perturb:
    """One kind of trouble.

    Attributes:
        kind: see the module's table.
        rate: share of calls that are hit, of those it can apply to.
        tools: only these; empty for all.
        size: items per page ("page"), share of the items that is kept ("partial", in percent).
    """

    kind: Kind
    rate: float
    tools: tuple[str, ...] = ()
    size: int = 0

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            UserError: no such kind, or the rate is no share.
        """
        if self.kind not in KINDS:
            raise did_you_mean("perturbation", self.kind, KINDS)
        if not 0 <= self.rate <= 1:
            raise UserError(f"perturb {self.kind}: the rate {self.rate} must lie in [0, 1].")
        object.__setattr__(self, "tools", tuple(self.tools))

    def __str__(self) -> str:
        """As `parse` reads it; the size, which it does not take, behind a colon."""
        tools = f"@{','.join(self.tools)}" if self.tools else ""
        return f"{self.kind}={self.rate:g}{tools}{f':{self.size}' if self.size else ''}"

    @classmethod
    def parse(cls, text: str) -> Perturb:
        """From `kind=rate`, such as `error=0.05`, or `kind=rate@tool,tool`.

        Raises:
            UserError: it cannot be read.
        """
        head, _, tools = text.partition("@")
        kind, found, rate = head.partition("=")
        try:
            number = float(rate)
        except ValueError:
            found = ""
        if not found:
            raise UserError(
                f'perturb "{text}" cannot be read. Write kind=rate, such as error=0.05; kinds: {", ".join(KINDS)}.'
            )
        return cls(kind.strip(), number, tuple(t.strip() for t in tools.split(",") if t.strip()))  # type: ignore[arg-type]


def before(perturb: Sequence[Perturb], world: int, shown: Shown, action: Action) -> Reply | None:
    """The trouble that keeps a call from being executed, if there is any: nothing changes then."""
    made = sum(a.text == action.text for a, _ in shown)
    for p in perturb:
        text = {"error": ERROR, "slow": SLOW}.get(p.kind)
        if text is None or not _applies(p, action):
            continue
        # One call in a row is hit at most once: trouble is transient.
        last = next((r for a, r in reversed(shown) if a.text == action.text), None)
        if last is not None and last.origin == "perturbed":
            continue
        if hashed_uniform(world, "perturb", p.kind, action.text, made) < p.rate:
            return Reply(text, failed=True, origin="perturbed", note=p.kind)
    return None


def after(perturb: Sequence[Perturb], world: int, shown: Shown, action: Action, reply: Reply) -> Reply:
    """A reply as trouble lets it through; the state is not concerned."""
    if reply.failed or reply.done:
        return reply
    for p in perturb:
        if p.kind not in ("partial", "page") or not _applies(p, action):
            continue
        if hashed_uniform(world, "perturb", p.kind, action.text) >= p.rate:
            continue
        made = 0  # how often this call was made in a row before
        for a, _ in reversed(shown):
            if a.text != action.text:
                break
            made += 1
        text = _partial(reply.text, p, world, action, made) if p.kind == "partial" else _page(reply.text, p, made)
        if text is not None:
            return replace(reply, text=text, origin="perturbed", note=p.kind)
    return reply


def _applies(p: Perturb, action: Action) -> bool:
    return bool(action.tool) and (not p.tools or action.tool in p.tools)


def _document(text: str) -> Any:
    if text[:1] not in "[{":
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None


def _partial(text: str, p: Perturb, world: int, action: Action, made: int) -> str | None:
    """A reply without some of its parts, the first time."""
    value = _document(text)
    if made or not isinstance(value, (list, dict)) or len(value) < 2:
        return None
    kept = max(1, len(value) * (p.size or 50) // 100)
    if kept >= len(value):
        return None
    chosen = set(rng(world, "partial", action.text).sample(range(len(value)), kept))
    if isinstance(value, list):
        part: Any = [item for i, item in enumerate(value) if i in chosen]
    else:
        part = {key: item for i, (key, item) in enumerate(value.items()) if i in chosen}
    return json.dumps({"partial": True, "of": len(value), "result": part}, ensure_ascii=False)


def _page(text: str, p: Perturb, made: int) -> str | None:
    """One page of a list."""
    value = _document(text)
    size = p.size or 5
    if not isinstance(value, list) or len(value) <= size:
        return None
    pages = -(-len(value) // size)
    page = made % pages
    body = {"page": page + 1, "pages": pages, "result": value[page * size : (page + 1) * size]}
    return json.dumps(body, ensure_ascii=False)
