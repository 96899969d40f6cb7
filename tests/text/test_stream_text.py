"""Text as it comes: the pieces joined are the whole, and no piece has to be taken back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sentencepiece import SentencePieceProcessor

import decoding
from decoding.text import stream_text
from decoding.text.complete import text_behind
from decoding.text.stream_text import pieces
from decoding.text.tokenizers import Tokenizer, load_tokenizer
from decoding.text.tokenizers.cutters import Moses, SentencePieces, Words
from decoding.text.tokenizers.numbered import NumberedTokenizer
from decoding.text.tokenizers.pieces import Pieces, PieceTokenizer
from tests.support.demo import DEMO
from tests.support.vocabularies import TEXT, train_sentencepiece
from tests.text.trained_tokenizers import FAMILIES, text_generation_directory, trained

pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
STORIES = "tests/data/stories260K"
GREETING = "Guten Morgen, hast du gut geschlafen?"


def with_bytes(folder: Path) -> Tokenizer:
    """Pieces with byte tokens, as T5's descendants have them without a tokenizer.json."""
    path = folder / "bytes.model"
    train_sentencepiece(
        TEXT, path, vocab_size=400, byte_fallback=True, pad_id=0, eos_id=1, unk_id=2
    )
    model = SentencePieceProcessor(model_file=str(path))
    ids = {model.id_to_piece(number): number for number in range(len(model))}
    return PieceTokenizer(Pieces(model, ids, {"<pad>", "</s>", "<unk>"}, "<unk>"), [1])


def numbered(folder: Path, *, moses: bool) -> Tokenizer:
    path = folder / "numbered.model"
    cut = train_sentencepiece(TEXT, path)
    cutter: Any = SentencePieces(SentencePieceProcessor(model_file=str(path)))
    ids = {token: number for number, token in enumerate(["<unk>", "</s>", *cut[2:]])}
    if moses:
        words = ["<unk>", "</s>", '"', "'", "(", ")", ",", ".", "don", "t", "It", "s", "%", "5"]
        ids = {token: number for number, token in enumerate(words)}
        cutter = Moses(Words(), "en", "en")
    side = (cutter, ids)
    return NumberedTokenizer(side, side, marks=frozenset({"</s>"}), source_end=True)


OTHERS: dict[str, Callable[[Path], Tokenizer]] = {
    "byte pieces": with_bytes,
    "numbered": lambda folder: numbered(folder, moses=False),
    "moses": lambda folder: numbered(folder, moses=True),
}


@pytest.fixture(scope="module", params=[*FAMILIES, *OTHERS])
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    folder = tmp_path_factory.mktemp("stream")
    if request.param == "moses":
        pytest.importorskip("sacremoses")
    if request.param in OTHERS:
        return OTHERS[request.param](folder)
    trained(request.param, folder, TEXT)
    return load_tokenizer(folder, {"model_type": request.param})


def steps(ids: list[int], sizes: list[int]) -> Iterator[list[list[int]]]:
    """The ids in parts of these sizes, and the rest one by one."""
    at = 0
    for size in [*sizes, *[1] * len(ids)]:
        if at < len(ids):
            yield [ids[at : at + size]]
        at += size


