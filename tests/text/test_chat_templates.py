"""Chat templates against transformers' rendering. The templates are ours: each is written with
what the published ones of a family are written with."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import decoding
from decoding.models.files import Directory
from decoding.text.tokenizers import Tokenizer, load_tokenizer
from decoding.text.tokenizers.files import files_of
from tests.support.comparison import needs_newest
from tests.support.vocabularies import TEXT
from tests.text.trained_tokenizers import trained

TEMPLATES = {
    # The first message may be the system's, which goes into the user's; roles must alternate.
    "llama2": """
{%- if messages[0]['role'] == 'system' %}
    {%- set rest, system = messages[1:], '[[' ~ messages[0]['content'] ~ ']]\n' %}
{%- else %}
    {%- set rest, system = messages, '' %}
{%- endif %}
{%- for message in rest %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('users and assistants must take turns') }}
    {%- endif %}
    {%- set content = system + message['content'] if loop.first else message['content'] %}
    {%- if message.role == 'user' %}
        {{- bos_token + '[I] ' + content.strip() + ' [/I]' }}
    {%- else %}
        {{- ' ' + content.strip() + ' ' + eos_token }}
    {%- endif %}
{%- endfor %}""",
    # Headers, tools in the first user's message, dates, and a namespace.
    "llama3": """
{{- bos_token }}
{%- if not date is defined %}{% set date = strftime_now('%Y') %}{% endif %}
{%- set state = namespace(system='', tools_are_said=false) %}
{%- for message in messages if message.role == 'system' %}
    {%- set state.system = state.system + message.content | trim + '\n' %}
{%- endfor %}
{{- '<h>system</h>Year: ' + date + '\n' + state.system }}
{%- for message in messages %}
    {%- if message.role == 'system' %}{% continue %}{% endif %}
    {{- '<h>' + message.role + '</h>' }}
    {%- if tools and message.role == 'user' and not state.tools_are_said %}
        {%- set state.tools_are_said = true %}
        {%- for tool in tools %}{{ tool | tojson(indent=2) }}{{ '\n' }}{% endfor %}
    {%- endif %}
    {%- if message.tool_calls is defined %}
        {%- for call in message.tool_calls %}
            {{- {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
        {%- endfor %}
    {%- elif message.content is string %}
        {{- message.content | trim }}
    {%- else %}
        {%- for block in message.content if block.type == 'text' %}{{ block.text }}{% endfor %}
    {%- endif %}
    {{- '<end>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<h>assistant</h>' }}{% endif %}""",
    # Reasoning of earlier turns is left out; a switch; loops from behind.
    "qwen": """
{%- macro say(role, text) %}<m>{{ role }}
{{ text }}</m>
{% endmacro %}
{%- if tools %}{{ say('system', 'Tools:' ~ tools | map('tojson') | join('\n')) }}{% endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages[::-1] %}
    {%- if message.role == 'user' and ns.last < 0 %}
        {%- set ns.last = messages | length - loop.index %}
        {%- break %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set thought = '' %}
    {%- if message.reasoning_content is defined and loop.index0 > ns.last %}
        {%- set thought = '(' ~ message.reasoning_content.rstrip('\n') ~ ')' %}
    {%- endif %}
    {%- set text = message.content if message.content is string else message.content | tojson %}
    {{- say(message.role, thought + text.split('</t>')[-1].lstrip('\n')) }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<m>assistant\n' }}
    {%- if thinking_is_on is defined and thinking_is_on is false %}{{ '()\n' }}{% endif %}
{%- endif %}""",
    # No role for the system; other names for roles.
    "gemma": """
{{ bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('no system here') }}{% endif %}
{% for message in messages %}
    {% if message.role == 'assistant' %}
        {% set role = 'model' %}
    {% else %}
        {% set role = message.role %}
    {% endif %}
{{ '<t>' + role + '\n' + message.content | trim + '</t>\n' }}{% endfor %}
{% if add_generation_prompt %}{{ '<t>model\n' }}{% endif %}""",
    # Whole blocks in one line, and a block of generation.
    "phi": (
        "{% for message in messages %}{% if message.role in ['user', 'system'] %}{{ '<|' ~ "
        "message.role ~ '|>\n' ~ message.content ~ '<|e|>\n' }}{% else %}{{ '<|assistant|>\n' }}"
        "{% generation %}{% set inside = message.content %}{{ inside }}{{ '<|e|>\n' }}"
        "{% endgeneration %}{{ inside }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
    ),
    # Tools before the last user's message; ids of calls; filters with attributes.
    "mistral": """
{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}
{{- bos_token }}
{%- for message in messages | rejectattr('role', 'equalto', 'system') %}
    {%- if message.role == 'user' %}
        {%- if tools is not none and message == users[-1] %}
            {{- '[T]' + tools | tojson + '[/T]' }}
        {%- endif %}
        {{- '[I]' ~ message.content ~ '[/I]' }}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- '[C][' }}
        {%- for call in message.tool_calls %}
            {%- set out = call.function | tojson %}
            {{- out[:-1] ~ ', "id": "' ~ (call.id if call.id else loop.index0) ~ '"}' }}
            {{- ', ' if not loop.last else ']' ~ eos_token }}
        {%- endfor %}
    {%- elif message.role == 'tool' %}
        {{- '[R]{"content": ' ~ message.content | string | tojson ~ '}[/R]' }}
    {%- else %}
        {{- ' ' ~ message.content ~ eos_token }}
    {%- endif %}
{%- endfor %}
{%- for document in documents or [] %}
    {{- document.title | upper }}: {{ document['text'] }}
{%- endfor %}""",
}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Grüße & <Wetter>",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
USER = {"role": "user", "content": "  How's the weather in Köln? <b>&amp;\n"}
CHATS: dict[str, list[dict[str, Any]]] = {
    "user": [USER],
    "system": [{"role": "system", "content": "Be kind."}, USER],
    "turns": [
        USER,
        {"role": "assistant", "content": " Sunny.\n", "thinking": "Hm.\n"},
        {"role": "user", "content": "And 明日 👋🏽?"},
    ],
    "tools": [
        USER,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "a1", "function": {"name": "weather", "arguments": {"city": "Köln"}}},
                {"id": None, "function": {"name": "weather", "arguments": {"n": [1, 2.5, True]}}},
            ],
        },
        {"role": "tool", "content": '{"sun": "yes"}', "tool_call_id": "a1"},
        {"role": "assistant", "content": "Yes</t>\nsun", "reasoning": "so"},
    ],
    "blocks": [{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image"}]}],
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    folder = tmp_path_factory.mktemp("chat")
    theirs = trained("llama", folder, TEXT)
    return load_tokenizer(folder, {"model_type": "llama"}), theirs


def both(pair: tuple[Tokenizer, Any], *args: Any, **options: Any) -> tuple[Any, Any]:
    """What both return; an exception counts as its class."""
    results = []
    for tokenizer in pair:
        try:
            found = tokenizer.apply_chat_template(*args, **options)
            results.append(found if isinstance(found, (str, list)) else dict(found))
        except Exception as error:
            results.append(type(error).__name__)
    return results[0], results[1]


@needs_newest
@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("chat", CHATS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"add_generation_prompt": True, "thinking_is_on": False, "date": "long ago"},
        {"tools": [TOOL, TOOL["function"]]},
        {"documents": [{"title": "So", "text": "so"}], "bos_token": "<begin>"},
        {"continue_final_message": True},
    ],
    ids=["plain", "prompt", "tools", "documents", "continued"],
)
def test_templates(
    pair: tuple[Tokenizer, Any], template: str, chat: str, options: dict[str, Any]
) -> None:
    for tokenizer in pair:
        tokenizer.chat_template = TEMPLATES[template]
    ours, theirs = both(pair, CHATS[chat], tokenize=False, **options)
    if theirs in ("TemplateError", "UndefinedError", "TypeError", "KeyError"):
        theirs = "ValueError"  # the template refuses this chat
    assert ours == theirs
    if ours != "ValueError":
        ours, theirs = both(pair, CHATS[chat], **options)
        assert ours == theirs and ours["input_ids"]


def test_the_templates_write_most_chats(pair: tuple[Tokenizer, Any]) -> None:
    """Else the comparison would be one of errors."""
    written = 0
    for template in TEMPLATES.values():
        for chat in CHATS.values():
            ours, _ = both(pair, chat, chat_template=template, tokenize=False, tools=[TOOL])
            written += ours != "ValueError"
    assert written >= 22


content = st.text(max_size=20)
roles = st.sampled_from(["system", "user", "assistant", "tool"])
chats = st.lists(st.fixed_dictionaries({"role": roles, "content": content}), min_size=1, max_size=5)


@given(chat=chats, name=st.sampled_from(list(TEMPLATES)), prompt=st.booleans())
def test_any_chat(
    pair: tuple[Tokenizer, Any], chat: list[dict[str, str]], name: str, prompt: bool
) -> None:
    options = {"chat_template": TEMPLATES[name], "add_generation_prompt": prompt}
    ours, theirs = both(pair, chat, **options)
    assert ours == (theirs if theirs != "TemplateError" else "ValueError")


def test_shapes_of_the_result(pair: tuple[Tokenizer, Any]) -> None:
    ours, theirs = pair
    ours.chat_template = theirs.chat_template = TEMPLATES["qwen"]
    many = [CHATS["user"], CHATS["turns"]]
    for chat in (CHATS["user"], many):
        for options in (
            {"tokenize": False},
            {"return_dict": False},
            {"padding": "max_length", "max_length": 300},
            {"truncation": True, "max_length": 9},
        ):
            found, expected = both(pair, chat, **options)
            assert found == expected
    for kind in ("pt", "np"):
        found, expected = (
            t.apply_chat_template(many, padding=True, return_tensors=kind) for t in pair
        )
        assert found.keys() == expected.keys() and (found.input_ids == expected.input_ids).all()
    assert isinstance(
        ours.apply_chat_template(many, padding=True, return_tensors="pt").input_ids, torch.Tensor
    )


@pytest.mark.parametrize("kind", ["file", "files", "setting", "list"])
def test_where_templates_are(kind: str, tmp_path: Path) -> None:
    theirs = trained("qwen2", tmp_path, TEXT)
    named = {"default": TEMPLATES["phi"], "tool_use": TEMPLATES["mistral"], "rag": "{{ 'so' }}"}
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    if kind == "setting":
        settings["chat_template"] = named["default"]
    elif kind == "list":
        listed = [{"name": name, "template": text} for name, text in named.items()]
        settings["chat_template"] = listed
    else:
        theirs.chat_template = named if kind == "files" else named["default"]
        theirs.save_pretrained(tmp_path)
        settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
        assert (tmp_path / "chat_template.jinja").is_file()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    pair = load_tokenizer(tmp_path, {"model_type": "qwen2"}), type(theirs).from_pretrained(tmp_path)
    assert pair[0].chat_template == pair[1].chat_template
    for options in ({}, {"tools": [TOOL]}, {"chat_template": "rag"}):
        ours, expected = both(pair, CHATS["user"], tokenize=False, **options)
        assert ours == expected


def test_a_saved_model_keeps_its_templates(tmp_path: Path) -> None:
    theirs = trained("qwen2", tmp_path, TEXT)
    theirs.chat_template = {"default": "a", "tool_use": "b"}
    theirs.save_pretrained(tmp_path)
    assert files_of(Directory(tmp_path), {}).keys() >= {
        "chat_template.jinja",
        "additional_chat_templates/tool_use.jinja",
    }


@needs_newest
def test_the_sandbox(pair: tuple[Tokenizer, Any]) -> None:
    for template in (
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ dict.__class__ }}",
        "{% set n = namespace(__init__=1) %}",
        "{% set n = namespace() %}{% set n._x = 1 %}",
        "{{ namespace.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.popen('true').read() }}",
    ):
        ours, theirs = both(pair, CHATS["user"], chat_template=template, tokenize=False)
        if "Error" in theirs:
            assert ours == "ValueError" and theirs in ("SecurityError", "UndefinedError")
        else:
            assert ours == theirs == ""  # what is not allowed is undefined


def test_what_is_wrong(pair: tuple[Tokenizer, Any]) -> None:
    ours, _ = pair
    ours.chat_template = None
    user = {"role": "user", "content": "a"}
    cases: list[tuple[type[Exception], str, Any, dict[str, Any]]] = [
        (ValueError, "hold no chat template: pass one", [user], {}),
        (ValueError, "cannot be read: .*endfor", [user], {"chat_template": "{% endfor %}"}),
        (TypeError, "messages must be a list of mappings, got str", "Hi", {}),
        (TypeError, "messages must be a list of mappings, got dict", user, {}),
        (ValueError, "at least one message", [], {}),
        (TypeError, r"messages\[1\] must be a mapping .* got str", [user, "b"], {}),
        (TypeError, r"messages\[0\]\['content'\] must be a JSON value, got Tensor",
         [{"role": "user", "content": torch.ones(1)}], {}),
        (TypeError, r"tools\[0\] must be the JSON schema .* got function", [user],
         {"tools": [load_tokenizer]}),
        (NotImplementedError, "does not support return_assistant_tokens_mask", [user],
         {"return_assistant_tokens_mask": True}),
        (ValueError, "pass one of them", [user],
         {"add_generation_prompt": True, "continue_final_message": True}),
        (ValueError, "the template leaves the last message's text out", [user],
         {"continue_final_message": True}),
        (ValueError, "has no text to go on with", [{"role": "user"}],
         {"continue_final_message": True}),
        (ValueError, "refuses this chat: sorry", [user],
         {"chat_template": "{{ raise_exception('sorry') }}"}),
    ]  # fmt: skip
    for error, message, chat, options in cases:
        if "no chat template" not in message:
            options = {"chat_template": "so", **options}
        with pytest.raises(error, match=message):
            ours.apply_chat_template(chat, **options)
    ours.chat_template = {"one": "1", "two": "2"}
    with pytest.raises(ValueError, match="has the chat templates one, two: name one of them"):
        ours.apply_chat_template([user])


def test_words_of_an_enum(pair: tuple[Tokenizer, Any]) -> None:
    class Role(str, Enum):
        USER = "user"

    ours, theirs = pair
    template = "{% for m in messages %}{{ m.role == 'user' }} <{{ m['role'] + '>' }}{% endfor %}"
    options: dict[str, Any] = {"chat_template": template, "tokenize": False}
    expected = theirs.apply_chat_template([{"role": Role.USER}], **options)
    assert ours.apply_chat_template([{"role": Role.USER}], **options) == expected == "True <user>"


def test_a_model_without_a_template() -> None:
    tokenizer = decoding.load("tests/data/stories260K").tokenizer
    with pytest.raises(ValueError, match="hold no chat template"):
        tokenizer.apply_chat_template(CHATS["user"])
