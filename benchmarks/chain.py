"""The task both sides of the TRL comparison learn: sums of a chain of digits modulo 10.

Whether to work step by step or to answer at once is the choice that RL can improve: the warm start does both, and only
working is reliably right. Prompt `3 + 5 + 9 =`, worked answer `3 5 8 9 7 # 7` (digit, then sum so far), direct answer
`# 7`. Chains have 6 to 9 digits.
"""

from __future__ import annotations

import random

from rlready.policy.base import OptimizerConfig, Policy, SampleRequest, SamplingParams
from rlready.policy.render import ChatRenderer
from rlready.policy.supervised import fit
from rlready.policy.tiny import TinyConfig, TinyPolicy
from rlready.policy.tokenize import word_tokenizer
from rlready.seeds import rng
from rlready.types import Message, Row, Task

WORDS = [*map(str, range(10)), "+", "=", "#"]
DIRECT_SHARE = 0.5
BATCH = 64


def problem(random: random.Random) -> tuple[str, str, str, str]:
    """Draw (prompt, worked completion, direct completion, answer)."""
    digits = [random.randrange(10) for _ in range(random.randint(6, 9))]
    total = digits[0]
    worked = [str(total)]
    for digit in digits[1:]:
        total = (total + digit) % 10
        worked += [str(digit), str(total)]
    return " + ".join(map(str, digits)) + " =", f"{' '.join(worked)} # {total}", f"# {total}", str(total)


def tasks(n: int, seed: int) -> list[Task]:
    """N distinct problems."""
    found: dict[str, Task] = {}
    index = 0
    while len(found) < n:
        prompt, _, _, answer = problem(rng(seed, "chain", index))
        found.setdefault(prompt, Task.of(prompt, answer=answer))
        index += 1
    return list(found.values())


def answer_of(completion: str) -> str | None:
    """The digit after the last `#`, if there is one."""
    _, mark, tail = completion.rpartition("#")
    return tail.split()[0] if mark and tail.split() else None


def renderer() -> ChatRenderer:
    """The word-level renderer; a completion ends with `<end>`."""
    return ChatRenderer(
        word_tokenizer(WORDS, specials=("<pad>", "<s>", ">", "<end>")), bos="<s>", turn=">", end="<end>"
    )


def warm_start(
    seed: int, *, steps: int = 400, mixed: int | None = None, direct: float = DIRECT_SHARE, lr: float = 2e-3,
    dim: int = 128, layers: int = 4,
) -> Policy:  # fmt: skip
    """A policy (0.8M parameters) trained on worked answers, then on a mixture in which a share answers at once.

    Fewer steps of work and a larger share of direct answers make a start from which there is more to learn.

    Args:
        seed: of weights and examples.
        steps: on worked answers.
        mixed: on the mixture; a quarter as many by default.
        direct: share of direct answers in it.
        lr: of the first part; the second has a quarter.
        dim: width of the model.
        layers: of the model.
    """
    render = renderer()
    config = TinyConfig(vocab_size=len(render.tokenizer), dim=dim, layers=layers, heads=4, kv_heads=1, max_len=128)
    policy = TinyPolicy.create(render, config, seed=seed, optimizer=OptimizerConfig(lr=lr, warmup=20))

    def train(steps: int, share: float, purpose: str) -> None:
        rows = []
        for i in range(steps * BATCH):
            draw = rng(seed, purpose, i)
            prompt, worked, direct, _ = problem(draw)
            completion = direct if draw.random() < share else worked
            ids = render.render((Message.user(prompt),))
            rows.append(Row.from_segments([(ids, 0.0), (render.encode_completion(completion), 1.0)]))
        # In drawn order: batches of like length would be all worked or all direct, and the choice would swing.
        fit(policy, rows, [range(i, i + BATCH) for i in range(0, len(rows), BATCH)])

    train(steps, 0.0, "worked")
    assert policy.learner is not None
    policy.learner.configure(OptimizerConfig(lr=lr / 4))
    train(steps // 4 if mixed is None else mixed, direct, "mixed")
    return policy


def prompt_text(task: Task) -> str:
    """A task's prompt as the renderer lays it out, for a tokenizer alone."""
    return f"<s> {task.prompt[0].text} >"


def accuracy(policy: Policy, n: int = 256) -> dict[str, float]:
    """Share of right answers and of worked ones on tasks that no run trains on, greedy and sampled at 1."""
    import asyncio

    posed = tasks(n, seed=-1)
    ids = [policy.renderer.render(task.prompt) for task in posed]
    out: dict[str, float] = {}
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        params = SamplingParams(max_tokens=24, temperature=temperature, stop_ids=policy.renderer.stop_ids)
        requests = [SampleRequest(prompt, params, seed=i) for i, prompt in enumerate(ids)]
        texts = [policy.renderer.decode(s.completion_ids) for s in asyncio.run(policy.sampler.sample(requests))]
        out[f"{name} right"] = sum(answer_of(a) == t.data["answer"] for a, t in zip(texts, posed, strict=True)) / n
        out[f"{name} worked"] = sum(len(a.split()) > 4 for a in texts) / n
    return out
