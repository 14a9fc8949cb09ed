"""A two-problem phone as a world, written out by hand, and a model that plays it from a script."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlready.dream.format import DreamFormat
from rlready.dream.memory import Notes
from rlready.experience.episode import LoggedEpisode
from rlready.policy.base import Sample, SampleRequest
from rlready.seeds import derive

ACTIONS = ("look", "fix air", "fix sim", "done")
Writer = Callable[[str, SampleRequest], str]


def form(**switches: Any) -> DreamFormat:
    return DreamFormat(
        ACTIONS, "done", ("air_on", "air_off", "sim_out", "sim_in", "ok"), ("air", "sim"), ("phone", "dead"), **switches
    )


def logged(task: str = "k1", success: bool = True, finished: bool = True, seed: int = 0) -> tuple[LoggedEpisode, Notes]:
    """Air is on and sim is out; the agent looks, mends one or both, and closes."""
    actions = ["look", "fix air", *(["fix sim"] if success else []), *(["done"] if finished else [])]
    replies = ["air_on sim_out", "ok", *(["ok"] if success else []), *([""] if finished else [])]
    left = [("air", "sim"), ("sim",), *([()] if success else []), *([() if success else ("sim",)] if finished else [])]
    episode = LoggedEpisode(
        task, "phone dead", tuple(actions), tuple(replies), success and finished, finished, "agent", 0, seed
    )
    return episode, Notes(("air", "sim"), tuple(left))


class ScriptedSampler:
    """A sampler whose completions are written by a function of the prompt's words; it counts what it was asked."""

    def __init__(self, form: DreamFormat, write: Writer) -> None:
        self.form, self.write = form, write
        self.version = 0
        self.requests: list[SampleRequest] = []
        self.released: list[Any] = []

    async def sample(self, requests: Sequence[SampleRequest]) -> list[Sample]:
        out = []
        for request in requests:
            self.requests.append(request)
            words = self.write(self.form.decode(request.prompt_ids), request).split()
            ids = [self.form.ids[w] for w in words]
            out.append(Sample(ids, [0.0] * len(ids), "end" if ids and ids[-1] in request.params.stop_ids else "length"))
        return out

    def load(self, state: Mapping[str, Any], version: int) -> None:
        self.version = version

    def release(self, session: Any) -> None:
        self.released.append(session)


def phone(prompt: str, request: SampleRequest) -> str:
    """The true dynamics of the phone, read off the prompt: a perfect experience model.

    The hidden start is drawn from the request's seed.
    """
    if prompt.endswith("<card>"):
        return ["air <go>", "sim <go>", "air sim <go>"][request.seed % 3]
    head, *steps = prompt.split(" <go> ")
    left = head.split(" <card> ")[1].split()
    done = [s.split(" (")[0] for s in steps]
    for action in done:
        if action.startswith("fix"):
            left = [w for w in left if w != action.split()[1]]
    now = " ".join(left)
    if done[-1] == "done":
        return f"{now} <so> {'<wrong>' if left else '<right>'}"
    if done[-1] == "look":
        return f"{now} <so> {'air_on' if 'air' in left else 'air_off'} {'sim_out' if 'sim' in left else 'sim_in'} <go>"
    return f"{now} <so> ok <go>"


def garbled(every: int, writer: Writer = phone) -> Writer:
    """A model whose answers to one in `every` noises cannot be read."""

    def write(prompt: str, request: SampleRequest) -> str:
        if not prompt.endswith("<card>") and derive("garble", request.seed) % every == 0:
            return "<so> <so> ok <go>"
        return writer(prompt, request)

    return write
