"""80 real conversations of an airline's agent, and the same ones as other tools would have logged them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from rlready.experience.episode import LoggedEpisode
from rlready.experience.logs import LogReport, common_rules, episode_of, read_logs
from rlready.toolcalls import parse_calls
from tests.experience.logs.otel_exports import attributes, parts

LOG = Path(__file__).parents[4] / "shared" / "cases" / "logs" / "tau_airline_gpt4o.json"
pytestmark = pytest.mark.skipif(not LOG.exists(), reason="the log is not there")
START = 1_700_000_000


@pytest.fixture(scope="module")
def runs() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(LOG.read_bytes())
    return found


def episodes(path: Path, report: LogReport) -> dict[str, LoggedEpisode]:
    recordings = list(read_logs(path, report=report))
    rules = common_rules(recordings)
    return {r.id: episode_of(r, rules=rules)[0] for r in recordings}


@pytest.fixture(scope="module")
def wanted() -> dict[str, LoggedEpisode]:
    return episodes(LOG, LogReport())


def test_all_of_it_is_understood(runs: list[dict[str, Any]], wanted: dict[str, LoggedEpisode]) -> None:
    report = LogReport()
    began = time.perf_counter()
    recordings = list(read_logs(LOG, report=report))
    assert time.perf_counter() - began < 10
    assert (report.records, report.recordings, report.reasons.total()) == (80, 80, 0)
    assert sum(len(m.tool_calls) for r in recordings for m in r.messages) == 514
    assert sum(m.role == "tool" for r in recordings for m in r.messages) == 514
    assert {r.task_id for r in recordings} == {str(n) for n in range(20)}
    assert sum(e.success for e in wanted.values()) == 20 and all(e.judged for e in wanted.values())
    assert all(m.tool_call_id for r in recordings for m in r.messages if m.role == "tool")


def test_actions_and_replies_are_those_of_the_file(
    runs: list[dict[str, Any]], wanted: dict[str, LoggedEpisode]
) -> None:
    """Read straight from the file, without our readers: calls and results alternate in it."""
    assert len(wanted) == len(runs)
    for run, episode in zip(runs, wanted.values(), strict=True):
        actions: list[Any] = []
        replies: list[str] = []
        for message in run["traj"][2:]:
            if message["role"] == "assistant":
                calls = [c["function"] for c in message.get("tool_calls") or []]
                actions.append(
                    (calls[0]["name"], json.loads(calls[0]["arguments"])) if calls else message["content"].strip()
                )
                replies.append("")
            else:
                replies[-1] = message["content"]
        read = [
            (call[0].name, call[0].arguments) if (call := parse_calls(action)) else action for action in episode.actions
        ]
        assert read == actions and list(episode.replies) == replies
        assert episode.instruction == run["traj"][1]["content"]
        assert (episode.reward, episode.task_id) == (run["reward"], str(run["task_id"]))


def to_atif(run: dict[str, Any]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    for m in run["traj"]:
        if m["role"] == "tool":
            steps[-1].setdefault("observation", {"results": []})["results"].append(
                {"source_call_id": m["tool_call_id"], "content": m["content"]}
            )
            continue
        source = {"assistant": "agent"}.get(m["role"], m["role"])
        step: dict[str, Any] = {"step_id": len(steps) + 1, "source": source, "message": m["content"]}
        if m.get("tool_calls"):
            step["tool_calls"] = [
                {"tool_call_id": c["id"], "function_name": f["name"], "arguments": json.loads(f["arguments"])}
                for c in m["tool_calls"]
                for f in [c["function"]]
            ]
        steps.append(step)
    return {
        "schema_version": "ATIF-v1.6",
        "session_id": f"{run['task_id']}-{run['trial']}",
        "agent": {"name": "tau", "version": "1", "model_name": "gpt-4o"},
        "steps": steps,
        "final_metrics": {"total_steps": len(steps), "extra": {"reward": run["reward"]}},
        "extra": {"task_id": run["task_id"], "trial": run["trial"]},
    }


def model_calls(run: dict[str, Any]) -> list[tuple[int, list[dict[str, Any]], dict[str, Any]]]:
    """(second, prompt, output) of every model call."""
    return [(i, run["traj"][:i], m) for i, m in enumerate(run["traj"]) if m["role"] == "assistant"]


def tool_calls(run: dict[str, Any]) -> list[tuple[int, dict[str, Any], dict[str, Any]]]:
    """(second, call, result) of every tool call."""
    return [
        (i, run["traj"][i - 1]["tool_calls"][0], m) for i, m in enumerate(run["traj"]) if m["role"] == "tool"
    ]  # fmt: skip


def to_otlp(run: dict[str, Any]) -> dict[str, Any]:
    """One export: the agent's span with all messages, a span for every call of the model and of a tool."""
    trace = f"{run['task_id']}-{run['trial']}"

    def span(name: str, second: int, plain: dict[str, Any]) -> dict[str, Any]:
        return {
            "traceId": trace, "spanId": f"{trace}/{name}", "parentSpanId": "" if name == "agent" else f"{trace}/agent",
            "name": name, "startTimeUnixNano": str((START + second) * 10**9),
            "endTimeUnixNano": str((START + second) * 10**9 + 10**8), "attributes": attributes(plain),
        }  # fmt: skip

    spans = [
        span(
            "agent", 0,
            {"gen_ai.operation.name": "invoke_agent", "gen_ai.input.messages": json.dumps(parts(run["traj"])),
             "tau.task_id": run["task_id"], "tau.trial": run["trial"], "tau.reward": run["reward"]},
        )
    ]  # fmt: skip
    for second, prompt, output in model_calls(run):
        spans.append(
            span(
                f"chat {second}", second,
                {"gen_ai.operation.name": "chat", "gen_ai.request.model": "gpt-4o",
                 "gen_ai.system_instructions": json.dumps([{"type": "text", "content": prompt[0]["content"]}]),
                 "gen_ai.input.messages": json.dumps(parts(prompt[1:])),
                 "gen_ai.output.messages": json.dumps(parts([output]))},
            )
        )  # fmt: skip
    for second, call, result in tool_calls(run):
        spans.append(
            span(
                f"execute_tool {second}", second,
                {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": call["function"]["name"],
                 "gen_ai.tool.call.id": call["id"], "gen_ai.tool.call.arguments": call["function"]["arguments"],
                 "gen_ai.tool.call.result": result["content"]},
            )
        )  # fmt: skip
    return {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"scope": {}, "spans": spans}]}]}


