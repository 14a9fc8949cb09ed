"""From log files to a cleaned store of episodes, with what was understood of them.

store/                the episodes in the order of the log, duplicates left out
understanding.json    see `Understanding`
dropped.jsonl         what could not be read: file, line, reason
facts.json            the system prompt that most runs share, and the tools' schemas
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlready.aio import run_sync
from rlready.dreaming.understand import Reading, Understanding
from rlready.errors import UserError
from rlready.experience.episode import LoggedEpisode
from rlready.experience.logs import LogReport, episode_of, read_logs, system_of
from rlready.experience.recording import Recording
from rlready.experience.store import ExperienceStore
from rlready.run_files import dump_json, read_jsonl, write_atomic
from rlready.tasks.scoring import RewardFn, as_scorer
from rlready.types import Message, Task, Trajectory, Turn, Verdict

_ENDS = 1 << 16


@dataclass(frozen=True)
class Facts:
    """What all runs share.

    Attributes:
        rules: the commonest system prompt.
        tools: schemas by order of appearance, the first of each name.
    """

    rules: str
    tools: tuple[Mapping[str, Any], ...]


def fingerprint(paths: Sequence[str | Path]) -> dict[str, str]:
    """What tells whether files are the ones they were: size, time of change and a hash of both ends, by path.

    Args:
        paths: files, or folders with all that is in them.

    Raises:
        UserError: there is no such file.
    """
    found: dict[str, str] = {}
    for path in map(Path, paths):
        if not path.exists():
            raise UserError(f"There is no file or folder {path}.")
        files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in files:
            stat = file.stat()
            with file.open("rb") as f:
                hashed = hashlib.blake2b(f.read(_ENDS), digest_size=8)
                f.seek(max(0, stat.st_size - _ENDS))
                hashed.update(f.read(_ENDS))
            found[str(file)] = f"{stat.st_size}:{stat.st_mtime_ns}:{hashed.hexdigest()}"
    return found


def read(
    paths: Sequence[str | Path],
    folder: Path,
    *,
    rewards: str | Path | None = None,
    verifier: RewardFn | None = None,
    random: Sequence[str] = (),
    on_progress: Callable[[int], None] | None = None,
) -> Understanding:
    """Read logs into a folder, which is empty.

    Args:
        paths: files or folders.
        folder: where the results go.
        rewards: a file of `id, reward`.
        verifier: scores a run instead of the log's reward; a run that it cannot judge stays unjudged.
        random: sources that are random play.
        on_progress: called with the number of runs read so far.

    Raises:
        UserError: a file is missing, holds nothing that can be read, or the disk is full.
    """
    report = LogReport()
    reading = Reading(random=random)
    systems: dict[str, int] = {}
    runs = Counter[int]()
    kept: list[tuple[LoggedEpisode, int, str]] = []
    tools: dict[str, Mapping[str, Any]] = {}
    for recording in read_logs([Path(p) for p in paths], rewards=rewards, report=report):
        system = system_of(recording)
        own = systems.setdefault(system, len(systems))
        runs[own] += 1
        episode, _ = episode_of(recording, rules=system)
        if verifier is not None:
            episode = run_sync(verified(episode, recording, verifier))
        for tool in recording.tools:
            tools.setdefault(json.dumps(tool, sort_keys=True), tool)
        if reading.add(recording, episode, system=system):
            kept.append((episode, own, recording.place))
        if on_progress is not None:
            on_progress(reading.runs)
    lost = [{"file": d.file, "line": d.line, "number": d.number, "reason": d.reason} for d in report.dropped]
    with (folder / "dropped.jsonl").open("w", encoding="utf-8") as f:
        f.writelines(json.dumps(d, ensure_ascii=False) + "\n" for d in lost)
    if not kept:
        raise UserError(_nothing(paths, lost))
    common = max(runs, key=lambda i: (runs[i], -i))
    prompts = list(systems)
    with ExperienceStore(folder / "store") as store:
        for episode, own, place in kept:
            store.append(episode if own == common else with_rules(episode, prompts[own]), {"place": place})
    understood = reading.done(report)
    write_atomic(folder / "facts.json", dump_json({"rules": prompts[common], "tools": list(tools.values())}, indent=1))
    write_atomic(folder / "understanding.json", dump_json(understood.to_json(), indent=1))
    return understood


def with_rules(episode: LoggedEpisode, system: str) -> LoggedEpisode:
    """An episode whose system prompt is not the one that most runs share: it goes in front of the instruction."""
    return replace(episode, instruction=f"{system}\n\n{episode.instruction}") if system else episode


async def verified(episode: LoggedEpisode, recording: Recording, verifier: RewardFn) -> LoggedEpisode:
    """An episode with the verifier's word instead of the log's; unjudged where the verifier could not judge.

    The verifier is shown the run as a trajectory: its actions as turns, the replies as what the next turn saw. The
    task's `data` holds "task_id", "instruction" and what the log says of the run besides.
    """
    prompt = tuple(_before_assistant(recording.messages))
    data = {**recording.meta, "task_id": episode.task_id, "instruction": episode.instruction}
    task = Task(prompt, data, id=episode.task_id)
    turns: list[Turn] = []
    context = prompt
    for i, (action, reply) in enumerate(zip(episode.actions, episode.replies, strict=True)):
        turns.append(Turn([], [], parent=i - 1 if i else None, context=context, text=action))
        context = (Message.user(reply),)
    trajectory = Trajectory(task, turns, seed=episode.seed, truncated=not episode.finished)
    trajectory.info["last_reply"] = episode.replies[-1] if episode.replies else ""
    score = await as_scorer(verifier)(task, trajectory)
    if score.verdict is Verdict.GRADER_FAILED:
        return replace(episode, judged=False, success=False, reward=None)
    return replace(episode, judged=True, success=score.verdict is Verdict.RIGHT, reward=float(score.value))


def dropped(folder: Path) -> tuple[dict[str, Any], ...]:
    """The records that could not be read, as `read` listed them."""
    return tuple(read_jsonl(folder / "dropped.jsonl"))


def stored(folder: Path) -> tuple[list[LoggedEpisode], Facts]:
    """The episodes and facts that `read` wrote."""
    with ExperienceStore(folder / "store", readonly=True) as store:
        episodes = [entry.episode for entry in store]
    facts = json.loads((folder / "facts.json").read_text(encoding="utf-8"))
    return episodes, Facts(facts["rules"], tuple(facts["tools"]))


def _before_assistant(messages: Sequence[Message]) -> Iterator[Message]:
    for message in messages:
        if message.role == "assistant":
            return
        yield message


def _nothing(paths: Sequence[str | Path], lost: Sequence[Mapping[str, Any]]) -> str:
    where = ", ".join(map(str, paths))
    if not lost:
        return f"No run was found in {where}. Give JSON or JSONL files, or a folder of them."
    first = lost[0]
    more = f" {len(lost)} records were dropped; the first:" if len(lost) > 1 else ""
    return f"No run could be read from {where}.{more} {first['file']} line {first['line']}: {first['reason']}"
