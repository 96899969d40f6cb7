"""POST /v2/translate, GET /v2/languages and /v2/usage, as DeepL's clients ask for them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from decoding.server.endpoint import Call, Reply
from decoding.server.errors import ApiError
from decoding.server.fields import Fields, check_known, take, text
from decoding.server.site import Site
from decoding.server.translating.languages import name_of
from decoding.server.translating.libretranslate import OPTIONS, languages_of, note, read_texts
from decoding.server.translating.lines import Lines, Translation

# What changes nothing here: texts are translated one by one, as they are written.
WITHOUT_EFFECT = ("context", "enable_beta_languages", "model_type", "preserve_formatting")
OWN = (
    "formality",
    "model",
    "show_billed_characters",
    "source_lang",
    "split_sentences",
    "target_lang",
    "text",
)
NAMES = {*OWN, *WITHOUT_EFFECT, *OPTIONS}
UNLIMITED = 10**12  # what DeepL says where there is no limit
REFUSED = {
    "custom_instructions": "leave it out",
    "glossary_id": "this server has no glossaries",
    "glossary_ids": "this server has no glossaries",
    "style_id": "this server has no styles",
    "tag_handling": "tags of XML and HTML would not be kept",
    "translation_memory_id": "this server has no memory",
}


@dataclass(frozen=True)
class Asked:
    """A body but for its texts. billed: whether to say how many characters each has."""

    how: Translation
    source: str
    billed: bool


async def translate(call: Call) -> Reply:
    fields = call.form("text")
    given = fields.pop("text", None)
    asked: Asked = call.kept.once(fields, partial(read, call.site))
    asked.how.served.check_room(asked.how.translator.config)
    texts, _ = read_texts("text", given, asked.how.served)
    lines = Lines(asked.how, texts, call.began)
    found = await lines.translated()
    note(call, lines)
    characters = [{"billed_characters": len(text)} if asked.billed else {} for text in texts]
    return Reply(
        {
            "translations": [
                {"detected_source_language": asked.source, "text": own[0].text} | extra
                for own, extra in zip(found, characters, strict=True)
            ]
        }
    )


def read(site: Site, fields: Fields) -> Asked:
    check_known(fields, NAMES, REFUSED)
    for name in (*WITHOUT_EFFECT, "split_sentences"):
        fields.pop(name, None)
    if take(fields, "formality", text, "default") not in ("default", "prefer_more", "prefer_less"):
        raise ApiError(400, "formality must be default: the model has none")
    billed = bool(fields.pop("show_billed_characters", None))
    served = site.translator(take(fields, "model", text))
    source, target = take(fields, "source_lang", text), take(fields, "target_lang", text)
    direction = served.languages.direction(source, target)
    how = Translation.of(served, 1, direction, fields)
    return Asked(how, direction.source.upper(), billed)


async def usage(call: Call) -> Reply:
    """Characters of all texts so far, of a server that never says that they are too many."""
    return Reply({"character_count": call.site.characters, "character_limit": UNLIMITED})


async def languages(call: Call) -> Reply:
    """Of sources, or with type=target of targets; in the query, or as DeepL's client in a form."""
    found = languages_of(call)
    kind = call.query.get("type") or (call.form().get("type") if call.body else None) or "source"
    codes = set(found) if kind == "source" else set().union(*found.values())
    more = {} if kind == "source" else {"supports_formality": False}
    return Reply(
        [{"language": code.upper(), "name": name_of(code)} | more for code in sorted(codes)]
    )
