"""YAML, as far as Marian writes it: lists and tables of plain values.

Parsers' events are made values here, one after the other and without recursion: libyaml's own way
to compose documents ends the process where they nest deeply, and anchors make short documents of
any size.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

from decoding.models.files.content import DEEPEST, YAML_OPTIONS, Bounds
from decoding.models.files.errors import ModelFileError, short

PARSER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
WHOLE = re.compile(r"[-+]?[0-9]{1,18}")
DECIMAL = re.compile(r"[-+]?([0-9]+\.[0-9]*|\.[0-9]+|[0-9]+(?=[eE]))([eE][-+]?[0-9]{1,3})?")
WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None}
WORDS |= dict.fromkeys(("true", "yes", "on"), True) | dict.fromkeys(("false", "no", "off"), False)


def parse_yaml(text: str, where: str, bounds: Bounds = YAML_OPTIONS, *, plain: bool = False) -> Any:
    """The content of a document. plain: every scalar is a string, as if it were quoted; keys always
    are. where: what the text is, for messages.

    Raises ModelFileError for what is no YAML, exceeds the bounds, or has anchors or tags.
    """
    try:
        return compose(text, bounds, plain=plain)
    except ModelFileError as error:
        raise ModelFileError(f"{where} {error}") from None
    except (yaml.YAMLError, UnicodeError) as error:
        raise ModelFileError(f"{where} is not valid YAML: {short(error)}") from error


def compose(text: str, bounds: Bounds, *, plain: bool) -> Any:
    """Raises ModelFileError without the name of the text."""
    document: list[Any] = []
    open_nodes: list[list[Any] | dict[str, Any]] = [document]
    keys: list[str | None] = [None]  # of the open tables, where one waits for its value
    for count, event in enumerate(yaml.parse(text, Loader=PARSER)):
        if count > 2 * bounds.nodes:
            raise ModelFileError(f"has more than {bounds.nodes} entries")
        if isinstance(event, yaml.CollectionEndEvent):
            open_nodes.pop()
            keys.pop()
        elif isinstance(event, yaml.NodeEvent):
            place(event, open_nodes, keys, plain=plain)
    if len(document) > 1:
        raise ModelFileError("holds several documents")
    return document[0] if document else None


def place(
    event: Any,
    open_nodes: list[list[Any] | dict[str, Any]],
    keys: list[str | None],
    *,
    plain: bool,
) -> None:
    """Adds a node to the innermost open one, and opens it where it is a list or a table."""
    line = event.start_mark.line + 1
    if event.anchor is not None or event.tag is not None:  # an alias has an anchor
        raise ModelFileError(f"has an anchor or a tag, which is not supported: line {line}")
    outer = open_nodes[-1]
    is_scalar = isinstance(event, yaml.ScalarEvent)
    if isinstance(outer, dict) and keys[-1] is None:
        if not is_scalar:
            raise ModelFileError(f"has a key that is no text: line {line}")
        keys[-1] = event.value
        return
    value: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
    if is_scalar:
        value = value_of(event.value) if event.implicit[0] and not plain else event.value
    if isinstance(outer, dict):
        outer[str(keys[-1])] = value
        keys[-1] = None
    else:
        outer.append(value)
    if not is_scalar:
        if len(open_nodes) > DEEPEST:
            raise ModelFileError(f"nests more than {DEEPEST} lists or tables")
        open_nodes.append(value)
        keys.append(None)


def value_of(text: str) -> Any:
    """What a scalar without quotes stands for."""
    if text.lower() in WORDS:
        return WORDS[text.lower()]
    if WHOLE.fullmatch(text):
        return int(text)
    return float(text) if DECIMAL.fullmatch(text) else text
