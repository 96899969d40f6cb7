"""POST /v2/translate and GET /v2/languages, as DeepL's clients ask for them."""

from __future__ import annotations

from decoding.server.endpoint import Call, Reply
from decoding.server.errors import ApiError
from decoding.server.fields import check_known, take, text
from decoding.server.languages import ServedLanguages, name_of
from decoding.server.translating import Lines
from decoding.server.translation import OPTIONS, languages_of, note, read_texts

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
NAMES = (*OWN, *WITHOUT_EFFECT, *OPTIONS)
REFUSED = {
    "custom_instructions": "leave it out",
    "glossary_id": "this server has no glossaries",
    "glossary_ids": "this server has no glossaries",
    "style_id": "this server has no styles",
    "tag_handling": "tags of XML and HTML would not be kept",
    "translation_memory_id": "this server has no memory",
}


async def translate(call: Call) -> Reply:
    fields = call.form("text")
    check_known(fields, NAMES, REFUSED)
    for name in (*WITHOUT_EFFECT, "split_sentences"):
        fields.pop(name, None)
    if take(fields, "formality", text, "default") not in ("default", "prefer_more", "prefer_less"):
        raise ApiError(400, "formality must be default: the model has none")
    billed = fields.pop("show_billed_characters", None)
    served = call.site.translator(take(fields, "model", text))
    texts, _ = read_texts("text", fields.pop("text", None), served)
    source, target = take(fields, "source_lang", text), take(fields, "target_lang", text)
    direction = ServedLanguages.of(served.model.tokenizer).direction(source, target)
    options = {**fields, **direction.options}
    lines = Lines(served, texts, 1, options, direction.prefix, call.began)
    found = await lines.translated()
    note(call, lines)
    characters = [{"billed_characters": len(text)} if billed else {} for text in texts]
    return Reply(
        {
            "translations": [
                {"detected_source_language": direction.source.upper(), "text": own[0].text} | extra
                for own, extra in zip(found, characters, strict=True)
            ]
        }
    )


async def languages(call: Call) -> Reply:
    """Of sources, or with type=target of targets; in the query, or as DeepL's client in a form."""
    found = languages_of(call)
    kind = call.query.get("type") or (call.form().get("type") if call.body else None) or "source"
    codes = set(found) if kind == "source" else set().union(*found.values())
    more = {} if kind == "source" else {"supports_formality": False}
    return Reply(
        [{"language": code.upper(), "name": name_of(code)} | more for code in sorted(codes)]
    )
