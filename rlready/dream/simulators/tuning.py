"""Tuning a Hugging Face model to be the environment of the logs: the rows of `simulators.rows` and an adapter.

The model keeps its own tokenizer and chat template, and is told its role and the domain's rules in a system message. A
folder that `save` wrote is found by `load_simulator("hf:NAME", ...)`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlready.dream.library import Library
from rlready.dream.simulators.fitting import Fitting, TextConfig
from rlready.dream.simulators.layout import Layout
from rlready.dream.simulators.prompts import Prompts
from rlready.dream.simulators.rows import RowWriter
from rlready.dream.simulators.text import TextModel
from rlready.errors import UserError
from rlready.policy.base import OptimizerConfig, require_learner
from rlready.policy.supervised import plan
from rlready.policy.tiny.save import fresh_folder
from rlready.seeds import derive

if TYPE_CHECKING:
    from rlready.dream.domain import Domain
    from rlready.policy.hf import HFPolicy

TUNING = TextConfig(epochs=3, batch_tokens=4096, lr=2e-4, warmup=10, greedy=True)
"""Our settings for an adapter: few passes at the learning rate that adapters are given."""


class Tuning(Fitting):
    """A tuning under way; used as a `Fitting` is.

    Attributes:
        policy: the model in training.
    """

    def __init__(
        self,
        library: Library,
        domain: Domain,
        policy: HFPolicy,
        *,
        name: str,
        config: TextConfig = TUNING,
        state: dict[str, Any] | None = None,
    ) -> None:
        """Write the rows and lay the plan. What the config says of shape and tokenizer is the model's own here.

        Args:
            library: what is learned from.
            domain: its form.
            policy: the model, as `HFPolicy.load(NAME, lora=LoraSettings())` gives it; its optimizer starts afresh.
            name: as a user writes the simulator, "hf:NAME".
            config: passes, batches, decoding.
            state: what `state_dict` gave, to go on from.

        Raises:
            UserError: nothing was recorded, or the state belongs to other recordings, another model or config.
        """
        if not any(len(e) for e in library.episodes.values()):
            raise UserError("There is nothing to fit a simulator on: the library holds no steps.")
        self.library, self.config, self.policy = library, config, policy
        c = config
        layout = Layout.of(domain, demos=c.demos, demo_chars=c.demo_chars, reply_chars=c.reply_chars)
        self._print = f"{derive('tuning', name, repr(c), tuple(library), repr(layout)):016x}"
        if state is not None and state["fingerprint"] != self._print:
            raise UserError(
                "The saved tuning of the simulator belongs to other recordings, another model or another config. "
                "Begin afresh, or give it what it was begun with."
            )
        room = min(policy.max_len, c.model.max_len)
        most = min(c.max_tokens, room // 2)
        self.prompts = Prompts(policy.renderer, layout, library, max_tokens=most, max_len=room, exclude_own=True)
        writer = RowWriter(self.prompts, c.judge_share)
        self.rows, self.counts = writer.rows(library), writer.counts
        self.batches = plan([len(r) for r in self.rows], c.epochs, c.batch_tokens, c.seed)[: c.max_steps]
        self.steps, self.step, self.losses = len(self.batches), 0, []
        require_learner(policy).configure(
            OptimizerConfig(
                lr=c.lr, warmup=min(c.warmup, self.steps // 4), schedule="cosine", total=self.steps, final=0.05
            )
        )
        self.model = TextModel(
            policy,
            layout,
            library,
            name=name,
            greedy=c.greedy,
            temperature=c.temperature,
            min_p=c.min_p,
            max_tokens=most,
            max_len=room,
        )
        if state is not None:
            self.load_state_dict(state)

    def state_dict(self) -> dict[str, Any]:
        """All that going on exactly here needs, but for the frozen weights of the model."""
        return {
            "fingerprint": self._print,
            "step": self.step,
            "losses": list(self.losses),
            "learner": require_learner(self.policy).state_dict(),
        }

    def save(self, folder: str | Path) -> None:
        """Write adapter (or weights), tokenizer, layout and decoding as one folder, in one move."""
        with fresh_folder(Path(folder)) as work:
            self.policy.save_pretrained(work)
            self.model.save_settings(work)
