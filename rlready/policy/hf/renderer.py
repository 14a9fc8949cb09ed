"""Messages to ids by a tokenizer's own chat template, append-only.

A chat template writes a whole conversation; an agent's context must only grow. So the next prompt is bridged: the
template writes a short stand-in conversation whose assistant turn is a placeholder, and what stands behind the
placeholder (the end of the turn, the new messages, the opening of the next turn) is appended to what was really seen
and sampled. Templates that write new messages into old places (a system prompt moved to the last user message, say)
cannot be bridged and are refused.

What a template cannot show is rewritten before it is asked: a system message goes in front of the first user message,
a tool's result becomes a user message, neighbouring user messages are joined. All of this is found out by trying.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlready.errors import UserError
from rlready.types import Message

_HOLD = "rlready7placeholder"
_MARK = "rlready7marker"


class HFRenderer:
    """Renders with a Hugging Face tokenizer; implements `policy.base.Renderer`.

    Attributes:
        tokenizer: the tokenizer, with a chat template.
        name: of the model, for messages.
        end: the id that closes an assistant turn; None where the template closes none.
        system, tools, repeats: whether the template shows system messages and tool results, and takes several user
            messages in a row.
    """

    def __init__(
        self, tokenizer: Any, *, name: str = "the model", ends: Sequence[int] = (), options: Mapping[str, Any] = {}
    ) -> None:
        """Try the template out.

        Args:
            tokenizer: with a `chat_template`.
            name: of the model, for messages.
            ends: further ids that end a turn, as the model's generation settings list them.
            options: given to the template, such as `{"enable_thinking": False}`.

        Raises:
            UserError: there is no template, or it does not show a plain exchange of user and assistant.
        """
        self.tokenizer = tokenizer
        self.name = name
        self.options = dict(options)
        if not tokenizer.chat_template:
            raise UserError(
                f"The tokenizer of {name} has no chat template, so messages cannot be written for it. Take an "
                "instruction-tuned model, or pass chat_template=... with a Jinja template."
            )
        self.system = self.tools = self.repeats = True
        user, hold = {"role": "user", "content": _MARK}, {"role": "assistant", "content": _HOLD}
        try:
            text = self._apply([user, hold])
        except Exception as error:
            raise UserError(f"The chat template of {name} cannot write a plain conversation: {error}") from error
        if _MARK not in text or _HOLD not in text:
            raise UserError(f"The chat template of {name} leaves out user or assistant messages.")
        plain = {"role": "user", "content": "x"}
        marked = {"role": "tool", "content": _MARK, "tool_call_id": "call_1_0", "name": "tool"}
        self.system = self._shows([{"role": "system", "content": _MARK}, plain])
        self.tools = self._shows([plain, hold, marked])
        self.repeats = self._shows([plain, {"role": "user", "content": _MARK}])
        self._problem = self._append_problem()
        tail = "" if self._problem else self._tail([Message.user("x")])
        first = self._encode(tail)[:1]
        special = {*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()}
        self.end: int | None = first[0] if first and first[0] in special else tokenizer.eos_token_id
        self._closes = bool(first) and first[0] == self.end
        known = (self.end, tokenizer.eos_token_id, *ends)
        self._stop_ids = tuple(dict.fromkeys(int(i) for i in known if i is not None))

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant turn."""
        return self._stop_ids

    def render(self, messages: Sequence[Message]) -> list[int]:
        """The whole prompt, ready for the assistant to continue.

        Raises:
            UserError: a message has an image, or the template refuses the conversation.
        """
        return self._encode(self._write(self._dicts(messages), True))

    def extend(self, prompt_ids: list[int], completion_ids: list[int], new: Sequence[Message]) -> list[int]:
        """The next prompt: what was seen, what was sampled, and the new messages.

        A completion that was cut short is closed as the template closes a turn.

        Raises:
            UserError: the template is not append-only, or a message has an image.
        """
        if self._problem:
            raise UserError(self._problem)
        tail = self._encode(self._tail(new))
        if completion_ids and completion_ids[-1] in self._stop_ids and self._closes:
            tail = tail[1:]
        return prompt_ids + completion_ids + tail

    def encode_completion(self, text: str) -> list[int]:
        """The ids of an assistant turn with this text, end token included.

        Raises:
            UserError: nothing would be left of the turn.
        """
        ids = self._encode(text)
        if self.end is not None:
            ids.append(self.end)
        if not ids:
            raise UserError("An empty assistant turn has no tokens, and this model has no token that ends one.")
        return ids

    def decode(self, completion_ids: Sequence[int]) -> str:
        """The text of a completion, a closing end token left out."""
        ids = list(completion_ids)
        if ids and ids[-1] in self._stop_ids:
            ids.pop()
        text: str = self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
        return text

    def _tail(self, new: Sequence[Message]) -> str:
        """What the template writes behind an assistant turn that `new` follows."""
        written = self._write([*self._stand_in(), *self._dicts(new, first=False)], True)
        return written.split(_HOLD, 1)[1]

    def _stand_in(self) -> list[dict[str, Any]]:
        system = [{"role": "system", "content": "s"}] if self.system else []
        return [*system, {"role": "user", "content": "x"}, {"role": "assistant", "content": _HOLD}]

    def _append_problem(self) -> str:
        """Why contexts cannot be extended under this template; "" where they can."""
        stand_in = self._stand_in()
        seen = self._write(stand_in[:-1], False)
        try:
            grown = self._apply([*stand_in, {"role": "user", "content": _MARK}], True)
        except Exception as error:
            return f"The chat template of {self.name} refuses a second user message ({error}): use it for single turns."
        if grown.startswith(seen) and grown.count(_HOLD) == 1 and _MARK in grown.split(_HOLD)[1]:
            return ""
        return (
            f"The chat template of {self.name} is not append-only: with a new message it rewrites what came before, so "
            "what a policy saw could not be trained on. Pass chat_template=... with a template that only appends."
        )

    def _shows(self, messages: list[dict[str, Any]]) -> bool:
        """Whether the template takes these messages and shows the marker among them."""
        try:
            return _MARK in self._apply(messages, True)
        except Exception:  # a template raises whatever its author chose
            return False

    def _write(self, messages: list[dict[str, Any]], open_turn: bool) -> str:
        try:
            return self._apply(messages, open_turn)
        except Exception as error:
            roles = " ".join(m["role"] for m in messages)
            raise UserError(f"The chat template of {self.name} refuses the messages ({roles}): {error}") from error

    def _apply(self, messages: list[dict[str, Any]], open_turn: bool = False) -> str:
        text: str = self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=open_turn, **self.options
        )
        return text

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return list(ids)

    def _dicts(self, messages: Sequence[Message], first: bool = True) -> list[dict[str, Any]]:
        """Messages as the template takes them.

        Args:
            messages: any.
            first: whether the conversation begins with them.
        """
        out: list[dict[str, Any]] = []
        held = ""
        for message in messages:
            record = self._dict(message)
            if record["role"] == "system" and not self.system:
                held += record["content"] + "\n\n"
                continue
            if record["role"] == "user" and held:
                record["content"], held = held + record["content"], ""
            if record["role"] == "user" and not self.repeats and out and out[-1]["role"] == "user":
                out[-1]["content"] += "\n\n" + record["content"]
                continue
            out.append(record)
        if held:
            out.append({"role": "user", "content": held.rstrip("\n")})
        return out

    def _dict(self, message: Message) -> dict[str, Any]:
        if not isinstance(message.content, str) and any(part.kind != "text" for part in message.content):
            raise UserError(
                f"A {message.role} message has an image, and {self.name} is used for text only here. Leave the image "
                "out, or use a policy that sees images."
            )
        if message.role == "tool":
            if not self.tools:
                return {"role": "user", "content": f"<tool_response>\n{message.text}\n</tool_response>"}
            return {"role": "tool", "content": message.text, "tool_call_id": message.tool_call_id or "call"}
        record: dict[str, Any] = {"role": message.role, "content": message.text}
        if message.tool_calls:
            record["tool_calls"] = [
                {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": _arguments(c.arguments)}}
                for c in message.tool_calls
            ]
        return record


def _arguments(text: str) -> Any:
    """Arguments as an object, which templates write out themselves; as the text where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text
