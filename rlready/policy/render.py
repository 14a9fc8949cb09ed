"""Messages to token ids and back, append-only.

The compact dialect, for small models: contents follow one another, `turn` opens the assistant's turn, `end` (if there
is one) closes it.

    <s> user words > completion reply words > completion ...          end=None: turns end by choices or length
    <s> user words > completion <end> reply words > completion <end>  end="<end>"

With `roles` every message of a role is opened by that role's token, so that ordinary chat is written the same way.
`extend` appends to what was seen and sampled; it never decodes and re-encodes a completion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rlready.errors import UserError
from rlready.policy.tokenize import TextTokenizer
from rlready.types import Message, Role

_Before = Literal["opened", "content", "closed"]


class ChatRenderer:
    """Writes messages in the compact dialect; implements `policy.base.Renderer`.

    Attributes:
        tokenizer: text to ids.
        bos, turn, end, roles: the dialect's own tokens.
        control: their ids. Where a message's own words contain one, the dialect becomes ambiguous; `controls_in`
            finds it.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        bos: str | None = "<s>",
        turn: str = ">",
        end: str | None = None,
        roles: Mapping[Role, str] | None = None,
    ) -> None:
        """Choose the dialect's tokens; all must be in the vocabulary.

        Args:
            tokenizer: text to ids.
            bos: token that a context starts with; None for none.
            turn: token that opens the assistant's turn.
            end: token that ends it; None where turns end by choices or length alone.
            roles: tokens that open messages of other roles.

        Raises:
            UserError: a token is not in the vocabulary.
        """
        self.tokenizer = tokenizer
        self.bos, self.turn, self.end = bos, turn, end
        self.roles: dict[Role, str] = dict(roles or {})
        self._bos = [] if bos is None else [tokenizer.id(bos)]
        self._turn = tokenizer.id(turn)
        self._end = None if end is None else tokenizer.id(end)
        self._roles = {role: tokenizer.id(token) for role, token in self.roles.items()}
        self._gap = tokenizer.encode("\n")
        ids = [*self._bos, self._turn, *self._roles.values(), *([] if self._end is None else [self._end])]
        self.control = frozenset(ids)

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """The end token's id, if there is one."""
        return () if self._end is None else (self._end,)

    def render(self, messages: Sequence[Message]) -> list[int]:
        """The whole prompt, ready for the assistant to continue.

        Raises:
            UserError: a message has an image, or a word that is not in the vocabulary.
        """
        ids = list(self._bos)
        self._append(ids, "opened", messages)
        return ids

    def extend(self, prompt_ids: list[int], completion_ids: list[int], new: Sequence[Message]) -> list[int]:
        """The next prompt: what was seen, what was sampled, and the new messages.

        A completion that was cut short is closed with the end token.

        Raises:
            UserError: a message has an image, or a word that is not in the vocabulary.
        """
        ids = prompt_ids + completion_ids
        if self._end is not None and (not completion_ids or completion_ids[-1] != self._end):
            ids.append(self._end)
        self._append(ids, "content" if self._end is None else "closed", new)
        return ids

    def encode_completion(self, text: str) -> list[int]:
        """The ids of an assistant turn with this text, end token included.

        Raises:
            UserError: a word is not in the vocabulary, or nothing would be left of the turn.
        """
        ids = self.tokenizer.encode(text)
        if self._end is not None:
            ids.append(self._end)
        if not ids:
            raise UserError("An empty assistant turn has no tokens. Give it a text, or the renderer an end token.")
        return ids

    def decode(self, completion_ids: Sequence[int]) -> str:
        """The text of a completion, a closing end token left out."""
        if self._end is not None and completion_ids and completion_ids[-1] == self._end:
            completion_ids = completion_ids[:-1]
        return self.tokenizer.decode(completion_ids)

    def controls_in(self, text: str) -> list[str]:
        """The dialect's own tokens that a text contains; for the doctor."""
        return [self.tokenizer.token(i) for i in self.tokenizer.encode(text) if i in self.control]

    def _append(self, ids: list[int], before: _Before, messages: Sequence[Message]) -> None:
        """Append messages and open the assistant's turn.

        Where the tokenizer keeps blank space (BPE), a line break parts two contents that no token parts. A word-level
        tokenizer needs none.
        """
        for message in messages:
            if message.role == "assistant":
                ids.append(self._turn)
                ids += self._content(message)
                before = "content"
                if self._end is not None:
                    ids.append(self._end)
                    before = "closed"
                continue
            opener = self._roles.get(message.role)
            if opener is not None:
                ids.append(opener)
            elif before == "content":
                ids += self._gap
            ids += self._content(message)
            before = "content"
        ids.append(self._turn)

    def _content(self, message: Message) -> list[int]:
        if not isinstance(message.content, str) and any(part.kind != "text" for part in message.content):
            raise UserError(
                f"A {message.role} message has an image, and this renderer writes text only. Leave the image out, "
                "or use a policy that sees images."
            )
        return self.tokenizer.encode(message.text)

    def to_json(self) -> dict[str, Any]:
        """The dialect, without the tokenizer."""
        return {"bos": self.bos, "turn": self.turn, "end": self.end, "roles": dict(self.roles)}

    @classmethod
    def from_json(cls, tokenizer: TextTokenizer, record: Mapping[str, Any]) -> ChatRenderer:
        """Inverse of `to_json`."""
        return cls(tokenizer, record["bos"], record["turn"], record["end"], record["roles"])

    def chat_template(self) -> str:
        """The same dialect as a Jinja template for `apply_chat_template` of `transformers`.

        It gives the ids of `render` for texts that encode the same in pieces as in one, which is all of them for a
        word-level tokenizer.
        """
        blank = "" if self._gap else " "
        parts = "not loop.first" + (" and loop.previtem.role != 'assistant'" if self.end else "")
        gap = f"{{% if {parts} %}}{{{{ '\\n' }}}}{{% endif %}}" if self._gap else ""
        openers = "".join(
            f"{{% {'if' if i == 0 else 'elif'} message.role == '{role}' %}}{token}{blank}"
            for i, (role, token) in enumerate(self.roles.items())
        )
        opened = f"{openers}{{% else %}}{gap}{{% endif %}}" if openers else gap
        return (
            f"{self.bos + blank if self.bos else ''}"
            "{% for message in messages %}{% if message.role == 'assistant' %}"
            f"{self.turn}{blank}{{{{ message.content }}}}{blank}{self.end + blank if self.end else ''}"
            f"{{% else %}}{opened}{{{{ message.content }}}}{blank}{{% endif %}}{{% endfor %}}"
            f"{{% if add_generation_prompt %}}{self.turn}{{% endif %}}"
        )
