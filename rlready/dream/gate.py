"""The gate: three checks that a dream must pass before anything is trained in it.

    determinism        the same actions get the same replies: within a group, among other episodes, in a fresh session
    format             one parser, one template, one set of flags for logs, dream and deployment
    invalid actions    what is no action is refused, changes nothing and earns nothing

Each says what failed, why that matters and how to mend it. Nothing passes for want of a case: a check without
anything to check fails. The gate needs no more than an environment, so anything that acts as a dream can be tested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlready.dream.checks import replay
from rlready.dream.measure.determinism import Script, determinism, digest
from rlready.dream.measure.form import form
from rlready.dream.measure.invalid import refusals
from rlready.dream.measure.jsonable import from_json, to_json
from rlready.envs.base import EnvFactory
from rlready.errors import UserError
from rlready.experience.episode import LoggedEpisode

if TYPE_CHECKING:
    from rlready.dream.domain import Domain

_WHY = {
    "determinism": (
        "Members of a group are compared with one another. Where the same actions are answered differently, the "
        "difference in their rewards is noise, and the agent learns the noise."
    ),
    "format": (
        "An agent that learns to read and write another form than its real environment uses loses there what it "
        "gained here, whatever it has learned."
    ),
    "invalid actions": (
        "A dream that tolerates what the real environment refuses teaches the agent to do it. In others' runs such "
        "agents came out worse than they went in."
    ),
}
_MEND = {
    "determinism": (
        "Make every reply a function of (world, history, action): decode greedily, draw noise from `Moment.noise`, "
        "keep no state between episodes, hash the world from the task and its seed alone."
    ),
    "format": (
        "Let the environment use `Domain.parse`, `Domain.prompt` and `Domain.answer`, and deploy with the same; if the "
        "real environment changed, fit the gym again on its new logs."
    ),
    "invalid actions": (
        "Put `ActionChecks` before all other layers, with the tools' schemas (`Domain.learn(tools=...)`), and leave "
        "refused actions out of what the simulator and the state see."
    ),
}


@dataclass(frozen=True)
class GateCheck:
    """One check.

    Attributes:
        name: "determinism", "format" or "invalid actions".
        failures: what failed, a sentence with an example each; empty where it passed.
        why: why it matters.
        mend: what to do about it.
        measured: the numbers behind it.
        notes: what could not be checked.
    """

    name: str
    failures: tuple[str, ...]
    why: str
    mend: str
    measured: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """True where nothing failed."""
        return not self.failures


@dataclass(frozen=True)
class GateReport:
    """What the gate found.

    Attributes:
        checks: the three.
        fingerprint: of the domain that was checked.
        transcripts: a hash of every script's episode by task and number, to be compared in another session.
        seed: of the worlds.
    """

    checks: tuple[GateCheck, ...]
    fingerprint: str
    transcripts: dict[str, str]
    seed: int

    @property
    def passed(self) -> bool:
        """True where training may start."""
        return all(check.passed for check in self.checks)

    def check(self, name: str) -> GateCheck:
        """One check by name.

        Raises:
            KeyError: there is none of this name.
        """
        return {c.name: c for c in self.checks}[name]

    def __str__(self) -> str:
        """For people: a line a check, and under a failed one what failed, why it matters, how to mend it."""
        lines = [f"gate: {'passed' if self.passed else 'not passed'} (parser and template {self.fingerprint})"]
        for check in self.checks:
            lines.append(f"  {'ok    ' if check.passed else 'FAILED'} {check.name}")
            if not check.passed:
                lines += [f"         - {failure}" for failure in check.failures]
                lines += [f"         why: {check.why}", f"         mend: {check.mend}"]
            lines += [f"         note: {note}" for note in check.notes]
        return "\n".join(lines)

    def raise_for_failure(self) -> None:
        """Stop where the gate is not passed.

        Raises:
            UserError: a check failed; the message holds what failed and how to mend it.
        """
        if not self.passed:
            raise UserError(f"The dream is not fit to train in.\n{self}\nTo train all the same: --force.")

    def to_json(self) -> dict[str, Any]:
        """JSON-ready."""
        record: dict[str, Any] = to_json(self)
        record["passed"] = self.passed
        for check, written in zip(self.checks, record["checks"], strict=True):
            written["passed"] = check.passed
        return record

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> GateReport:
        """Inverse of `to_json`."""
        return from_json(cls, record)


async def gate(
    env: EnvFactory,
    domain: Domain,
    scripts: Sequence[Script],
    *,
    real: EnvFactory | None = None,
    sessions: Sequence[EnvFactory] = (),
    known: Mapping[str, str] | None = None,
    recorded: Sequence[LoggedEpisode] = (),
    fingerprint: str = "",
    reads: frozenset[str] = frozenset(),
    replays: int = 6,
    seed: int = 0,
) -> GateReport:
    """Check a dream.

    Args:
        env: makes one episode of the dream, as training will use it, except that trouble on purpose is off.
        domain: parser, template and schemas that training will use.
        scripts: tasks with actions to play, such as recorded ones; a few failed ones belong among them.
        real: the real environment; its first observations and forms are then compared (a few real transitions).
        sessions: the same dream loaded afresh, to be the same world as `env`.
        known: `GateReport.transcripts` of an earlier session of this dream.
        recorded: logged episodes: their actions must parse, their errors must be met here too.
        fingerprint: the one that was hashed into the run; "" where there is none yet.
        reads: tools that change nothing (`StateRules.reads`): in whatever order they ask, they hear the same.
        replays: of each script.
        seed: of the worlds.
    """
    alone = [await replay(env, task, seed, actions) for task, actions in scripts]
    transcripts = {f"{task.id}/{i}": digest(run) for i, ((task, _), run) in enumerate(zip(scripts, alone, strict=True))}
    found = (
        await determinism(env, domain, scripts, alone, sessions=sessions, reads=reads, replays=replays, seed=seed),
        await form(env, domain, scripts, real=real, recorded=recorded, fingerprint=fingerprint, seed=seed),
        await refusals(env, domain, scripts, alone, recorded=recorded, seed=seed),
    )
    moved = sorted(k for k, was in (known or {}).items() if transcripts.get(k, was) != was)
    if moved:
        found[0].failures.append(f"{len(moved)} scripts are another world than in an earlier session: {moved[0]}.")
    if not sessions and not known:
        found[0].notes.append("no fresh session was given, so worlds across sessions were not compared")
    checks = tuple(
        GateCheck(name, tuple(f.failures), _WHY[name], _MEND[name], f.measured, tuple(f.notes))
        for name, f in zip(_WHY, found, strict=True)
    )
    return GateReport(checks, domain.fingerprint, transcripts, seed)
