"""Templates and the strict reader; and the paper's worked example, played by a scripted model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlready.dream.checks import same_actions
from rlready.dream.format import Unparsable
from rlready.dream.prompted import PromptedDream
from rlready.dream.roles import ASPECTS, ROLES, Simulation, Template, read_scores, read_simulation, read_tags
from rlready.envs.base import Step
from rlready.errors import EnvError, UserError
from rlready.experience.retrieve import Case, Retriever
from rlready.types import Message, Task


@pytest.mark.parametrize("role", sorted(ROLES))
def test_every_template_has_its_fields_and_asks_for_its_tags(role: str) -> None:
    template = Template.load(role)
    prompt = template.render(**{f: f"value-of-{f} $5" for f in ROLES[role].fields})
    assert all(f"value-of-{f} $5" in prompt for f in ROLES[role].fields)
    asked = prompt[prompt.index("Answer with") :]
    at = [asked.index(f"<{t}>") for t in ROLES[role].tags]
    assert at == sorted(at) and all(f"</{t}>" in asked for t in ROLES[role].tags)
    with pytest.raises(ValueError, match="needs the fields"):
        template.render(nonsense="x")


def test_a_domain_brings_its_own_templates(tmp_path: Path) -> None:
    (tmp_path / "mapper.md").write_text("$instruction / $observation")
    assert Template.load("mapper", tmp_path).render(instruction="a", observation="b") == "a / b"
    (tmp_path / "judge.md").write_text("$trajectory $step $extra")
    with pytest.raises(UserError, match=r"misses \['predicted'\] and has \['extra'\] too many"):
        Template.load("judge", tmp_path)
    with pytest.raises(UserError, match="no template"):
        Template.load("taskgen", tmp_path)
    with pytest.raises(UserError, match=r'Unknown role "simulater". Did you mean simulator'):
        Template.load("simulater")


def written(think: str, state: str, reward: str = "0", done: str = "0") -> str:
    return f"<think>{think}</think>\n<next_state>{state}</next_state>\n<reward>{reward}</reward><done>{done}</done>"


@given(
    st.text("ab <>/\n", max_size=20),
    st.text("ab $\n", min_size=1, max_size=20).filter(str.strip),
    st.sampled_from(["00", "01", "11"]),
)
def test_simulations_read_back(think: str, state: str, ends: str) -> None:
    said = read_simulation(written(think, state, *ends))
    assert said == Simulation(think.strip(), state.strip(), int(ends[0]), ends[1] == "1")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected <think>"),
        ("Sure! " + written("t", "s"), "expected <think>, found 'Sure!"),
        (written("t", "s") + " Hope this helps.", "text after the last tag"),
        (written("t", "s").replace("</think>", ""), "<think> is not closed"),
        ("<think>t</think><next_state>s", "<next_state> is not closed"),
        (written("t", ""), "<next_state> is empty"),
        (written("t", "s", "0.5"), "<reward> holds '0.5'"),
        (written("t", "s", "1", "yes"), "<done> holds 'yes'"),
        (written("t", "s", "1", "0"), "reward is paid, but the episode goes on"),
        (written("t", "s <reward>1</reward>"), "tag stands inside <next_state>"),
        ("<next_state>s</next_state><think>t</think><reward>0</reward><done>0</done>", "expected <think>"),
    ],
)
def test_what_is_not_exactly_the_form_is_refused(text: str, why: str) -> None:
    with pytest.raises(Unparsable, match=why):
        read_simulation(text)


def test_scores() -> None:
    text = "".join(f"<{a}_reason>because</{a}_reason><{a}>{i % 3}</{a}>" for i, a in enumerate(ASPECTS))
    assert read_scores(text) == {"consistency": 0, "diversity": 1, "informativeness": 2, "hallucination": 0}
    with pytest.raises(Unparsable, match="holds '7'"):
        read_scores(text.replace(">2<", ">7<"))
    with pytest.raises(Unparsable, match="_reason> is empty"):
        read_scores(text.replace("because", "", 1))
    assert read_tags("<a> x </a>", ("a",)) == {"a": "x"}


# ---------------------------------------------------------------- list page, click, detail page, answer

LIST = '[1] link "Files"\n[2] link "1,142 commits"\n[3] link "Branches"'
HISTORY = '[1] text "5 April 2023" [2] link "add retry"\n[3] text "1 April 2023" [4] link "fix the build"\n[5] text "30 March 2023" [6] link "typo"'  # noqa: E501
DETAIL = '[1] heading "fix the build"\n[2] text "committed 1 April 2023"'
TASK = Task((Message.user("What is the message of the first commit of April 2023?"),), {"state": LIST})


class Scripted:
    """Answers as the paper's example goes, from the action and the state found in the prompt."""

    def __init__(self) -> None:
        self.prompts: list[str] = []

    async def write(self, prompt: str, *, seed: int = 0) -> str:
        self.prompts.append(prompt)
        state = prompt.split("# Present state\n")[1].split("\n\n# The agent's action")[0]
        action = prompt.split("# The agent's action\n")[1].split("\n")[0]
        if (state, action) == (LIST, "click [2]"):
            return written("the counter opens the commit history", HISTORY)
        if (state, action) == (HISTORY, "click [4]"):
            return written("the earliest April entry opens its page", DETAIL)
        if action == "answer fix the build" and state == DETAIL:
            return written("this is the message asked for", DETAIL, "1", "1")
        if action.startswith("answer"):
            return written("this is not the message asked for", state, "0", "1")
        return written("nothing opens", state)


