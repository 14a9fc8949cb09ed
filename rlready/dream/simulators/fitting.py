"""Training the embedded small transformer to be the environment of the logs; its rows are those of `simulators.rows`.

The loop is plain and goes on exactly where it was left: the plan of batches is a function of the seed, and
`state_dict` holds weights, optimizer, tokenizer and the number of steps taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import tokenizers

from rlready.dream.library import Library, Steps
from rlready.dream.simulators.layout import DONE, FAILED, JUDGE, NOTHING, RIGHT, WRONG, Layout
from rlready.dream.simulators.prompts import Prompts
from rlready.dream.simulators.rows import RowWriter
from rlready.dream.simulators.text import TextModel
from rlready.errors import UserError
from rlready.policy.base import OptimizerConfig, require_learner
from rlready.policy.render import ChatRenderer
from rlready.policy.supervised import descend, plan
from rlready.policy.tiny import TinyConfig, TinyPolicy
from rlready.policy.tokenize import TextTokenizer, bpe_tokenizer, word_tokenizer
from rlready.seeds import derive, rng

if TYPE_CHECKING:
    from rlready.dream.domain import Domain

OnFit = Callable[["Fitting", dict[str, float]], bool | None]
"""Called after each step with (the fitting, the step's metrics); returning True ends the training."""

SPECIALS = ("<s>", "<turn>", "<end>")
_UNKNOWN = "<unk>"
_MOST_WORDS = 2000
_BPE_CHARS = 4_000_000
_STATE = 1


@dataclass(frozen=True)
class TextConfig:
    """Size, training and decoding of a small transformer as a simulator. The numbers are ours, for one CPU.

    Attributes:
        model: shape; vocabulary and length follow from the data, the length up to `model.max_len`.
        tokenizer: "words" (each word a token), "bpe" (can write anything), "auto" (words where there are at most 2,000
            and replies hold no other blank space than single blanks).
        vocab_size: of "bpe".
        epochs, max_steps: passes over the rows, cut after so many steps.
        batch_tokens, lr, warmup: of the training; the rate falls along a cosine to a twentieth.
        judge_share: share of verdicts in the weight of all trained tokens; one verdict counts 64 tokens at most.
        demos, demo_chars: demonstrations before each action, and the cap on each.
        reply_chars: longer replies are shown cut as history, and not trained.
        max_tokens: longest reply in tokens; longer ones are not trained.
        temperature, min_p, greedy: how replies are drawn.
        seed: of weights and batches.
    """

    model: TinyConfig = field(default_factory=lambda: TinyConfig(max_len=2048, value_head=False))
    tokenizer: Literal["auto", "words", "bpe"] = "auto"
    vocab_size: int = 2048
    epochs: int = 6
    max_steps: int = 3000
    batch_tokens: int = 4096
    lr: float = 2e-3
    warmup: int = 30
    judge_share: float = 0.5
    demos: int = 0
    demo_chars: int = 600
    reply_chars: int = 4000
    max_tokens: int = 512
    temperature: float = 1.0
    min_p: float = 0.1
    greedy: bool = False
    seed: int = 0


class Fitting:
    """A training under way.

    Attributes:
        step, steps: how many have been taken, and how many there are.
        rows: what is trained on.
        counts: rows by kind, and replies that were too long to be trained ("too_long").
        prompts: writes their contexts.
        model: the model in training; its sampler has the weights of before until `finish`.
        losses: each step's loss in nats per trained token.
    """

    def __init__(
        self,
        library: Library,
        domain: Domain,
        config: TextConfig | None = None,
        state: dict[str, Any] | None = None,
    ) -> None:
        """Write the rows and lay the plan; see `TextModel.fit`."""
        self.library, self.config = library, config or TextConfig()
        c = self.config
        if not any(len(e) for e in library.episodes.values()):
            raise UserError("There is nothing to fit a simulator on: the library holds no steps.")
        layout = Layout.tiny(domain, demos=c.demos, demo_chars=c.demo_chars, reply_chars=c.reply_chars)
        self._print = f"{derive(_STATE, repr(c), tuple(library), repr(layout)):016x}"
        if state is not None and state["fingerprint"] != self._print:
            raise UserError(
                "The saved training of the simulator belongs to other recordings or another config. "
                "Begin afresh, or give it what it was begun with."
            )
        tokenizer = self._tokenizer(domain, layout) if state is None else _restore(state["tokenizer"])
        renderer = ChatRenderer(tokenizer, bos="<s>", turn="<turn>", end="<end>")
        longest = max(len(tokenizer.encode(text)) for text in self._replies(layout)) + 1
        most = min(c.max_tokens, longest + longest // 4 + 8)
        self.prompts = Prompts(
            renderer, layout, library, max_tokens=most, max_len=c.model.max_len, exclude_own=True
        )  # own recordings would show the very replies that are to be learned
        writer = RowWriter(self.prompts, c.judge_share)
        self.rows, self.counts = writer.rows(library), writer.counts
        self.batches = plan([len(r) for r in self.rows], c.epochs, c.batch_tokens, c.seed)[: c.max_steps]
        self.steps, self.step, self.losses = len(self.batches), 0, list[float]()
        room = max(len(r) for r in self.rows) + most  # dreams may grow beyond what was recorded
        room = min(c.model.max_len, -(-5 * room // 256) * 64)
        shape = replace(c.model, vocab_size=len(tokenizer), max_len=room, value_head=False)
        optimizer = OptimizerConfig(
            lr=c.lr, warmup=min(c.warmup, self.steps // 4), schedule="cosine", total=self.steps, final=0.05
        )
        self.model = TextModel(
            TinyPolicy.create(renderer, shape, seed=c.seed, optimizer=optimizer),
            layout,
            library,
            name="tiny",
            greedy=c.greedy,
            temperature=c.temperature,
            min_p=c.min_p,
            max_tokens=most,
            max_len=room,
        )
        if state is not None:
            self.load_state_dict(state)

    # ------------------------------------------------------------------ the loop

    async def run(self, on_step: OnFit | None = None) -> TextModel:
        """Take all steps that are left, then give the model."""
        while self.step < self.steps:
            metrics = self.advance()
            if on_step is not None and on_step(self, metrics):
                break
            await asyncio.sleep(0)
        return self.finish()

    def advance(self) -> dict[str, float]:
        """Take one step; return its metrics, the loss as "nll".

        Raises:
            IndexError: all steps have been taken.
            FloatingPointError: a gradient was not finite.
        """
        batch = [self.rows[i] for i in self.batches[self.step]]
        metrics = descend(require_learner(self.model.policy), batch)
        self.step += 1
        self.losses.append(metrics["nll"])
        return metrics

    def finish(self) -> TextModel:
        """Hand the weights to the sampler; the model with its metrics."""
        self.model.policy.sync()
        late = self.losses[-max(1, len(self.losses) // 10) :]
        self.model.metrics = {
            **{f"fit/{kind}": float(n) for kind, n in self.counts.items()},
            "fit/steps": float(self.step),
            **({"fit/first_loss": self.losses[0], "fit/loss": float(np.mean(late))} if late else {}),
        }
        return self.model

    def state_dict(self) -> dict[str, Any]:
        """All that going on exactly here needs."""
        renderer = self.model.policy.renderer
        assert isinstance(renderer, ChatRenderer)
        tokenizer = renderer.tokenizer
        return {
            "fingerprint": self._print,
            "step": self.step,
            "losses": list(self.losses),
            "learner": require_learner(self.model.policy).state_dict(),
            "tokenizer": {
                "backend": tokenizer.backend.to_str(),
                "specials": list(tokenizer.specials),
                "unk": tokenizer.unk,
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Inverse of `state_dict`; the tokenizer is taken over only when a fitting is made."""
        self.step, self.losses = int(state["step"]), list(state["losses"])
        require_learner(self.model.policy).load_state_dict(state["learner"])

    # ------------------------------------------------------------------ tokenizer

    def _replies(self, layout: Layout) -> Iterator[str]:
        for id in self.library:
            for _, reply in self.library.steps(id):
                yield layout.shown(reply)

    def _texts(self, layout: Layout) -> list[str]:
        """All that is written in rows, each text once."""
        found: dict[str, None] = {}
        for id, episode in self.library.episodes.items():
            found[episode.instruction] = None
            steps: Steps = self.library.steps(id)
            for action, reply in steps:
                found[action.text] = None
                found[layout.shown(reply)] = None
        return list(found)

    def _tokenizer(self, domain: Domain, layout: Layout) -> TextTokenizer:
        c, texts = self.config, self._texts(layout)
        kind = c.tokenizer
        if kind == "auto":
            words = {word for text in texts for word in text.split()}
            plain = all(" ".join(text.split()) == text for text in self._replies(layout))
            kind = "words" if plain and len(words) <= _MOST_WORDS else "bpe"
        longest = max(domain.ending.cap, *(len(e) for e in self.library.episodes.values()), 1)
        marks = [FAILED, DONE, NOTHING, JUDGE, RIGHT, WRONG, "[like]", "[world]", "[task]", "[changed]"]
        marks += [f"[{n}]" for n in range(1, 2 * longest + 1)]
        if kind == "words":
            return word_tokenizer([*texts, *marks], SPECIALS, unk=_UNKNOWN)
        return bpe_tokenizer([*_sample(texts, _BPE_CHARS, c.seed), *marks], c.vocab_size, SPECIALS)


def _sample(texts: Sequence[str], most: int, seed: int) -> list[str]:
    """Texts in hashed order until there are `most` characters."""
    order = list(range(len(texts)))
    rng(seed, "bpe").shuffle(order)
    out, chars = [], 0
    for i in order:
        if chars >= most:
            break
        out.append(texts[i])
        chars += len(texts[i])
    return out


def _restore(record: dict[str, Any]) -> TextTokenizer:
    return TextTokenizer(tokenizers.Tokenizer.from_str(record["backend"]), record["specials"], record["unk"])
