"""Tokenizers for small vocabularies, built from a task set's own text with the `tokenizers` library.

Two kinds: *word level*, where every blank-separated word is one token (fastest, and right for small languages of
one's own), and *byte-level BPE*, which can write anything. An unknown word is an error unless an `<unk>` token was
asked for: training on a silent `<unk>` is silent wrong training. Saved as a Hugging Face folder (`tokenizer.json`,
`tokenizer_config.json`).
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from rlready.errors import UserError

_CACHE_LIMIT = 50_000


class TextTokenizer:
    """Text to ids and back, over a `tokenizers.Tokenizer`.

    Attributes:
        backend: the library's object.
        specials: the special tokens, such as `<s>`.
        unk: the unknown token, if one was asked for.
    """

    def __init__(self, backend: tokenizers.Tokenizer, specials: Sequence[str] = (), unk: str | None = None) -> None:
        """Wrap a tokenizer.

        Args:
            backend: a trained tokenizer without post-processing (nothing is added around a text).
            specials: its special tokens; they decode to themselves.
            unk: the token that unknown words become; None makes them an error.
        """
        backend.encode_special_tokens = True
        self.backend = backend
        self.specials = tuple(specials)
        self.unk = unk
        self._ids: dict[str, int] = backend.get_vocab(with_added_tokens=True)
        self._unk_id = None if unk is None else self._ids[unk]
        self._words = isinstance(backend.model, models.WordLevel)
        self._tokens = {i: token for token, i in self._ids.items()}
        self._cache: dict[str, tuple[int, ...]] = {}

    def __len__(self) -> int:
        """Size of the vocabulary, special tokens included."""
        return len(self._ids)

    def id(self, token: str) -> int:
        """The id of one token.

        Raises:
            UserError: no such token.
        """
        try:
            return self._ids[token]
        except KeyError:
            raise self._unknown(token) from None

    def token(self, index: int) -> str:
        """The token with this id, as it is written in the vocabulary."""
        return self._tokens[index]

    def encode(self, text: str) -> list[int]:
        """The ids of a text; nothing is added.

        Raises:
            UserError: a word is not in the vocabulary, and no unknown token was asked for.
        """
        known = self._cache.get(text)
        if known is None:
            known = tuple(
                self._encode_words(text) if self._words else self.backend.encode(text, add_special_tokens=False).ids
            )
            if len(self._cache) >= _CACHE_LIMIT:
                self._cache.clear()
            self._cache[text] = known
        return list(known)

    def _encode_words(self, text: str) -> list[int]:
        """What the library's whitespace split and word model give, without their cost per call."""
        ids = self._ids
        out: list[int] = []
        for word in text.split():
            index = ids.get(word, self._unk_id)
            if index is None:
                raise self._unknown(word)
            out.append(index)
        return out

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, special tokens included. Words are joined by blanks.

        Raises:
            UserError: an id is outside the vocabulary.
        """
        try:
            if self._words:
                return " ".join([self._tokens[i] for i in ids])
            text: str = self.backend.decode(list(ids), skip_special_tokens=False)
            return text
        except (KeyError, OverflowError):
            bad = next(i for i in ids if i not in self._tokens)
            raise UserError(
                f"Id {bad} is outside the vocabulary of {len(self)} tokens: ids and tokenizer do not belong together."
            ) from None

    def _unknown(self, word: str) -> UserError:
        near = difflib.get_close_matches(word, self._ids, n=3, cutoff=0.6)
        hint = f" Nearest: {', '.join(near)}." if near else ""
        return UserError(
            f'The word "{word}" is not in the vocabulary of {len(self)} tokens.{hint} Add it to the texts that the '
            'tokenizer is built from, or ask for an unknown token with unk="<unk>".'
        )

    def save(
        self, folder: str | Path, *, bos: str | None = None, eos: str | None = None, chat_template: str | None = None
    ) -> None:
        """Write `tokenizer.json` and `tokenizer_config.json`, which `transformers.AutoTokenizer` reads.

        Args:
            folder: where to; made if it is missing.
            bos: start-of-text token to declare.
            eos: end-of-turn token to declare.
            chat_template: Jinja template of the dialect, if there is one.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.backend.save(str(folder / "tokenizer.json"))
        settings: dict[str, Any] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "bos_token": bos,
            "eos_token": eos,
            "unk_token": self.unk,
            "chat_template": chat_template,
            "rlready": {"specials": list(self.specials)},
        }
        (folder / "tokenizer_config.json").write_text(
            json.dumps({k: v for k, v in settings.items() if v is not None}, indent=2) + "\n", encoding="utf-8"
        )

    @classmethod
    def load(cls, folder: str | Path) -> TextTokenizer:
        """Read what `save` wrote.

        Raises:
            UserError: a file is missing or broken.
        """
        folder = Path(folder)
        try:
            backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
            settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        except Exception as error:  # the library raises plain Exception
            raise UserError(f"{folder}: no readable tokenizer there ({error}). Was it saved by rlready?") from error
        return cls(backend, settings.get("rlready", {}).get("specials", ()), settings.get("unk_token"))


def word_tokenizer(
    texts_or_words: Iterable[str], specials: Sequence[str] = ("<s>", ">", "<end>"), unk: str | None = None
) -> TextTokenizer:
    """A word-level tokenizer of every blank-separated word in the texts.

    Args:
        texts_or_words: texts or single words; order and repetition do not matter (ids are in sorted order).
        specials: tokens that come first, in this order, with ids 0, 1, ...
        unk: token for unknown words; None makes them an error.

    Raises:
        UserError: a special token holds a blank.
    """
    first = list(dict.fromkeys([*specials, *([unk] if unk else [])]))
    for token in first:
        if len(token.split()) != 1:
            raise UserError(f'The special token "{token}" must be one word without blanks.')
    words = sorted({word for text in texts_or_words for word in text.split()} - set(first))
    vocab = {word: i for i, word in enumerate([*first, *words])}
    backend = tokenizers.Tokenizer(models.WordLevel(vocab, unk_token=unk or "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return TextTokenizer(backend, first, unk)


def bpe_tokenizer(
    texts: Iterable[str], vocab_size: int, specials: Sequence[str] = ("<s>", "<turn>", "<end>")
) -> TextTokenizer:
    """A byte-level BPE tokenizer trained on the texts. Every text has ids; none is unknown.

    A special token that occurs in a text is written out in bytes: text cannot forge the tokens of a dialect.

    Args:
        texts: training text.
        vocab_size: number of tokens, special tokens and the 256 bytes included.
        specials: tokens that come first, in this order.

    Raises:
        UserError: the vocabulary is too small for bytes and special tokens, or a special token is a single character.
    """
    short = [token for token in specials if len(token) < 2]
    if short:
        raise UserError(f'The special token "{short[0]}" is also a byte of ordinary text. Choose a longer one.')
    least = 256 + len(set(specials))
    if vocab_size < least:
        raise UserError(
            f"A byte-level BPE vocabulary needs at least {least} tokens (256 bytes and the special tokens)."
        )
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(specials),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    return TextTokenizer(backend, specials)
