"""How a hint is put into what a policy reads: a comment where it continues a file, a message where it answers one."""

from __future__ import annotations

from dataclasses import replace

from taskgen.hints.rules import Hint
from taskgen.policies.policy import Form, Prompt
from taskgen.types import Turn


def as_context(hint: Hint, indent: str, form: Form) -> str:
    """The text that carries a hint.

    CONTINUATION: a comment line with the body's ``indent``, without the newline at its end. ANSWER: the content of a
    message of the user. Raises ValueError for PATCH, which reads no prompt.
    """
    match form:
        case Form.CONTINUATION:
            return f"{indent}# {hint.text}"
        case Form.ANSWER:
            return f"A hint for your answer: {hint.text}"
        case Form.PATCH:
            raise ValueError("a policy that gives whole patches reads no hints")


def hinted(prompt: Prompt, hint: Hint, form: Form) -> Prompt:
    """The prompt with the hint right before what is to be written.

    Token ids are made in the trainer's process, of this prompt as of any other: ``ids_of`` in trainer/serve.py takes
    ``{"text", "indent"}`` or ``{"messages"}``. The comment is one more line of ``text`` and ``indent`` stays, so that
    the tokens end as without the hint, in front of the next line's first word: the same sampled ids follow both. A
    chat template puts the message before what begins the answer. So the ids of the prompt are not a prefix of those of
    the hinted one, and ``trainer.feedback.Turn`` takes both.
    """
    said = as_context(hint, prompt.indent, form)
    if form is Form.CONTINUATION:
        return replace(prompt, text=f"{prompt.text}\n{said}")
    return replace(prompt, messages=with_hint(prompt.messages, said))


def with_hint(turns: tuple[Turn, ...], said: str) -> tuple[Turn, ...]:
    """Turns of a conversation up to the one that a hint is for, and the hint: in the user's last message if it is the
    last (templates want roles to alternate), else in a message of its own."""
    if turns and turns[-1].role == "user":
        last = turns[-1]
        return (*turns[:-1], replace(last, text=f"{last.text.rstrip()}\n\n{said}"))
    return (*turns, Turn(role="user", text=said))
