"""The experience model: a language model that reasons about what happens next, and judges at the end.

It is fitted on annotated episodes by cross-entropy on trace and reply (arXiv 2511.03773, the two terms of its SFT
loss, both with weight 1) in the layout of `dream.format`, and asked for four things: the hidden start of a world
(`draw_card`), the answer to an action (`answer`), a harder variation of a task (`vary`), and its own quality on
held-out logs (`evaluate`).

Everything drawn is a function of the weights, the prompt and a seed that is hashed from what happened, never of the
batch or of the time: the same actions in the same world give the same episode.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rlready.dream.format import SPECIALS, Annotation, Answer, DreamFormat, Unparsable
from rlready.dream.memory import DreamMemory
from rlready.dream.samples import prompts_of, variation_pairs
from rlready.errors import UserError
from rlready.experience.episode import LoggedEpisode
from rlready.experience.store import ExperienceStore
from rlready.policy.base import OptimizerConfig, Policy, SampleRequest, SamplingParams
from rlready.policy.render import ChatRenderer
from rlready.policy.supervised import OnStep, fit, plan
from rlready.policy.tiny import TinyConfig, TinyPolicy, load_policy, save_policy
from rlready.policy.tiny.save import fresh_folder
from rlready.policy.tokenize import word_tokenizer
from rlready.seeds import derive, hashed_uniform, np_rng

KindOf = Callable[[str], str]


@dataclass(frozen=True)
class DreamConfig:
    """Size, training and decoding of an experience model. The numbers are ours, for small text worlds on a CPU.

    Attributes:
        model: shape of the transformer; vocabulary and length are set from the data.
        epochs, batch_tokens, lr, warmup: of the training; the learning rate falls along a cosine. Small batches
            matter: the same data in a fourth of the steps learned nothing.
        variations: rows that teach to vary tasks, as a share of the episodes.
        held_out: share of the tasks whose episodes are kept for measuring.
        temperature, min_p: of answers; a word less likely than `min_p` times the likeliest is never drawn.
        greedy: take the likeliest word always.
        card_min_p: the same floor for hidden starts, lower so that rare worlds are met.
        task_temperature: of variations.
        max_answer, max_card, max_task: caps in tokens.
        seed: of initial weights, batches and the held-out cut.
    """

    model: TinyConfig = field(default_factory=TinyConfig)
    epochs: int = 3
    batch_tokens: int = 3000
    lr: float = 1.5e-3
    warmup: int = 30
    variations: float = 0.15
    held_out: float = 0.05
    temperature: float = 1.0
    min_p: float = 0.1
    greedy: bool = False
    card_min_p: float = 0.02
    task_temperature: float = 1.0
    max_answer: int = 48
    max_card: int = 32
    max_task: int = 64
    seed: int = 0

    @property
    def answer(self) -> SamplingParams:
        """How answers are decoded, stop ids left open."""
        return SamplingParams(
            temperature=0.0 if self.greedy else self.temperature, min_p=self.min_p, max_tokens=self.max_answer
        )


class ExperienceModel:
    """A fitted simulator: weights, layout and the memory it is grounded in.

    Attributes:
        form: the layout.
        policy: sampler and learner.
        memory: what is retrieved.
        config: as fitted.
        metrics: training and held-out numbers of the fit.
    """

    def __init__(
        self,
        form: DreamFormat,
        policy: Policy,
        memory: DreamMemory,
        config: DreamConfig | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Put the parts together; `fit` and `load` are the usual ways here."""
        self.form = form
        self.policy = policy
        self.memory = memory
        self.config = config or DreamConfig()
        self.metrics = dict(metrics or {})
        self.worlds: dict[tuple[str, int], tuple[str, ...]] = {}
        self.resampled = 0

    # ------------------------------------------------------------------ fitting

    @classmethod
    async def fit(
        cls,
        episodes: Sequence[LoggedEpisode],
        annotations: Sequence[Annotation],
        form: DreamFormat,
        *,
        config: DreamConfig | None = None,
        store: ExperienceStore | None = None,
        kind_of: KindOf | None = None,
        progress: OnStep | None = None,
        **memory: Any,
    ) -> ExperienceModel:
        """Train an experience model on annotated episodes.

        Args:
            episodes: what was logged; failures and random play belong to it.
            annotations: one per episode.
            form: the layout, from `DreamFormat.build`.
            config: size, training, decoding.
            store: where the memory keeps its episodes; in memory by default.
            kind_of: names an action's kind, so that held-out accuracy is reported by kind.
            progress: called after every step with (step, steps, metrics, the loss among them as "nll"); returning True
                ends the training.
            memory: further fields of `DreamMemory`.

        Returns:
            The model; `metrics` holds the loss in nats per trained token (of the first step, and over the last tenth)
            and held-out accuracy.

        Raises:
            UserError: no episodes, or a record that cannot be written in the layout.
        """
        config = config or DreamConfig()
        if not episodes:
            raise UserError("There is nothing to fit an experience model on: no episodes were given.")
        held = [hashed_uniform(config.seed, "held out", e.task_id) < config.held_out for e in episodes]
        train = [(e, a) for e, a, h in zip(episodes, annotations, held, strict=True) if not h]
        test = [(e, a) for e, a, h in zip(episodes, annotations, held, strict=True) if h]
        kept = DreamMemory(form, store=store, **memory)
        kept.seed([e for e, _ in train], [a for _, a in train])
        demos = kept.demos_for([e for e, _ in train], [a for _, a in train])
        rows = [r for (e, a), d in zip(train, demos, strict=True) for r in form.rows(e, a, d)]
        pairs = variation_pairs([e for e, _ in train], [a for _, a in train])
        wanted = min(len(pairs), int(config.variations * len(train)))
        chosen = np_rng(config.seed, "variations").permutation(len(pairs))[:wanted]
        rows += [form.task_row(*pairs[i]) for i in chosen]
        batches = plan([len(r) for r in rows], config.epochs, config.batch_tokens, config.seed)
        policy = new_policy(form, config, steps=len(batches), longest=max(len(r) for r in rows))
        losses = [metrics["nll"] for metrics in fit(policy, rows, batches, on_step=progress)]
        metrics = {
            "fit/first_loss": losses[0],
            "fit/loss": float(np.mean(losses[-max(1, len(losses) // 10) :])),
            "fit/steps": float(len(losses)),
        }
        model = cls(form, policy, kept, config, metrics)
        if test:
            model.metrics |= await model.evaluate([e for e, _ in test], [a for _, a in test], kind_of=kind_of)
        return model

    # ------------------------------------------------------------------ what it is asked for

    async def draw_card(self, instruction: str, seed: int) -> tuple[str, ...]:
        """The hidden start of the world (instruction, seed): drawn once, then the same for everyone who asks.

        Raises:
            Unparsable: three tries in a row gave no card that could be read, or none with anything in it.
        """
        known = self.worlds.get((instruction, seed))
        if known is not None:
            return known
        params = SamplingParams(
            temperature=1.0,
            min_p=self.config.card_min_p,
            max_tokens=self.config.max_card,
            stop_ids=(self.form.ids["<go>"],),
        )
        reason = ""
        for attempt in range(3):
            noise = derive("card", instruction, seed, attempt)
            request = SampleRequest(self.form.head(instruction), params, noise)
            (sample,) = await self.policy.sampler.sample([request])
            try:
                card = self.form.parse_card(sample.completion_ids)
            except Unparsable as error:
                reason = str(error)
                continue
            if card:
                return self.worlds.setdefault((instruction, seed), card)
            reason = "the card is empty: nothing is to be done in this world"
        raise Unparsable(reason)

    async def answer(
        self, prompt: list[int], *, closing: bool, noise: int, session: Any = None
    ) -> tuple[Answer, list[int]]:
        """What the model writes after an action, and its token ids.

        An answer that cannot be read is drawn once more with other noise.

        Args:
            prompt: everything up to where the answer is to be written.
            closing: whether the action was the closing one.
            noise: seed of the draw, hashed by the caller from the world and what happened in it.
            session: of the sampler's prefix cache.

        Raises:
            Unparsable: the second draw could not be read either.
        """
        params = replace(self.config.answer, stop_ids=self.form.stop_ids)
        (sample,) = await self.policy.sampler.sample([SampleRequest(prompt, params, noise, session)])
        try:
            return self.form.parse_answer(sample.completion_ids, closing=closing), sample.completion_ids
        except Unparsable:
            self.resampled += 1
        if params.temperature == 0:
            params = replace(params, temperature=self.config.temperature)
        (sample,) = await self.policy.sampler.sample([SampleRequest(prompt, params, derive("again", noise), session)])
        return self.form.parse_answer(sample.completion_ids, closing=closing), sample.completion_ids

    async def vary(self, seeds: Sequence[tuple[str, Sequence[str], int]]) -> list[tuple[str, tuple[str, ...]] | None]:
        """A variation of each (instruction, card, seed); None where what was written could not be read."""
        params = SamplingParams(
            temperature=self.config.task_temperature,
            min_p=self.config.card_min_p,
            max_tokens=self.config.max_task,
            stop_ids=(self.form.ids["<go>"],),
        )
        requests = [SampleRequest(self.form.vary(i, c), params, derive("vary", i, tuple(c), s)) for i, c, s in seeds]
        out: list[tuple[str, tuple[str, ...]] | None] = []
        for sample in await self.policy.sampler.sample(requests):
            try:
                out.append(self.form.parse_task(sample.completion_ids))
            except Unparsable:
                out.append(None)
        return out

    # ------------------------------------------------------------------ measuring

    async def evaluate(
        self,
        episodes: Sequence[LoggedEpisode],
        annotations: Sequence[Annotation],
        *,
        kind_of: KindOf | None = None,
    ) -> dict[str, float]:
        """Greedy answers given the recorded history, compared word for word with what was recorded.

        Returns:
            `heldout/<kind>`: share of exact replies by kind of action ("verdict" for the closing one),
            `heldout/trace`: share of exact traces, `heldout/unparsable`, and `heldout/steps`.
        """
        form = self.form
        demos = self.memory.demos_for(episodes, annotations)
        requests: list[SampleRequest] = []
        wanted: list[tuple[str, Answer]] = []
        params = replace(self.config.answer, temperature=0.0, stop_ids=form.stop_ids)
        for episode, annotation, shown in zip(episodes, annotations, demos, strict=True):
            for (_, action, truth), prompt in zip(
                form.steps(episode, annotation), prompts_of(form, episode, annotation, shown), strict=True
            ):
                kind = "verdict" if action == form.closing else kind_of(action) if kind_of else "reply"
                requests.append(SampleRequest(prompt, params, 0))
                wanted.append((kind, truth))
        right: dict[str, list[float]] = defaultdict(list)
        for start in range(0, len(requests), 256):
            samples = await self.policy.sampler.sample(requests[start : start + 256])
            for sample, (kind, truth) in zip(samples, wanted[start : start + 256], strict=True):
                try:
                    said = form.parse_answer(sample.completion_ids, closing=kind == "verdict")
                except Unparsable:
                    right["unparsable"].append(1.0)
                    right[kind].append(0.0)
                    continue
                right["unparsable"].append(0.0)
                right[kind].append(float(said.reply == truth.reply and said.verdict == truth.verdict))
                if form.trace:
                    right["trace"].append(float(said.trace == truth.trace))
        out = {f"heldout/{kind}": float(np.mean(v)) for kind, v in sorted(right.items())}
        return out | {"heldout/steps": float(len(requests))}

    # ------------------------------------------------------------------ saving

    def save(self, folder: str | Path) -> None:
        """Write weights, layout and memory as one folder; an older one stays until the new one is whole."""
        body = {"format": self.form.to_json(), "config": asdict(self.config), "metrics": self.metrics}
        with fresh_folder(Path(folder)) as work:
            save_policy(self.policy, work)
            (work / "dream.json").write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
            with ExperienceStore(work) as store:
                for entry in self.memory.store:
                    store.append(entry.episode, entry.notes, id=entry.id)

    @classmethod
    def load(cls, folder: str | Path, **memory: Any) -> ExperienceModel:
        """Inverse of `save`. Further arguments go to `DreamMemory`.

        Raises:
            UserError: the folder holds no experience model.
        """
        folder = Path(folder)
        try:
            body = json.loads((folder / "dream.json").read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise UserError(f"There is no experience model in {folder} (no dream.json).") from error
        form = DreamFormat.from_json(body["format"])
        config = DreamConfig(**{**body["config"], "model": TinyConfig(**body["config"]["model"])})
        store = ExperienceStore()
        with ExperienceStore(folder, readonly=True) as saved:
            for entry in saved:
                store.append(entry.episode, entry.notes, id=entry.id)
        kept = DreamMemory(form, store=store, **memory)
        return cls(form, load_policy(folder), kept, config, body["metrics"])


def new_policy(form: DreamFormat, config: DreamConfig, *, steps: int, longest: int) -> TinyPolicy:
    """A fresh transformer for a layout; its learning rate falls along a cosine to a twentieth.

    Args:
        form: gives the vocabulary.
        config: shape, learning rate, warm-up and the seed of the weights.
        steps: optimizer steps in all.
        longest: tokens of the longest training row; dreams may grow half as long again.

    Raises:
        ValueError: the tokenizer numbers the words in another order than the layout.
    """
    tokenizer = word_tokenizer(form.words, SPECIALS)
    if tuple(tokenizer.token(i) for i in range(len(tokenizer))) != form.tokens:
        raise ValueError("The tokenizer numbers the layout's words in another order than the layout.")
    room = max(config.model.max_len, -(-3 * longest // 128) * 64)
    shape = replace(config.model, vocab_size=len(tokenizer), max_len=room, value_head=False)
    warmup = min(config.warmup, steps // 4)
    optimizer = OptimizerConfig(lr=config.lr, warmup=warmup, schedule="cosine", total=steps, final=0.05)
    renderer = ChatRenderer(tokenizer, bos="<s>", turn="<card>", end="<go>")
    return TinyPolicy.create(renderer, shape, seed=config.seed, optimizer=optimizer)
