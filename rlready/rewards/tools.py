"""Verifier of tool calls: the calls a completion makes against those it should make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlready.scoring import RewardFn, answer_text, declare
from rlready.toolcalls import Call, parse_calls
from rlready.types import Score, Task, Trajectory


def same_value(a: Any, b: Any) -> bool:
    """Equality of JSON values: 1 equals 1.0, true does not equal 1, objects ignore the order of keys."""
    if isinstance(a, bool) or isinstance(b, bool):
        return isinstance(a, bool) and isinstance(b, bool) and a == b
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() == b.keys() and all(same_value(v, b[k]) for k, v in a.items())
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(same_value(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return a == b
    return type(a) is type(b) and bool(a == b)


def verify_calls(completion: str, gold: Any, *, any_order: bool = False) -> Score:
    """Right where the completion makes exactly the gold calls, no more and no fewer.

    Args:
        completion: text with `<tool_call>` blocks, see `rlready.toolcalls`.
        gold: one `{"name", "arguments"}` or a list of them.
        any_order: whether the order is free.

    Returns:
        Parts: `names`, the share of gold calls whose tool was called, and `calls`, the share matched with arguments. A
        malformed call is wrong. No call at all is no answer.
    """
    golds = [gold] if isinstance(gold, Mapping) else gold
    if not isinstance(golds, (list, tuple)) or not golds:
        return Score.failed(f"the gold calls {gold!r} are no call or list of calls")
    for g in golds:
        if (
            not isinstance(g, Mapping)
            or not isinstance(g.get("name"), str)
            or not isinstance(g.get("arguments"), Mapping)
        ):
            return Score.failed(f'the gold call {g!r} has no "name" and "arguments"')
    made = parse_calls(completion)
    if not made:
        return Score.no_answer()
    names = _matched(golds, made, any_order, whole=False) / len(golds)
    calls = _matched(golds, made, any_order, whole=True) / len(golds)
    if calls == 1 and len(made) == len(golds):
        return Score.right(names=names, calls=calls)
    return Score.wrong(names=names, calls=calls)


def _matched(golds: list[Any] | tuple[Any, ...], made: list[Call], any_order: bool, *, whole: bool) -> int:
    def match(g: Mapping[str, Any], call: Call) -> bool:
        return (
            call.arguments is not None
            and call.name == g["name"]
            and (not whole or same_value(call.arguments, g["arguments"]))
        )

    if not any_order:
        return sum(match(g, call) for g, call in zip(golds, made, strict=False))
    left = list(made)
    count = 0
    for g in golds:
        hit = next((call for call in left if match(g, call)), None)
        if hit is not None:
            left.remove(hit)
            count += 1
    return count


def tool_call(column: str = "calls", *, any_order: bool = False) -> RewardFn:
    """Reward exactly the tool calls in `task.data[column]`; see `verify_calls`."""

    def tool_call(task: Task, trajectory: Trajectory) -> Score:
        return verify_calls(answer_text(trajectory), task.data.get(column), any_order=any_order)

    return declare(tool_call, name="tool_call", columns=[column])
