"""Translation, asked by the clients of LibreTranslate and DeepL; and embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deepl
import numpy as np
import openai
import pytest
from libretranslatepy import LibreTranslateAPI

from decoding.server.tasks import LARGE
from decoding.server.translating.languages import ServedLanguages, client_code, name_of
from decoding.text.tokenizers import MarianTokenizer
from tests.server.live import Live
from tests.server.models import engine
from tests.support.demo import DEMO
from tests.support.vocabularies import GERMAN
from tests.text.multilingual import write_mbart

LINES = (DEMO / "sentences.de.txt").read_text("utf-8").splitlines()


def test_libretranslate(live: Live) -> None:
    client = LibreTranslateAPI(live.url)
    expected = live.model("demo").translate(LINES)
    assert [client.translate(line, "de", "en") for line in LINES[:3]] == expected[:3]
    assert client.languages() == [{"code": "de", "name": "German", "targets": ["en"]}]
    said = live.ask("/translate", {"q": [*LINES, " "], "source": "auto", "target": "en"}).json
    assert said["translatedText"] == [*expected, ""]
    assert said["detectedLanguage"][0] == {"confidence": 100, "language": "de"}
    settings = live.ask("/frontend/settings").json
    assert settings["language"]["target"] == {"code": "en", "name": "English"}
    assert not settings["keyRequired"]


def test_lines_of_a_body_share_steps(live: Live) -> None:
    engine = live.served("demo").engine
    assert engine is not None

    def steps(lines: Sequence[str]) -> int:
        before = engine.stats()["steps"]
        assert live.ask("/translate", {"q": lines, "num_beams": 1}).status == 200
        return int(engine.stats()["steps"] - before)

    alone = [steps([line]) for line in LINES]
    assert steps(LINES) < sum(alone) / 2


def test_what_is_drawn_for_a_text_depends_on_no_other(live: Live) -> None:
    """Not on how long they are: long ones are cut in threads."""
    asked = {"do_sample": True, "num_beams": 1, "temperature": 3.0, "seed": 4, "max_new_tokens": 6}

    def second(first: str) -> str:
        said = live.ask("/translate", {"q": [first, LINES[1]], **asked})
        return str(said.json["translatedText"][1])

    long = " ".join(LINES * 20)
    assert len(long) > LARGE and second(long) == second(LINES[0])


def test_stop_strings_are_limited(live: Live) -> None:
    said = live.ask("/translate", {"q": "Danke!", "stop_strings": ["a" * 100, "b" * 100]})
    assert said.status == 400 and "128 characters" in said.json["error"]


def test_forms(live: Live) -> None:
    body = b"q=Guten+Morgen!&source=de&target=en&alternatives=1"
    said = live.ask("/translate", body, **{"Content-Type": "application/x-www-form-urlencoded"})
    assert said.json["translatedText"] == "Good morning." and len(said.json["alternatives"]) == 1
    said = live.ask("/translate", body, **{"Content-Type": "multipart/form-data; boundary=a"})
    assert said.status == 400 and "not multipart" in said.json["error"]


def test_alternatives_and_alignments(live: Live) -> None:
    model = live.model("demo")
    body = {"q": LINES[0], "source": "de", "target": "en", "alternatives": 3}
    found = model.translate(LINES[0], n_best=4, num_beams=4, unique=True, alignments=True)
    said = live.ask("/translate", body).json
    assert [said["translatedText"], *said["alternatives"]] == [one.text for one in found]
    assert 1 < len(found) < 4, "some beams have the same text"
    aligned = live.ask("/translate", body | {"alignments": True}).json
    assert aligned["alignments"] == [[list(pair) for pair in one.alignment] for one in found]
    assert {name: aligned[name] for name in said} == said
    engine = live.served("demo").engine
    assert engine is not None
    before = engine.stats()["tokens"]
    live.ask("/translate", body | {"alignments": True})
    assert engine.stats()["tokens"] > before, "its steps are the engine's"
    several = live.ask("/translate", body | {"q": LINES[:2]}).json
    assert several["alternatives"][0] == said["alternatives"] and len(several["alternatives"]) == 2


@pytest.mark.filterwarnings("ignore:line 1 has")
@pytest.mark.parametrize(
    "options",
    [
        {"num_beams": 4, "length_penalty": 0.2},
        {"num_beams": 1, "do_sample": True, "temperature": 3.0, "seed": 4},
        {"num_beams": 4, "force_words_ids": [[500], [7000, 7001]], "max_new_tokens": 40},
        {"num_beams": 4, "coverage_penalty": 9.0},
    ],
)
def test_options_and_long_texts(options: dict[str, Any], live: Live) -> None:
    """A text that the model cannot read at once is translated in parts, as by translate()."""
    text = " ".join(LINES * 8) if "length_penalty" in options else " ".join(LINES[:2])
    body = {"q": text, "source": "de", "target": "en", **options}
    expected = live.model("demo").translate(text, **options)
    assert live.ask("/translate", body).json["translatedText"] == expected
    assert expected != live.model("demo").translate(text)


def test_translations_without_tokens(live: Live) -> None:
    """The end token is forced before the word that must come."""
    options = {"num_beams": 2, "forced_bos_token_id": 0, "force_words_ids": [[5]]}
    body = {"q": LINES[0], "source": "de", "target": "en", "alternatives": 1, **options}
    said = live.ask("/translate", body).json
    assert said == {"translatedText": "", "alternatives": []}
    said = live.ask("/translate", body | {"alignments": True}).json
    assert said == {"translatedText": "", "alternatives": [], "alignments": [[]]}


def test_deepl(live: Live) -> None:
    client = deepl.Translator("a key", server_url=live.url)
    before = client.get_usage().character.count or 0
    expected = live.model("demo").translate(LINES)
    found: Any = client.translate_text(LINES, source_lang="DE", target_lang="EN-US")
    assert [each.text for each in found] == expected
    assert found[0].detected_source_lang == "DE"
    one: Any = client.translate_text(LINES[0], target_lang="EN-GB")
    assert one.text == expected[0]
    used = client.get_usage()
    assert used.character.count == before + sum(map(len, [*LINES, LINES[0]]))
    assert not used.any_limit_reached
    assert [str(each) for each in client.get_source_languages()] == ["DE"]
    assert [str(each) for each in client.get_target_languages()] == ["EN"]
    with pytest.raises(deepl.DeepLException, match="'FR' is no target language"):
        client.translate_text("a", target_lang="FR")
    with pytest.raises(deepl.DeepLException, match="tags of XML and HTML would not be kept"):
        client.translate_text("a", target_lang="EN-GB", tag_handling="html")


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"format": "html"}, 400, "tags of HTML would not be kept"),
        ({"alternatives": 10000}, 400, "alternatives must be at most 15"),
        ({"target": "fr"}, 400, "'fr' is no target language of this model, only en"),
        ({"q": None}, 400, "q must be a string"),
        ({"q": ["a", 3]}, 400, "q must be a string, or a list of strings"),
        ({"sorce": "de"}, 400, "unknown field 'sorce'; did you mean 'source'?"),
        ({"num_beams": 0}, 400, "num_beams must be at least 1"),
        ({"model": "stories"}, 400, "does not translate"),
        ({"q": ["a"] * 513}, 400, "this server allows 512"),
    ],
)
def test_errors(body: dict[str, Any], status: int, says: str, live: Live) -> None:
    given = {"q": "Hallo", "source": "de", "target": "en", **body}
    said = live.ask("/translate", given)
    assert said.status == status and set(said.json) == {"error"} and says in said.json["error"]


def languages(*codes: str) -> ServedLanguages:
    known = {client_code(code): code for code in codes}
    return ServedLanguages(known, known, True)


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ("de", "deu_Latn"),
        ("DE", "deu_Latn"),
        ("en-US", "eng_Latn"),
        ("zh", "zho_Hans"),
        ("zh-TW", "zho_Hant"),
        ("zt", "zho_Hant"),
        ("no", "nob_Latn"),
        ("pt_BR", "por_Latn"),
        ("deu_Latn", "deu_Latn"),
        ("ace_Arab", "ace_Arab"),
    ],
)
def test_codes_of_nllb(given: str, code: str) -> None:
    known = ["deu_Latn", "eng_Latn", "zho_Hans", "zho_Hant", "nob_Latn", "por_Latn", "ace_Arab"]
    found = languages(*known).direction(given, "en")
    assert found.options == {"src_lang": code, "tgt_lang": "eng_Latn"}


def test_codes_of_others() -> None:
    assert languages("de_DE", "en_XX").direction("de", "en").options["tgt_lang"] == "en_XX"
    assert languages("de", "en").direction("DE", "EN-GB").options["src_lang"] == "de"
    with pytest.raises(Exception, match="source must be named: this server does not detect"):
        languages("de", "en").direction("auto", "en")
    with pytest.raises(Exception, match="'xx' is no source language of this model, only de, en"):
        languages("de", "en").direction("xx", "en")


def test_norwegian() -> None:
    """NLLB calls it nb, M2M-100 no."""
    for own, others in (("nob_Latn", "nb"), ("no", "no")):
        known = languages(own, "en")
        assert {known.direction(said, "en").source for said in ("no", "nb", "NB")} == {others}
        assert name_of(others).startswith("Norwegian")


@pytest.mark.parametrize("kind", ["MBartTokenizer", "MBart50Tokenizer"])
def test_a_model_of_many_languages(kind: str, tmp_path: Path) -> None:
    write_mbart(tmp_path, kind)
    with Live({"m": engine(tmp_path)}) as live:
        listed = {each["code"]: each for each in live.ask("/languages").json}
        assert listed["de"]["name"] == "German" and {"en", "fr"} < set(listed["de"]["targets"])
        found = dict[str, Any]()
        for target, code in (("en", "en_XX"), ("fr", "fr_XX")):
            body = {"q": GERMAN[:3], "source": "de", "target": target, "max_new_tokens": 20}
            found[target] = live.ask("/translate", body).json["translatedText"]
            own: dict[str, Any] = {"src_lang": "de_DE", "tgt_lang": code, "max_new_tokens": 20}
            assert found[target] == live.model("m").translate(GERMAN[:3], **own)
        assert found["en"] != found["fr"]
        said = live.ask("/v2/translate", {"text": GERMAN[:3], "target_lang": "FR"})
        assert said.status == 400 and "source must be named" in said.json["message"]
        body = {"text": GERMAN[:3], "target_lang": "FR", "source_lang": "DE", "max_new_tokens": 20}
        said = live.ask("/v2/translate", body)
        assert [each["text"] for each in said.json["translations"]] == found["fr"]


def test_targets_of_marian(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of several targets reads the target's code before the text."""
    tokenizer = live.model("demo").tokenizer
    assert isinstance(tokenizer, MarianTokenizer)
    monkeypatch.setattr(MarianTokenizer, "target_codes", [">>fra<<", ">>spa<<"])
    found = ServedLanguages.of(tokenizer).direction("auto", "es")
    assert (found.source, found.target, found.prefix) == ("de", "es", ">>spa<< ")


@pytest.mark.parametrize("form", ["float", "base64"])
def test_embeddings(form: Any, client: Any, live: Live) -> None:
    texts = ["A short text.", "Another one"]
    found = client.embeddings.create(model="sentences", input=texts, encoding_format=form)
    expected = live.model("sentences").embed(texts).numpy()
    if form == "float":
        np.testing.assert_array_equal(
            np.array([each.embedding for each in found.data], np.float32), expected
        )
    alone = client.embeddings.create(model="sentences", input=texts[0])
    np.testing.assert_allclose(alone.data[0].embedding, expected[0], atol=1e-6)
    tokens = [len(live.model("sentences").tokenizer.encode(text)) for text in texts]
    assert found.usage.prompt_tokens == sum(tokens)
    with pytest.raises(openai.BadRequestError, match="makes no embeddings"):
        client.embeddings.create(model="stories", input="a")
    with pytest.raises(openai.BadRequestError, match="dimensions must be 32"):
        client.embeddings.create(model="sentences", input="a", dimensions=8)
