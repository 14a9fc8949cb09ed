"""Trajectories that were written to a file: ours, ATIF with token ids, or another trainer's rollout dump.

One record a line (split at the newline byte alone), or a JSON list. The keys that were understood are reported, and
what a file does not hold is not guessed. Known names are in `NAMES`.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rlready.doctor.catalogue import explained
from rlready.doctor.selftest import check_spread
from rlready.errors import UserError
from rlready.findings import Findings, Where

NAMES: dict[str, tuple[str, ...]] = {
    "prompt_ids": ("prompt_ids", "prompt_token_ids", "prompt_tokens", "query_ids", "context_ids"),
    "completion_ids": (
        "completion_ids", "completion_token_ids", "response_ids", "response_token_ids", "completion_tokens",
        "output_ids", "output_token_ids", "responses", "action_ids", "token_ids", "tokens",
    ),
    "input_ids": ("input_ids", "sequence_ids", "sequences", "all_ids"),
    "logprobs": (
        "logprobs", "completion_logprobs", "sampling_logprobs", "rollout_log_probs", "rollout_logprobs",
        "sampling_per_token_logps", "response_logprobs", "behaviour_logprobs", "behavior_logprobs",
        "inference_logprobs",
    ),
    "old_logprobs": (
        "old_logprobs", "old_log_probs", "old_per_token_logps", "trainer_logprobs", "learner_logprobs",
        "actor_log_probs",
    ),
    "ref_logprobs": ("ref_logprobs", "ref_log_prob", "ref_log_probs", "ref_per_token_logps", "reference_logprobs"),
    "mask": (
        "mask", "completion_mask", "response_mask", "loss_mask", "action_mask", "assistant_mask", "assistant_masks",
        "assistant_tokens_mask",
    ),
    "advantages": ("advantages", "advantage", "adv"),
    "reward": ("reward", "rewards", "score", "total_reward", "final_reward"),
    "group": ("group", "group_id", "uid", "prompt_id", "problem_id", "task_id", "index"),
    "stop": ("stop", "finish_reason", "stop_reason"),
}  # fmt: skip


@dataclass
class Record:
    """One completion of a file; what is not there is None.

    Attributes:
        place: file and line.
        trajectory, turn: which record of the file, which turn in it.
        prompt: ids seen. completion: ids sampled.
        logprobs, old, mask, advantages: one per completion token.
        reward: of the whole trajectory. group: whatever tells groups apart.
        parent: index of the record that this one continues.
    """

    place: str
    trajectory: int
    turn: int = 0
    prompt: list[int] | None = None
    completion: list[int] | None = None
    logprobs: list[float] | None = None
    old: list[float] | None = None
    mask: list[float] | None = None
    advantages: list[float] | None = None
    reward: float | None = None
    group: str | None = None
    stop: str | None = None
    parent: int | None = None
    wrong: list[str] = field(default_factory=list)

    @property
    def where(self) -> Where:
        """For a finding."""
        return Where(place=self.place, trajectory=self.trajectory, turn=self.turn)


def audit_file(path: Path) -> tuple[Findings, dict[str, str]]:
    """Examine a file of trajectories.

    Returns:
        The findings, and what was understood of the file: its form, records, and its key for each thing.

    Raises:
        UserError: no such file, not JSON, or nothing in it is known.
    """
    found = Findings(str(path))
    raw = _read(path)
    form, records, keys = _understand(path, raw)
    understood = {"form": form, "records": f"{len(raw)} with {len(records)} completions"} | keys
    check_records(records, found)
    missing = [name for name in ("logprobs", "reward", "advantages", "group")
               if all(getattr(r, name) is None for r in records)]  # fmt: skip
    if missing:
        found.warning("keys", f"No record holds {' or '.join(missing)}; those checks were left out.", records[0].where)
    return explained(found, str(path)), understood


def _read(path: Path) -> list[tuple[int, Mapping[str, Any]]]:
    if not path.is_file():
        raise UserError(f"There is no file {path}.")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read as UTF-8 text: {error}.") from error
    out: list[tuple[int, Mapping[str, Any]]] = []
    if path.suffix == ".json":
        try:
            whole = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is not JSON: {error}.") from error
        every = whole if isinstance(whole, list) else [whole]
        out = [(i + 1, r) for i, r in enumerate(every) if isinstance(r, Mapping)]
    else:
        for i, line in enumerate(text.split("\n"), start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{path}, line {i} is not JSON: {error}.") from error
            if isinstance(record, Mapping):
                out.append((i, record))
    if not out:
        raise UserError(f"{path} holds no records (JSON objects).")
    return out


def _understand(path: Path, raw: Sequence[tuple[int, Mapping[str, Any]]]) -> tuple[str, list[Record], dict[str, str]]:
    """Recognise the form by the first record."""
    first = raw[0][1]
    records: list[Record] = []
    keys: dict[str, str] = {}
    if "turns" in first and "task" in first:
        form = "trajectories of rlready"
        keys = {"prompt_ids": "turns.prompt_ids", "completion_ids": "turns.completion_ids",
                "logprobs": "turns.logprobs", "advantages": "turns.advantage", "mask": "turns.trainable",
                "reward": "reward", "group": "task.id"}  # fmt: skip
        for i, (line, record) in enumerate(raw):
            with _readable(path, line, form):
                _ours(f"{path.name}, line {line}", i, record, records)
    elif "steps" in first and isinstance(first["steps"], list):
        form = "ATIF"
        keys = {"prompt_ids": "steps.metrics.prompt_token_ids", "completion_ids": "steps.metrics.completion_token_ids",
                "logprobs": "steps.metrics.logprobs"}  # fmt: skip
        for i, (line, record) in enumerate(raw):
            with _readable(path, line, form):
                _atif(f"{path.name}, line {line}", i, record, records)
    else:
        form = "rollout dump"
        for name, known in NAMES.items():
            hit = next((k for k in known if k in first), None)
            if hit is not None:
                keys[name] = hit
        if "completion_ids" not in keys and "input_ids" not in keys:
            seen = ", ".join(list(first)[:12])
            raise UserError(
                f"{path}, line {raw[0][0]} has no token ids that are known by name (it has: {seen}). Name them "
                "prompt_ids and completion_ids; see docs/doctor.md."
            )
        for i, (line, record) in enumerate(raw):
            with _readable(path, line, form):
                _dump(f"{path.name}, line {line}", i, record, keys, records)
    if not any(r.completion for r in records):
        raise UserError(f"{path} ({form}) holds no sampled token ids, and ids are what is examined.")
    return form, records, keys


@contextmanager
def _readable(path: Path, line: int, form: str) -> Iterator[None]:
    """Say which record is not of the file's form.

    Raises:
        UserError: it is not.
    """
    try:
        yield
    except KeyError as error:
        raise UserError(f"{path}, line {line} is not as the first record ({form}): it has no {error}.") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path}, line {line} ({form}) cannot be read: {error}.") from error


def _ours(place: str, i: int, record: Mapping[str, Any], records: list[Record]) -> None:
    base = len(records)
    for j, turn in enumerate(record["turns"]):
        said = list(turn.get("completion_ids", ()))
        advantage = turn.get("advantage")
        each = advantage if isinstance(advantage, list) or advantage is None else [float(advantage)] * len(said)
        parent = turn.get("parent")
        records.append(Record(
            place, i, j, list(turn.get("prompt_ids", ())), said, list(turn.get("logprobs", ())) or None, None,
            [1.0 if turn.get("trainable", True) else 0.0] * len(said), each, _number(record.get("reward")),
            str(record["task"].get("id")), turn.get("stop", "end"), None if parent is None else base + int(parent),
        ))  # fmt: skip


def _atif(place: str, i: int, record: Mapping[str, Any], records: list[Record]) -> None:
    extra = record.get("extra") or {}
    ours = extra.get("rlready") or {}
    final = record.get("final_metrics") or {}
    holders = (ours, extra, final, final.get("extra") or {}, record)
    reward = next((_number(h.get(k)) for h in holders for k in ("reward", "score") if k in h), None)
    group = (ours.get("task") or {}).get("id") or extra.get("task_id") or record.get("task_id")
    base, turn = len(records), 0
    for step in record["steps"]:
        metrics = step.get("metrics") or {}
        said = metrics.get("completion_token_ids")
        if step.get("source", "agent") != "agent" or not said:
            continue
        told = ((step.get("extra") or {}).get("rlready") or {}).get("turn")
        prompt = _list(metrics.get("prompt_token_ids"))
        parent = _parent(told, prompt, records, base, turn)
        made = Record(
            place, i, turn, prompt, list(said), _list(metrics.get("logprobs")), None, [1.0] * len(said), None, reward,
            None if group is None else str(group), parent=parent,
        )  # fmt: skip
        if told is not None:
            made.stop = told.get("stop", "end")
            made.mask = [float(told.get("trainable", True))] * len(said)
            advantage = told.get("advantage")
            made.advantages = [float(advantage)] * len(said) if isinstance(advantage, (int, float)) else advantage
        records.append(made)
        turn += 1


def _parent(
    told: Mapping[str, Any] | None, prompt: list[int] | None, records: list[Record], base: int, turn: int
) -> int | None:
    """Which record a step continues: as it says, else the one before it where its prompt is as long as that context."""
    if told is not None:
        parent = told.get("parent")
        return None if parent is None else base + int(parent)
    if turn == 0 or prompt is None:
        return None
    before = records[-1]
    whole = len(before.prompt or ()) + len(before.completion or ())
    return len(records) - 1 if len(prompt) >= whole else None  # a shorter one is a context that was rewritten


def _dump(place: str, i: int, record: Mapping[str, Any], keys: Mapping[str, str], records: list[Record]) -> None:
    got = {name: record.get(key) for name, key in keys.items()}
    made = Record(place, i, group=None if got.get("group") is None else str(got["group"]))
    prompt, said, whole = _list(got.get("prompt_ids")), _list(got.get("completion_ids")), _list(got.get("input_ids"))
    if said is None and whole is None:
        raise ValueError("it holds no token ids, as the first record does")
    if said is None and whole is not None:
        # One row: what is behind the prompt is the completion, or everything is, told apart by the mask.
        start = len(prompt) if prompt is not None else 0
        said, prompt = whole[start:], whole[:start]
    made.prompt = None if prompt is None else _ids(prompt, keys.get("prompt_ids", keys.get("input_ids", "")))
    made.completion = _ids(said or [], keys.get("completion_ids", keys.get("input_ids", "")))
    n, total = len(made.completion), len(made.completion) + len(made.prompt or [])
    for name, attribute in (("logprobs", "logprobs"), ("old_logprobs", "old"), ("mask", "mask"),
                            ("advantages", "advantages")):  # fmt: skip
        value = got.get(name)
        if value is None:
            continue
        if isinstance(value, (int, float)):
            column = [float(value)] * n
        else:
            try:
                column = [math.nan if x is None else float(x) for x in value]
            except (TypeError, ValueError) as error:
                raise ValueError(f"{keys[name]} is no list of numbers") from error
            if len(column) == total != n:
                column = column[total - n :]
            elif len(column) != n:
                made.wrong.append(f"{keys[name]} has {len(column)} values for {n} completion tokens")
        setattr(made, attribute, column)
    reward = got.get("reward")
    try:
        made.reward = (
            None if reward is None else math.fsum(map(float, reward if isinstance(reward, list) else [reward]))
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"{keys['reward']} is {reward!r:.40}, no number") from error
    made.stop = None if got.get("stop") is None else str(got["stop"])
    records.append(made)


def _ids(values: Sequence[Any], key: str) -> list[int]:
    """Token ids of one completion."""
    try:
        return [int(x) for x in values]
    except (TypeError, ValueError) as error:
        inner = " (a list in a list: write one completion a record)" if isinstance(values[0], list) else ""
        raise ValueError(f"{key} is no list of token ids{inner}") from error


def _list(value: Any) -> list[Any] | None:
    return list(value) if isinstance(value, (list, tuple)) else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


# ---- checks


def check_records(records: Sequence[Record], found: Findings) -> None:
    """All checks that a file allows."""
    whole = [r for r in records if not r.wrong]
    for record in [r for r in records if r.wrong][:1]:
        count = sum(bool(r.wrong) for r in records)
        found.error("lengths", f"{record.wrong[0]}; so in {count} of {len(records)} records.", record.where)
    _contexts(records, found)
    _logprobs(whole, found)
    _mask(whole, found)
    _advantages(whole, found)
    _rewards(records, found)
    _stops(records, found)


def _contexts(records: Sequence[Record], found: Findings) -> None:
    bad: dict[str, list[tuple[Record, int]]] = {"re-encoded": [], "prefix": []}
    continued = 0
    for record in records:
        if record.parent is None or record.prompt is None or not 0 <= record.parent < len(records):
            continue
        parent = records[record.parent]
        if parent.prompt is None or parent.completion is None:
            continue
        continued += 1
        before = parent.prompt + parent.completion
        at = next((k for k, (a, b) in enumerate(zip(before, record.prompt, strict=False)) if a != b), None)
        if at is None and len(record.prompt) >= len(before):
            continue
        at = min(len(before), len(record.prompt)) if at is None else at
        bad["re-encoded" if at >= len(parent.prompt) else "prefix"].append((record, at))
    for kind, hits in bad.items():
        if hits:
            record, at = hits[0]
            where = Where(place=record.place, trajectory=record.trajectory, turn=record.turn, token=at)
            found.error(
                kind, f"In {len(hits)} of {continued} turns the prompt is not what was seen and said before.", where
            )


def _logprobs(records: Sequence[Record], found: Findings) -> None:
    with_ids = [r for r in records if r.logprobs is not None and r.completion]
    if not with_ids:
        return
    zero = [r for r in with_ids if all(x == 0 for x in r.logprobs or ())]
    odd = [r for r in with_ids if any(not math.isfinite(x) or x > 1e-3 for x in r.logprobs or ())]
    if len(zero) > 0.5 * len(with_ids):
        found.error(
            "no log-probs", f"The log-probs of {len(zero)} of {len(with_ids)} completions are all 0.", zero[0].where
        )
    if odd:
        value = next(x for x in odd[0].logprobs or () if not math.isfinite(x) or x > 1e-3)
        found.error(
            "no log-probs", f"{len(odd)} of {len(with_ids)} completions hold {value:g} as a log-prob.", odd[0].where
        )
    both = [r for r in with_ids if r.old is not None and len(r.old) == len(r.logprobs or ())]
    if both and not zero and not odd:
        _gap(both, found)


def _gap(records: Sequence[Record], found: Findings) -> None:
    """The trainer's log-probs against the sampler's."""
    mu = np.concatenate([np.asarray(r.logprobs) for r in records])
    pi = np.concatenate([np.asarray(r.old) for r in records])
    kept = np.concatenate(
        [np.asarray(r.mask if r.mask is not None else [1.0] * len(r.logprobs or ())) for r in records]
    )
    d = (pi - mu)[kept != 0]
    if not len(d):
        return
    kl = float(np.mean(np.expm1(np.clip(d, -50, 20)) - d))
    told = f"The trainer's log-probs are {float(np.abs(d).mean()):.2g} nats from the sampler's on average (KL {kl:.2g})"
    x, y = mu[kept != 0], pi[kept != 0]
    where = records[int(np.argmax([np.abs(np.asarray(r.old) - np.asarray(r.logprobs)).max() for r in records]))].where
    if kl <= 1e-3:
        found.note("log-probs", f"{told}.")
        return
    linear = float(np.corrcoef(x, y)[0, 1]) if len(x) > 8 and x.std() > 0 and y.std() > 0 else 0.0
    slope = float(np.polyfit(x, y, 1)[0]) if linear else 0.0
    if kl <= 1e-2:
        found.warning("log-probs", f"{told}.", where)
    elif linear > 0.9 and abs(slope - 1) > 0.15:
        found.error(
            "temperature", f"{told}, and are {slope:.2f} times as large, as where one side leaves the temperature out.",
            where,
        )  # fmt: skip
    elif d.max() < 1e-3 and np.mean(d < -1e-3) > 0.3:
        found.error("truncation", f"{told}, and never above them: top-p or top-k is renormalised on one side.", where)
    else:
        found.error("log-probs", f"{told}.", where)


def _mask(records: Sequence[Record], found: Findings) -> None:
    masked = [r for r in records if r.mask is not None and r.completion]
    if not masked:
        return
    if all(not any(r.mask or ()) for r in masked):
        found.error(
            "mask", f"The mask of all {len(masked)} completions is all zeros: nothing is trained.", masked[0].where
        )
        return
    odd = [r for r in masked if any(x not in (0.0, 1.0) for x in r.mask or ())]
    if odd:
        same = sum(r.advantages is not None and np.allclose(r.mask or (), r.advantages) for r in odd)
        also = f"; in {same} it is the advantages" if same else ""
        value = next(x for x in odd[0].mask or () if x not in (0.0, 1.0))
        token = next(k for k, x in enumerate(odd[0].mask or ()) if x not in (0.0, 1.0))
        where = Where(place=odd[0].place, trajectory=odd[0].trajectory, turn=odd[0].turn, token=token)
        found.error(
            "mask values", f"The mask of {len(odd)} of {len(masked)} completions holds {value:.3g}{also}.", where
        )
        return
    empty = [r for r in masked if not any(r.mask or ())]
    if empty:
        found.warning("mask", f"The mask of {len(empty)} of {len(masked)} completions is all zeros.", empty[0].where)
    trained = sum(sum(r.mask or ()) for r in masked)
    found.note("mask", f"{trained:.0f} of {sum(len(r.mask or ()) for r in masked)} completion tokens are trained.")


def _advantages(records: Sequence[Record], found: Findings) -> None:
    with_a = [r for r in records if r.advantages]
    if not with_a:
        return
    bad = [r for r in with_a if not all(math.isfinite(x) for x in r.advantages or ())]
    if bad:
        found.error("credit", f"The advantages of {len(bad)} completions are not finite.", bad[0].where)
        return
    groups: dict[str, list[Record]] = {}
    for r in with_a:
        if r.reward is not None and r.group is not None:
            groups.setdefault(r.group, []).append(r)
    x, y = [], []
    for members in groups.values():
        rewards = [r.reward or 0.0 for r in members]
        if len(members) > 1 and max(rewards) - min(rewards) > 1e-9:
            x += [r - math.fsum(rewards) / len(rewards) for r in rewards]
            y += [_mean_advantage(r) for r in members]
    if len(x) >= 4 and float(np.std(y)) > 1e-9:
        correlation = float(np.corrcoef(x, y)[0, 1])
        if correlation < -0.3:
            found.error(
                "credit", f"Within groups the advantage falls as the reward rises (correlation {correlation:.2f}).",
                with_a[0].where,
            )  # fmt: skip
    flat = all(max(r.advantages or [0.0]) == min(r.advantages or [0.0]) == 0 for r in with_a)
    if flat:
        one = Counter(r.group for r in with_a if r.group is not None)
        if one and max(one.values()) == 1:
            found.error("groups of one", "Every group has one completion, and every advantage is 0.", with_a[0].where)
        else:
            found.warning("spread", "Every advantage in the file is 0.", with_a[0].where)


def _mean_advantage(record: Record) -> float:
    """Over the tokens that are trained, where a mask says which."""
    values = np.asarray(record.advantages, dtype=np.float64)
    mask = np.ones(len(values)) if record.mask is None or len(record.mask) != len(values) else np.asarray(record.mask)
    return float(values[mask != 0].mean()) if (mask != 0).any() else 0.0


def _rewards(records: Sequence[Record], found: Findings) -> None:
    by_group: dict[str, dict[int, float]] = {}
    for r in records:
        if r.reward is not None and r.group is not None and math.isfinite(r.reward):
            by_group.setdefault(r.group, {})[r.trajectory] = r.reward
    bad = {r.trajectory: r for r in records if r.reward is not None and not math.isfinite(r.reward)}
    if bad:
        every = len({r.trajectory for r in records})
        tell = found.error if len(bad) > 0.05 * every else found.warning
        text = f"The reward of {len(bad)} of {every} trajectories is not finite, as where episode or grader failed."
        tell("failures", text, next(iter(bad.values())).where)
    check_spread([list(members.values()) for members in by_group.values()], found)


def _stops(records: Sequence[Record], found: Findings) -> None:
    told = [r for r in records if r.stop is not None]
    cut = [r for r in told if r.stop in ("length", "max_tokens", "truncated")]
    if told and len(cut) > 0.05 * len(told):
        paid = sum((r.reward or 0.0) > 0 for r in cut)
        found.warning(
            "cut off",
            f"{len(cut)} of {len(told)} completions were stopped by the length cap; {paid} of them are paid.",
            cut[0].where,
        )  # fmt: skip