def to_langfuse(run: dict[str, Any]) -> dict[str, Any]:
    """A trace with its observations; tool messages in prompts have no names, tools no call ids."""
    trace = f"{run['task_id']}-{run['trial']}"

    def observation(kind: str, name: str, second: int, given: Any, gave: Any) -> dict[str, Any]:
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(START + second))
        return {
            "id": f"{trace}/{kind}/{second}", "traceId": trace, "type": kind, "name": name, "startTime": f"{when}.000Z",
            "endTime": f"{when}.100Z", "input": given, "output": gave, "level": "DEFAULT", "metadata": None,
        }  # fmt: skip

    rows = [
        observation("GENERATION", "chat", s, {"messages": prompt}, output) for s, prompt, output in model_calls(run)
    ]
    rows += [
        observation("TOOL", c["function"]["name"], s, json.loads(c["function"]["arguments"]), r["content"])
        for s, c, r in tool_calls(run)
    ]
    return {
        "id": trace, "name": "tau", "timestamp": "2023-11-14T22:13:20.000Z", "input": run["traj"][:2],
        "output": {"messages": run["traj"]}, "metadata": {"task_id": run["task_id"], "trial": run["trial"]},
        "scores": [{"name": "reward", "value": run["reward"], "dataType": "NUMERIC"}], "observations": rows,
    }  # fmt: skip


@pytest.mark.parametrize("form", ["atif", "otlp", "langfuse"])
@pytest.mark.parametrize("layout", ["jsonl", "json", "folder"])
def test_the_same_conversations_in_another_form_are_the_same_episodes(
    tmp_path: Path, runs: list[dict[str, Any]], wanted: dict[str, LoggedEpisode], form: str, layout: str
) -> None:
    if layout != "jsonl":
        runs = runs[::8]
    converted = [{"atif": to_atif, "otlp": to_otlp, "langfuse": to_langfuse}[form](run) for run in runs]
    path = tmp_path / f"log.{layout}"
    if layout == "folder":
        path.mkdir()
        for number, record in enumerate(converted):
            (path / f"{number:03d}.json").write_text(json.dumps(record, indent=1), encoding="utf-8")
    else:
        text = json.dumps(converted) if layout == "json" else "".join(json.dumps(r) + "\n" for r in converted)
        path.write_text(text, encoding="utf-8")
    report = LogReport()
    got = episodes(path, report)
    keys = [f"{run['task_id']}-{run['trial']}" for run in runs]
    assert got == {key: wanted[key] for key in keys}
    assert set(report.files.values()) == {form} and not report.reasons
    if form != "atif":
        calls = sum(len(tool_calls(run)) for run in runs)
        assert sum(len(r.seconds) for r in read_logs(path)) == calls


def test_results_that_stand_only_in_tool_spans_are_found_again(
    tmp_path: Path, runs: list[dict[str, Any]], wanted: dict[str, LoggedEpisode]
) -> None:
    """Prompts without tool messages, as tools log them that keep results to themselves."""
    path = tmp_path / "log.jsonl"
    with path.open("w") as stream:
        for run in runs[:20]:
            trace = to_langfuse(run)
            trace["output"] = None
            for row in trace["observations"]:
                if row["type"] == "GENERATION":
                    row["input"]["messages"] = [m for m in row["input"]["messages"] if m["role"] != "tool"]
            stream.write(json.dumps(trace) + "\n")
    for key, episode in episodes(path, LogReport()).items():
        same = [i for i, action in enumerate(episode.actions) if action.startswith("<tool_call>")]
        assert episode.actions == wanted[key].actions
        assert [episode.replies[i] for i in same] == [wanted[key].replies[i] for i in same]
