"""Templates and the strict reader."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlready.dream.format import Unparsable
from rlready.dream.roles import (
    ASPECTS,
    ROLES,
    Said,
    Template,
    read_scores,
    read_simulation,
    read_tags,
    read_verdict,
)
from rlready.dream.simulators.slots import output
from rlready.errors import UserError


@pytest.mark.parametrize("role", sorted(ROLES))
def test_every_template_has_its_fields_and_asks_for_its_tags(role: str) -> None:
    template = Template.load(role)
    prompt = template.render(**{f: f"value-of-{f} $5" for f in ROLES[role].fields})
    assert all(f"value-of-{f} $5" in prompt for f in ROLES[role].fields)
    if role == "simulator":  # what it is to write depends on the domain, and comes in a slot
        prompt = output(ROLES[role].tags)
    asked = prompt[prompt.index("Answer with") :]
    at = [asked.index(f"<{t}>") for t in ROLES[role].tags]
    assert at == sorted(at) and all(f"</{t}>" in asked for t in ROLES[role].tags)
    with pytest.raises(ValueError, match="needs the fields"):
        template.render(nonsense="x")


def test_a_domain_brings_its_own_templates(tmp_path: Path) -> None:
    (tmp_path / "mapper.md").write_text("$instruction / $observation")
    assert Template.load("mapper", tmp_path).render(instruction="a", observation="b") == "a / b"
    (tmp_path / "quality.md").write_text("$trajectory $step $extra")
    with pytest.raises(UserError, match=r"misses \['predicted'\] and has \['extra'\] too many"):
        Template.load("quality", tmp_path)
    with pytest.raises(UserError, match="no template"):
        Template.load("taskgen", tmp_path)
    with pytest.raises(UserError, match=r'Unknown role "simulater". Did you mean simulator'):
        Template.load("simulater")


def written(reply: str, failed: str = "no", done: str = "no", confidence: str = "80") -> str:
    return (
        f"<reply>{reply}</reply>\n<failed>{failed}</failed><done>{done}</done>\n<confidence>{confidence}</confidence>"
    )


@given(st.text("ab <>/\n$", max_size=20), st.booleans(), st.booleans(), st.integers(0, 100))
def test_simulations_read_back(reply: str, failed: bool, done: bool, confidence: int) -> None:
    yes = {True: "yes", False: "no"}
    said = read_simulation(written(f"\n{reply}\n", yes[failed], yes[done], str(confidence)))
    assert said == Said(reply, failed, done, confidence / 100)  # blank space inside the reply is the environment's own


def test_step_rewards_are_read_where_they_are_asked_for() -> None:
    text = written("ok").replace("<confidence>", "<reward>-0.5</reward><confidence>")
    assert read_simulation(text, step_rewards=True) == Said("ok", False, False, 0.8, -0.5)
    with pytest.raises(Unparsable, match="expected <confidence>"):
        read_simulation(text)
    with pytest.raises(Unparsable, match="expected <reward>"):
        read_simulation(written("ok"), step_rewards=True)
    for bad in ("nan", "1e999", "", "much"):
        with pytest.raises(Unparsable, match="<reward> holds"):
            read_simulation(text.replace("-0.5", bad), step_rewards=True)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected <reply>"),
        ("Sure! " + written("s"), "expected <reply>, found 'Sure!"),
        (written("s") + " Hope this helps.", "text after the last tag"),
        (written("s").replace("</reply>", ""), "<reply> is not closed"),
        ("<reply>s", "<reply> is not closed"),
        (written("s", "maybe"), "<failed> holds 'maybe', not yes or no"),
        (written("s", done="1"), "<done> holds '1'"),
        (written("s", confidence="101"), "<confidence> holds 101, which is not between 0 and 100"),
        (written("s", confidence="high"), "<confidence> holds 'high', which is no number"),
        (written("s", confidence="-1"), "<confidence> holds -1"),
        (written("s <done>yes</done>"), "tag stands inside <reply>"),
        ("<confidence>9</confidence>" + written("s"), "expected <reply>"),
    ],
)
def test_what_is_not_exactly_the_form_is_refused(text: str, why: str) -> None:
    with pytest.raises(Unparsable, match=why):
        read_simulation(text)


def test_verdicts_are_probabilities_of_success() -> None:
    form = "<verdict>{}</verdict>\n<confidence>{}</confidence>"
    assert read_verdict(form.format("right", "90")) == 0.9
    assert read_verdict(form.format("wrong", "75")) == 0.25
    assert read_verdict(form.format("right", "0")) == 0.0
    for text, why in [(form.format("correct", 50), "holds 'correct'"), (form.format("right", "x"), "no number")]:
        with pytest.raises(Unparsable, match=why):
            read_verdict(text)


def test_scores() -> None:
    text = "".join(f"<{a}_reason>because</{a}_reason><{a}>{i % 3}</{a}>" for i, a in enumerate(ASPECTS))
    assert read_scores(text) == {"consistency": 0, "diversity": 1, "informativeness": 2, "hallucination": 0}
    with pytest.raises(Unparsable, match="holds '7'"):
        read_scores(text.replace(">2<", ">7<"))
    with pytest.raises(Unparsable, match="_reason> is empty"):
        read_scores(text.replace("because", "", 1))
    assert read_tags("<a> x </a>", ("a",)) == {"a": "x"}