@pytest.mark.parametrize("window", [(64, 16), (2, 3), (0, 2)])
@settings(max_examples=40)
@given(data=st.data())
def test_pieces_of_any_ids(
    tokenizer: Tokenizer, window: tuple[int, int], data: st.DataObject
) -> None:
    """window: small, so that short texts reach its end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_text, "WINDOW", window[0])
        patch.setattr(stream_text, "CONTEXT", window[1])
        check_pieces(tokenizer, data)


def check_pieces(tokenizer: Tokenizer, data: st.DataObject) -> None:
    known = sorted(tokenizer.tokens)
    some = st.lists(st.sampled_from(known), max_size=12)
    bytes_ = [number for number in known if tokenizer.tokens[number].startswith("<0x")]
    special = tokenizer.all_special_ids
    often = st.lists(st.sampled_from(bytes_ or special or known), max_size=6)
    text = st.sampled_from([*TEXT, "naïve 👋🏽é", " 'm n't . , ?"]).map(tokenizer.encode_target)
    ids: list[int] = sum(data.draw(st.lists(st.one_of(some, often, text), max_size=4)), [])
    shown = data.draw(st.one_of(st.just([]), text, some))
    found = list(pieces(tokenizer, shown, steps(ids, data.draw(st.lists(st.integers(0, 3))))))
    assert "".join(found) == text_behind(tokenizer, shown, ids)
    assert all(found)


def test_pieces_come_early(tokenizer: Tokenizer) -> None:
    """Else all of it at the end would pass for a stream."""
    ids = tokenizer.encode_target(" ".join(TEXT[1:4]))
    found = list(pieces(tokenizer, (), steps(ids, [])))
    assert len(found) >= (4 if tokenizer.settled(ids) else 1)
    assert not any("\ufffd" in piece for piece in found)


def test_a_character_of_several_tokens_is_one_piece(tmp_path: Path) -> None:
    trained("llama", tmp_path, TEXT)
    tokenizer = load_tokenizer(tmp_path, {"model_type": "llama"})
    ids = tokenizer.encode("so 👋🏽 und é\u0301", add_special_tokens=False)
    found = list(pieces(tokenizer, (), steps(ids, [])))
    assert "".join(found) == "so 👋🏽 und é\u0301" and len(found) > 3
    assert any("👋🏽" in piece for piece in found)


def test_a_long_stream() -> None:
    model = decoding.load(STORIES, device="cpu")
    found = list(model.stream_text("Once upon a time", max_new_tokens=400))
    assert "".join(found) == model.complete("Once upon a time", max_new_tokens=400)
    assert len(found) > 300


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 3},
        {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 1.0},
        {"do_sample": True, "seed": 4, "temperature": 1.5},
        {"penalty_alpha": 0.5, "top_k": 4},
        {"stop_strings": [" was"]},
    ],
    ids=str,
)
def test_a_stream_of_a_completion(options: dict[str, Any]) -> None:
    model = decoding.load(STORIES, device="cpu")
    found = list(model.stream_text("Once upon a time", max_new_tokens=24, **options))
    assert "".join(found) == model.complete("Once upon a time", max_new_tokens=24, **options)
    assert found[0].startswith((",", " "))
    assert len(found) > 1 or "num_beam_groups" in options  # whose groups do not agree before


@pytest.mark.parametrize("options", [{}, {"num_beams": 1}, {"max_new_tokens": 3}], ids=str)
def test_a_stream_of_a_translation(options: dict[str, Any]) -> None:
    model = decoding.load(DEMO, device="cpu")
    found = list(model.stream_text(GREETING, **options))
    assert "".join(found) == model.translate(GREETING, **options)
    assert len(found) > 1 or options == {"max_new_tokens": 3}
    for text in ("", "  "):
        assert list(model.stream_text(text, **options)) == []


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("beams", [1, 3])
def test_streams_of_random_bytes(family: str, beams: int, tmp_path: Path) -> None:
    """A random model cuts characters where it likes."""
    model = decoding.load(text_generation_directory(family, tmp_path), device="cpu")
    for seed in range(12):
        options: dict[str, Any] = {"num_beams": beams, "do_sample": True, "seed": seed}
        options["max_new_tokens"] = 12
        found = list(model.stream_text(TEXT[seed], **options))
        assert "".join(found) == model.complete(TEXT[seed], **options)


def test_a_stream_may_be_left() -> None:
    model = decoding.load(STORIES, device="cpu")
    stream = model.stream_text("Once", max_new_tokens=200)
    assert next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert model.complete("Once", max_new_tokens=4)


def test_what_cannot_be_streamed() -> None:
    models: list[Any] = [decoding.load(path, device="cpu") for path in (STORIES, DEMO)]
    stories, demo = models
    for error, message, call in [
        (TypeError, "text must be a str, got list", lambda: stories.stream_text(["a"])),
        (TypeError, "a stream has no option n_best", lambda: stories.stream_text("a", n_best=2)),
        (TypeError, "has no option alignments", lambda: demo.stream_text("a", alignments=True)),
        (TypeError, "has no option streamer", lambda: stories.stream_text("a", streamer=print)),
        (
            ValueError,
            "one text can be streamed, got num_return_sequences=2",
            lambda: stories.stream_text("a", do_sample=True, num_return_sequences=2),
        ),
        (
            ValueError,
            "the text has 701 tokens, and the model has 512 positions",
            lambda: stories.stream_text("the " * 699, max_new_tokens=2),
        ),
        (
            ValueError,
            r"the text has \d+ tokens, and the model reads 128: shorten it, or use translate",
            lambda: demo.stream_text("und so weiter " * 200),
        ),
    ]:
        with pytest.raises(error, match=message):
            call()