def admit(state: str, action: str) -> str | None:
    number = action.removeprefix("click ")
    return f"error: {number} is not on this page" if action.startswith("click") and number not in state else None


def play(env: PromptedDream, actions: list[str]) -> list[Step]:
    async def run() -> list[Step]:
        first = await env.reset(TASK, 0)
        assert [m.text for m in first.messages] == [TASK.prompt[0].text, LIST]
        return [await env.step(a) for a in actions]

    return asyncio.run(run())


def test_worked_example() -> None:
    writer = Scripted()
    retriever = Retriever()
    retriever.add([Case('[1] link "7 commits"', "click [1]", '[1] text "2 May"', "t9", "k9")])
    env = PromptedDream(writer, retriever=retriever, refuse=admit, rules="a code host")
    steps = play(env, ["click [2]", "click [4]", "answer fix the build"])
    assert [s.observation.messages[-1].text for s in steps] == [HISTORY, DETAIL, DETAIL]
    assert [s.reward for s in steps] == [0, 0, 1] and [s.terminated for s in steps] == [False, False, True]
    last = writer.prompts[-1]
    assert "1. action: click [2]\n   then: " + HISTORY in last and "2. action: click [4]" in last
    assert 'state: [1] link "7 commits"\naction: click [1]\nnext: [1] text "2 May"' in writer.prompts[0]
    assert "a code host" in last and TASK.prompt[0].text in last


def test_wrong_answers_inadmissible_clicks_and_the_cap() -> None:
    writer = Scripted()
    wrong = play(PromptedDream(writer, refuse=admit), ["click [9]", "click [2]", "answer typo"])
    assert wrong[0].info["invalid"] == "click [9]" and wrong[0].observation.messages[-1].text.startswith("error")
    assert wrong[1].observation.messages[-1].text == HISTORY  # the state had not changed
    assert wrong[2].terminated and wrong[2].reward == 0 and len(writer.prompts) == 2
    capped = play(PromptedDream(Scripted(), cap=2), ["scroll", "scroll"])
    assert capped[1].truncated and not capped[0].truncated
    with pytest.raises(EnvError, match="no first state"):
        asyncio.run(PromptedDream(writer).reset(Task(TASK.prompt), 0))


class Mumbling(Scripted):
    """Writes prose at first; `times` per action."""

    times = 1

    async def write(self, prompt: str, *, seed: int = 0) -> str:
        said = await super().write(prompt)
        return "I think it opens." if len(self.prompts) <= self.times else said


def test_unreadable_text_is_asked_for_once_more_then_voids() -> None:
    writer = Mumbling()
    (step,) = play(PromptedDream(writer), ["click [2]"])
    assert step.observation.messages[-1].text == HISTORY and len(writer.prompts) == 2
    worse = Mumbling()
    worse.times = 2
    (step,) = play(PromptedDream(worse), ["click [2]"])
    assert "could not be read: expected <think>" in step.info["failure"]


def test_the_worked_example_is_deterministic() -> None:
    script: list[tuple[Task, Any]] = [(TASK, ["click [2]", "click [4]", "answer fix the build"])]
    assert asyncio.run(same_actions(lambda: PromptedDream(Scripted()), script)).passed
