"""POST /translate and what belongs to it, as LibreTranslate's clients ask for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from decoding.generation.checks import flag, whole
from decoding.server.endpoint import Call, Reply
from decoding.server.errors import ApiError
from decoding.server.fields import Fields, check_known, take, text
from decoding.server.options import OURS
from decoding.server.served import Served
from decoding.server.site import Site
from decoding.server.translating.languages import name_of
from decoding.server.translating.lines import Lines, Translation
from decoding.text.hypotheses import Hypothesis

OWN = ("alignments", "alternatives", "api_key", "format", "model", "q", "source", "target")
OPTIONS = tuple(name for name in OURS if name != "num_return_sequences")
NAMES = {*OWN, *OPTIONS}
REFUSED = {"glossary": "this server has no glossaries"}


@dataclass(frozen=True)
class Asked:
    """A body but for its texts. detected: the source, where the client leaves it to the server."""

    how: Translation
    aligned: bool
    detected: str | None


async def translate(call: Call) -> Reply:
    fields = call.form("q")
    call.check_key(fields.pop("api_key", None))
    given = fields.pop("q", None)
    asked: Asked = call.kept.once(fields, partial(read, call.site))
    asked.how.served.check_room(asked.how.translator.config)
    texts, several = read_texts("q", given, asked.how.served)
    lines = Lines(asked.how, texts, call.began)
    found = await lines.translated()
    note(call, lines)
    reply = written(found, several, asked)
    if asked.detected is not None:
        detected = {"confidence": 100, "language": asked.detected}
        reply["detectedLanguage"] = [detected] * len(texts) if several else detected
    return Reply(reply)


def read(site: Site, fields: Fields) -> Asked:
    check_known(fields, NAMES, REFUSED)
    served = site.translator(take(fields, "model", text))
    if take(fields, "format", text, "text") != "text":
        raise ApiError(400, "format must be text: tags of HTML would not be kept", param="format")
    wanted = 1 + take(fields, "alternatives", number, 0)
    if wanted > served.settings.max_results:
        most = served.settings.max_results - 1
        raise ApiError(400, f"alternatives must be at most {most}", param="alternatives")
    source, target = take(fields, "source", text), take(fields, "target", text)
    direction = served.languages.direction(source, target)
    aligned = take(fields, "alignments", flag, False)
    how = Translation.of(served, wanted, direction, fields | {"alignments": aligned})
    return Asked(how, aligned, direction.source if source == "auto" else None)


def number(name: str, value: Any) -> int:
    """Of a JSON body or of a form."""
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        value = int(value)
    return int(whole(0)(name, value))


def read_texts(name: str, given: Any, served: Served) -> tuple[list[str], bool]:
    """The texts of a field, and whether it was a list."""
    texts = given if isinstance(given, list) else [given]
    if not all(isinstance(each, str) for each in texts):
        raise ApiError(400, f"{name} must be a string, or a list of strings", param=name)
    if len(texts) > served.settings.max_texts:
        most = served.settings.max_texts
        raise ApiError(400, f"{name} has {len(texts)} texts: this server allows {most}", param=name)
    return texts, isinstance(given, list)


def written(found: list[list[Hypothesis]], several: bool, asked: Asked) -> dict[str, Any]:
    columns: dict[str, list[Any]] = {"translatedText": [own[0].text for own in found]}
    if asked.how.wanted > 1:
        columns["alternatives"] = [[one.text for one in own[1:]] for own in found]
    if asked.aligned:
        columns["alignments"] = [[one.alignment for one in own] for own in found]
    return {name: column if several else column[0] for name, column in columns.items()}


def note(call: Call, lines: Lines) -> None:
    call.site.characters += sum(map(len, lines.texts))
    call.said |= {"model": lines.served.name, "texts": len(lines.texts)}
    call.said |= {"prompt_tokens": lines.given, "completion_tokens": lines.generated}


def languages_of(call: Call) -> dict[str, set[str]]:
    """The targets of each source, of all models."""
    found: dict[str, set[str]] = {}
    for served in call.site.models.values():
        if served.translates:
            for source in served.languages.sources:
                found.setdefault(source, set()).update(served.languages.targets)
    return found


async def languages(call: Call) -> Reply:
    call.check_key(form_key(call))
    found = sorted(languages_of(call).items())
    return Reply(
        [{"code": code, "name": name_of(code), "targets": sorted(own)} for code, own in found]
    )


def form_key(call: Call) -> Any:
    """LibreTranslate's client sends it in the body of a GET, too."""
    fields: Fields = call.form() if call.body else {}
    return fields.get("api_key")


async def frontend_settings(call: Call) -> Reply:
    call.check_key(form_key(call))
    settings, found = call.site.settings, languages_of(call)
    sources = sorted(found)
    targets = sorted(set().union(*found.values()))
    return Reply(
        {
            "apiKeys": bool(settings.api_keys),
            "charLimit": settings.body_bytes,
            "filesTranslation": False,
            "frontendTimeout": 500,
            "keyRequired": bool(settings.api_keys),
            "language": {
                "source": {"code": "auto", "name": "Auto Detect"}
                if len(sources) == 1
                else {"code": sources[0], "name": name_of(sources[0])}
                if sources
                else None,
                "target": {"code": targets[0], "name": name_of(targets[0])} if targets else None,
            },
            "suggestions": False,
            "supportedFilesFormat": [],
        }
    )
