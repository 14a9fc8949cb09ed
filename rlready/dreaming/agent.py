"""The agent that is trained in a gym: a policy by its string, with a tokenizer of what the gym says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rlready.dream.gym import Gym
from rlready.errors import UserError
from rlready.policy.base import Policy
from rlready.policy.tiny import load_policy
from rlready.policy.tokenize import TextTokenizer, word_tokenizer
from rlready.start import build_tokenizer, tiny_policy

if TYPE_CHECKING:
    from rlready.dreaming.train import DreamTrainConfig

_MOST_WORDS = 2000
_SPECIALS = ("<s>", "<turn>", "<end>")


def check_policy(spec: str) -> None:
    """Refuse what names no policy, before anything is started.

    Raises:
        UserError: there is no such policy.
    """
    if spec != "tiny" and not (spec.startswith("hf:") and len(spec) > 3) and not Path(spec).is_dir():
        raise UserError(f'There is no policy "{spec}". Use tiny, hf:NAME, or the folder of a saved policy.')


def policy_of(spec: str, gym: Gym, config: DreamTrainConfig, seed: int, folder: Path) -> tuple[Policy, bool]:
    """A policy by its string, and whether it was trained before (so that it need not be cloned).

    Args:
        spec: "tiny" (from scratch), "hf:NAME", or the folder of a saved tiny policy.
        gym: its texts make the tokenizer of a new tiny policy.
        config: its shape.
        seed: of its first weights.
        folder: where the tokenizer is kept, so that a resumed run has the same.

    Raises:
        UserError: there is no such policy.
    """
    if spec == "tiny":
        from rlready.policy.tiny.save import fresh_folder

        place = folder / "tokenizer"
        if place.exists():
            words = TextTokenizer.load(place)
        else:
            words = _tokenizer(gym, config)
            with fresh_folder(place) as work:
                words.save(work, bos="<s>", eos="<end>")
        tasks = gym.tasks("train", verifier=lambda task, trajectory: 0.0)
        return tiny_policy(tasks, tokenizer=words, shape=config.tiny, optimizer=config.optimizer, seed=seed), False
    if spec.startswith("hf:"):
        from rlready.policy.hf import HFPolicy, LoraSettings

        return HFPolicy.load(
            spec.removeprefix("hf:"), lora=LoraSettings(), optimizer=config.optimizer, seed=seed
        ), False
    check_policy(spec)
    return load_policy(spec), True


def _tokenizer(gym: Gym, config: DreamTrainConfig) -> TextTokenizer:
    """Words where actions are chosen from a list and words are few, else pieces that can write anything.

    A gym and a real environment say words that no log held, so words have a token for unknown ones; it stands in what
    the agent reads, never in what it is taught to write.
    """
    texts = texts_of(gym)
    kind = config.tokenizer
    if kind == "auto":
        few = len({word for text in texts for word in text.split()}) <= _MOST_WORDS
        kind = "words" if gym.limited and few else "bpe"
    if kind == "words":
        return word_tokenizer(texts, _SPECIALS, unk="<unk>")
    return build_tokenizer(texts, kind, config.vocab_size)


def texts_of(gym: Gym, most: int = 2000) -> list[str]:
    """What a policy in this gym may read or write."""
    out: dict[str, None] = dict.fromkeys(gym.domain.actions or ())
    for form in gym.domain.errors.values():
        out[form.text] = None
    for id in list(gym.library)[:most]:
        episode = gym.library.episodes[id]
        out.update(dict.fromkeys(m.text for m in gym.domain.prompt(episode.instruction)))
        for action, reply in gym.library.steps(id):
            out[action.text] = None
            out[reply.text] = None
    return [text for text in out if text]
