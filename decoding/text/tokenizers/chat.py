"""Chat templates: programs of jinja2 that write a list of messages as a prompt.

A template comes with a checkpoint and is not trusted: it runs in jinja2's sandbox, which lets it
change nothing, and sees plain JSON alone. What it may use beyond jinja2 is what transformers gives
it: `tojson`, `raise_exception`, `strftime_now`, `{% break %}`, `{% continue %}` and
`{% generation %}`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

# What a template's own variables must not be called: options of transformers' method.
UNSUPPORTED = ("return_assistant_tokens_mask", "sanitize_control_tokens", "tokenizer_kwargs")
REASONING = ("reasoning_content", "thinking", "reasoning")  # the first is what templates read
CONTINUED = "THE_MESSAGE_GOES_ON_HERE "  # marks the place; a template may strip its space


def choose(own: str | Mapping[str, str] | None, asked: str | None, tools: bool) -> str:
    """The template to use: the one that is asked for, itself or by its name, or the model's own.

    tools: whether the chat has tools, for which a model may have a template of its own.
    """
    named = own if isinstance(own, Mapping) else {}
    if asked is not None:
        return named.get(asked, asked)
    if isinstance(own, str):
        return own
    for name in ("tool_use", "default") if tools else ("default",):
        if name in named:
            return named[name]
    if named:
        raise ValueError(
            f"the tokenizer has the chat templates {', '.join(sorted(named))}: name one of them "
            "with chat_template"
        )
    raise ValueError(
        "the tokenizer's files hold no chat template: pass one with chat_template, or complete a "
        "text that you have written as the model was trained"
    )


def render(
    template: str,
    messages: Any,
    *,
    tools: Sequence[Mapping[str, Any]] | None,
    documents: Sequence[Mapping[str, Any]] | None,
    add_generation_prompt: bool,
    continue_final_message: bool,
    variables: Mapping[str, Any],
) -> str:
    """The text of one chat. See Tokenizer.apply_chat_template."""
    for name in UNSUPPORTED:
        if variables.get(name):
            raise NotImplementedError(f"apply_chat_template() does not support {name}")
    chat = as_chat(messages)
    if continue_final_message:
        if add_generation_prompt:
            raise ValueError(
                "add_generation_prompt begins a message, continue_final_message goes on with the "
                "last one: pass one of them"
            )
        mark_open(chat[-1])
    program = compiled(template)
    known = {name: plain(name, value) for name, value in variables.items()}
    known |= {
        "tools": plain("tools", as_schemas(tools)),
        "documents": plain("documents", documents),
    }
    try:
        text = program.render(messages=chat, add_generation_prompt=add_generation_prompt, **known)
    except Exception as error:  # the template's own code, which may do anything
        raise ValueError(f"the chat template refuses this chat: {error}") from error
    return without_rest(text) if continue_final_message else text


def as_chat(messages: Any) -> list[dict[str, Any]]:
    """The messages as plain JSON, without what is None in them."""
    if isinstance(messages, (str, Mapping)) or not isinstance(messages, Sequence):
        raise TypeError(f"messages must be a list of mappings, got {type(messages).__name__}")
    if not messages:
        raise ValueError("messages must hold at least one message")
    chat = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise TypeError(
                f"messages[{i}] must be a mapping with role and content, got "
                f"{type(message).__name__}"
            )
        known = {name: value for name, value in message.items() if value is not None}
        chat.append(with_reasoning(plain(f"messages[{i}]", known)))
    return chat


def with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    """A message's reasoning under the names by which templates read it."""
    for name in REASONING:
        if name in message:
            found = message[name]
            return {"thinking": found, **message, "reasoning_content": found}
    return message


def as_schemas(tools: Any) -> Any:
    for i, tool in enumerate(tools or ()):
        if not isinstance(tool, Mapping):
            raise TypeError(
                f"tools[{i}] must be the JSON schema of a function, got {type(tool).__name__}: "
                "transformers.utils.get_json_schema makes one of a Python function"
            )
    return tools


def plain(name: str, value: Any) -> Any:
    """A copy of a JSON value. Raises TypeError that names the place of what is none."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):  # of a subclass, such as an Enum, what it holds
        return str.__str__(value)
    for kind in (int, float):  # not a subclass of them, which may have other methods
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return {plain(name, key): plain(f"{name}[{key!r}]", v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(f"{name}[{i}]", item) for i, item in enumerate(value)]
    raise TypeError(f"{name} must be a JSON value, got {type(value).__name__}")


def mark_open(message: dict[str, Any]) -> None:
    """Marks the end of a message's text."""
    content = message.get("content")
    if isinstance(content, str):
        message["content"] = content + CONTINUED
        return
    for block in reversed(content or []):
        if isinstance(block, dict) and "text" in block:
            block["text"] += CONTINUED
            return
    raise ValueError("continue_final_message: the last message has no text to go on with")


def without_rest(text: str) -> str:
    """The text as far as the mark."""
    at = text.rfind(CONTINUED.strip())
    if at < 0:
        raise ValueError("continue_final_message: the template leaves the last message's text out")
    return text[:at] if text.startswith(CONTINUED, at) else text[:at].rstrip()


class Generation(Extension):
    """`{% generation %}` ... `{% endgeneration %}`: marks an answer, and writes it as it is."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class SafeNamespace(Namespace):
    """jinja2's `namespace`, without names that begin with an underscore."""

    def __init__(*args: Any, **attributes: Any) -> None:  # so that namespace(self=...) works
        for name in dict(*args[1:], **attributes):
            check_name(name)
        Namespace.__init__(*args, **attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        check_name(name)
        super().__setitem__(name, value)


def check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no attribute {name!r}")


class Dict:
    """`dict` for templates: a function alone, without the attributes of the class."""

    def __call__(self, *args: Any, **items: Any) -> dict[Any, Any]:
        return dict(*args, **items)


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as a model reads it: jinja2's own filter escapes characters of HTML."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def raise_exception(message: str) -> None:
    raise TemplateError(message)


def strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


@lru_cache
def compiled(template: str) -> jinja2.Template:
    """Raises ValueError for a template that jinja2 cannot read."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals |= {
        "raise_exception": raise_exception,
        "strftime_now": strftime_now,
        "dict": Dict(),
        "namespace": SafeNamespace,
    }
    try:
        return environment.from_string(template)
    except TemplateError as error:
        raise ValueError(f"the chat template cannot be read: {error}") from error
