"""Lines in, lines out: order, batches, limits, cuts and scores."""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import MarianMTModel, MarianTokenizer

import decoding
import decoding.models
from decoding.generation.batching import ROWS
from decoding.text.hypotheses import Hypothesis
from decoding.text.pipeline import RUNNING
from decoding.text.prefixes import Line
from decoding.text.splitting import split_text
from decoding.text.translate import Translator, translate
from tests.support.demo import DEMO
from tests.support.stand_in import StandIn

LINES = ["eins zwei drei", "", "vier", "  ", "fünf sechs", "eins zwei drei", "\u3000"]
lines = st.lists(st.text(alphabet="ab .,\t", max_size=30), max_size=40)


def capitals(line: str) -> str:
    return " ".join(line.split()).upper()


@given(lines=lines, batch_tokens=st.integers(1, 60), ahead=st.integers(0, 3))
def test_every_line_has_its_translation(lines: list[str], batch_tokens: int, ahead: int) -> None:
    model = StandIn()
    translator = Translator(model, batch_tokens=batch_tokens)
    found = list(translator.stream(lines, ahead))
    assert [best.text for [best] in found] == [capitals(line) for line in lines]
    batches = [ids for ids, _ in model.calls]
    assert all(len(ids) == 1 or sum(map(len, ids)) <= batch_tokens for ids in batches)
    assert sum(map(len, batches)) == sum(bool(line.strip()) for line in lines)
    assert translator.tokens == sum(len(row) for ids in batches for row in ids)


def test_texts_to_texts() -> None:
    model = StandIn()
    assert translate(model, LINES) == [
        "EINS ZWEI DREI",
        "",
        "VIER",
        "",
        "FÜNF SECHS",
        "EINS ZWEI DREI",
        "",
    ]
    assert translate(model, []) == []
    assert len(model.calls) == 1


def test_one_text_has_one_result() -> None:
    model: Any = StandIn()
    translate: Any = decoding.text.translate.translate
    assert translate(model, "eins zwei") == "EINS ZWEI"
    assert translate(model, ["eins zwei"]) == ["EINS ZWEI"] == translate(model, ("eins zwei",))
    assert translate(model, (line for line in LINES[:1])) == ["EINS ZWEI DREI"]
    [best, second] = translate(model, "eins zwei", n_best=2)
    assert best.text == "EINS ZWEI" and second.score < best.score
    assert translate(model, "") == ""


def test_what_is_no_text() -> None:
    model: Any = StandIn()
    cases: list[tuple[Any, str]] = [
        (None, "texts must be a str or a list of str, got NoneType"),
        ({"a": "b"}, "texts must be a str or a list of str, got dict"),
        (["a", None], r"texts\[1\] must be a str, got NoneType"),
        ([3], r"texts\[0\] must be a str, got int"),
        ([["a"]], r"texts\[0\] must be a str, got list"),
    ]
    for given_texts, message in cases:
        with pytest.raises(TypeError, match=message):
            translate(model, given_texts)
    surrogate = r"texts\[0\] holds half of a surrogate pair, '\\udc80', at character 1"
    with pytest.raises(ValueError, match=surrogate):
        translate(model, ["a\udc80b"])
    with pytest.raises(ValueError, match="line 2 holds half of a surrogate pair"):
        list(Translator(model).stream(["a", "a\udc80b"]))
    assert not model.calls


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alignments": True}, "alignments come with hypotheses: pass n_best"),
        ({"num_return_sequences": 3}, "takes n_best in place of num_return_sequences"),
        ({"decoder_input_ids": [[1]]}, "begins with a text: pass target_prefix"),
        ({"tokenizer": 1}, "uses the model's own tokenizer: leave tokenizer out"),
        ({"attention_mask": 1}, "makes ids of its texts itself: attention_mask is for generate"),
        ({"output_scores": True}, "returns texts: output_scores is for generate.., n_best adds"),
    ],
)
def test_options_that_translation_has_not(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        translate(StandIn(), ["a"], **options)


def test_longest_first_in_one_batch() -> None:
    model = StandIn(max_length=100)
    translate(model, LINES)
    [(ids, options)] = model.calls
    assert [len(row) for row in ids] == [4, 4, 3, 2]
    assert options["max_new_tokens"] == 99


def test_n_best_with_scores() -> None:
    found = translate(StandIn(), ["a b", "", "c"], n_best=2)
    assert [[best.text for best in line] for line in found] == [
        ["A B", "A B B"],
        [""],
        ["C", "C C"],
    ]
    scores = [best.score for line in found for best in line]
    assert scores == pytest.approx([-0.03, -1.04, 0.0, -0.02, -1.03])
    assert isinstance(found[0][0], Hypothesis)


def test_searches_without_scores() -> None:
    assert translate(StandIn(), ["a"], num_beams=1) == ["A"]
    [[best]] = Translator(StandIn(), num_beams=1).stream(["a"])
    assert math.isnan(best.score)
    with pytest.raises(ValueError, match="greedy search finds one sequence"):
        translate(StandIn(), ["a"], num_beams=1, n_best=2)


@pytest.mark.parametrize(
    ("checkpoint", "options", "expected"),
    [
        ({}, {}, 2 * 3 + 50 - 1),
        ({"max_length": 30}, {}, 29),
        ({"max_length": 30, "max_new_tokens": 12}, {}, 12),
        ({"max_length": 1000}, {}, 511),
        ({"max_length": 30}, {"max_length": None}, 2 * 3 + 50 - 1),
        ({"max_length": 30}, {"max_new_tokens": 7}, 7),
        ({"max_length": 30}, {"max_length": 9}, 8),
        ({"max_length": 30}, {"generation_config": {"max_length": 9}}, 8),
        ({}, {"max_length": 4, "max_new_tokens": 7, "target_prefix": "x y z w"}, 7),
    ],
)
def test_lengths(checkpoint: dict, options: dict, expected: int) -> None:
    model = StandIn(**checkpoint)
    prefix = options.get("target_prefix", "").upper()
    assert translate(model, ["a b"], **options) == [f"{prefix} A B".strip()]
    [(_, passed)] = model.calls
    assert passed["max_new_tokens"] == expected and passed["max_length"] is None


def test_a_prefix_without_room() -> None:
    with pytest.raises(
        ValueError, match="6 tokens with the start token, and max_length=5 has room"
    ):
        translate(StandIn(), ["a"], max_length=5, target_prefix="a b c d e")


def test_without_a_maximum_positions_are_one() -> None:
    model = StandIn(positions=40)
    translate(model, ["a b"])
    assert model.calls[0][1]["max_new_tokens"] == 39


def test_limits_do_not_depend_on_neighbours() -> None:
    model = StandIn()
    translate(model, ["a", "a b", "a b c", "b"])
    [(ids, options)] = model.calls
    assert [len(row) for row in ids] == [4, 3, 2, 2]
    assert options["max_new_tokens"] == [57, 55, 53, 53]


@pytest.mark.parametrize("options", [{}, {"max_length": 4}, {"max_new_tokens": 3}])
def test_lines_with_limits_of_their_own(options: dict, recwarn: pytest.WarningsRecorder) -> None:
    lines = [Line("a b c", "", 2), Line("a b c d e"), Line("a b", "", 1), Line("c d e", "", 9)]
    [found] = Translator(StandIn(), **options).groups([lines], apart=False)
    rest = "A B C" if options else "A B C D E"
    assert [best.text for [best] in found] == ["A B", rest, "A", "C D E"]
    assert not recwarn  # that a translation may be cut


def test_long_line_is_cut_at_sentences_and_joined() -> None:
    model = StandIn(positions=20)  # sources of at most 10 tokens
    line = "Eins zwei drei vier. Fünf sechs sieben acht. Neun zehn, elf zwölf dreizehn!"
    with pytest.warns(UserWarning, match=r"line 2 has 14 tokens.* 3 parts of at most 10"):
        assert translate(model, ["kurz", line]) == ["KURZ", line.upper()]
    sources = [
        model.tokenizer.decode(row, skip_special_tokens=True)
        for ids, _ in model.calls
        for row in ids
    ]
    assert "NEUN ZEHN, ELF ZWÖLF DREIZEHN!" in sources


def test_long_line_is_truncated() -> None:
    model = StandIn(positions=20)
    line = ">>fra<< " + " ".join(f"w{i}" for i in range(30))
    with pytest.warns(UserWarning, match="line 2 has 32 tokens, .* it is cut to 10") as caught:
        found = translate(model, ["kurz", line, "lang"], truncate=True)
    assert found == ["KURZ", line.upper()[: line.index(" w8")], "LANG"] and len(caught) == 1
    assert max(len(row) for ids, _ in model.calls for row in ids) == 10
    with pytest.raises(ValueError, match="alignments and truncate do not go together"):
        translate(model, ["a"], truncate=True, alignments=True, n_best=1)


def test_language_code_goes_with_every_part() -> None:
    model = StandIn(positions=12)
    with pytest.warns(UserWarning, match="in 3 parts"):
        translate(model, [">>fra<< A b cc. D e ff. G h ii."])
    sources = [
        model.tokenizer.decode(row, skip_special_tokens=True)
        for ids, _ in model.calls
        for row in ids
    ]
    assert sorted(sources) == [">>FRA<< A B CC.", ">>FRA<< D E FF.", ">>FRA<< G H II."]


def test_a_quotation_is_no_language_code() -> None:
    line = ">>A b<< c dd. E f gg. H i jj."
    with pytest.warns(UserWarning, match="in 3 parts"):
        assert translate(StandIn(positions=12), [line]) == [line.upper()]


def test_score_of_joined_parts_is_that_of_one_hypothesis() -> None:
    model = StandIn(positions=12)  # sources of at most 6 tokens
    line = "a b c dd. E f."
    for penalty in (1.0, 0.0, -0.5, 2.0):
        with pytest.warns(UserWarning, match="in 2 parts"):
            [[best, second]] = translate(model, [line], n_best=2, length_penalty=penalty)
        assert best.text == "A B C DD. E F."
        total = -0.05 * 5**penalty - 0.03 * 3**penalty  # S of both parts
        assert best.score == pytest.approx(total / 8**penalty)
        assert second.text == "A B C DD. DD. E F. F."
        total = -1.06 * 6**penalty - 1.04 * 4**penalty
        assert second.score == pytest.approx(total / 10**penalty)


def test_score_of_joined_parts_with_gnmts_lengths() -> None:
    options: dict[str, Any] = {"length_normalization": "gnmt", "length_penalty": 0.6}
    with pytest.warns(UserWarning, match="in 2 parts"):
        [[best]] = translate(StandIn(positions=12), ["a b c dd. E f."], n_best=1, **options)
    total = -0.05 * (10 / 6) ** 0.6 - 0.03 * (8 / 6) ** 0.6  # parts of 5 and 3 tokens
    assert best.score == pytest.approx(total / (13 / 6) ** 0.6)


def test_options_of_each_row_are_refused() -> None:
    with pytest.raises(ValueError, match="one value for all lines"):
        translate(StandIn(), ["a", "b"], max_new_tokens=[3, 4])


def test_translation_at_the_maximum_is_reported() -> None:
    model = StandIn(positions=30, max_length=6)
    with pytest.warns(UserWarning, match=r"line 1: .* maximum of 5 tokens"):
        assert translate(model, ["a b"], n_best=4)[0][3].text == "A B B B B"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert translate(model, ["a b c d"], max_length=4) == ["A B C"]  # as asked for


def test_stream_reads_no_further_than_it_must() -> None:
    read = 0

    def endless() -> Iterator[str]:
        nonlocal read
        for read in itertools.count(1):
            yield "a b" if read % 3 else ""

    stream = Translator(StandIn(), batch_tokens=12).stream(endless(), ahead=2)
    next(stream)
    before = 0
    while read > before:  # in its own thread
        before = read
        time.sleep(0.1)
    rows = read * 4 * 2 / 3  # four beams of two lines in three
    assert rows < 2 * RUNNING["cpu"] * ROWS["cpu"] + 200
    stream = Translator(StandIn(), batch_tokens=12).stream(endless(), ahead=0)
    for expected in range(1, 10):
        next(stream)
        assert read == expected


def test_a_small_window_at_the_end_goes_where_others_went() -> None:
    """To the engine, whose memory is there: a session would need its own."""

    class Counting(StandIn):
        def start(self, *args: Any, many: bool = False, **options: Any) -> Any:
            asked.append(many)
            return super().start(*args, many=many, **options)

    asked = list[bool]()
    list(Translator(Counting(max_length=100), batch_tokens=100).stream(["a b"] * 80))
    list(Translator(Counting(max_length=100), batch_tokens=100).stream(["a b"] * 9))
    assert len(asked) > 3 and asked == [True] * (len(asked) - 1) + [False]


def test_finished_lines_come_before_the_window_is_done() -> None:
    model = StandIn(max_length=100)
    translator, text = Translator(model, batch_tokens=5), ["a b c d", "a", "b c d e", "b"]
    groups = translator.groups([list(map(Line, text))], apart=False)
    assert [best.text for [best] in next(groups)] == ["A B C D"]
    assert len(model.calls) == 1
    assert [best.text for [best] in next(groups)] == ["A", "B C D E"]
    assert len(model.calls) == 3  # the third line is longer than the second


def test_samples_repeat_with_the_seed_and_differ_between_calls() -> None:
    def seeds(**options: Any) -> list[Any]:
        model = StandIn()
        texts = ["a", "a b", "a b c"]
        translate(model, texts, num_beams=1, do_sample=True, batch_tokens=3, **options)
        return [options.get("seed") for _, options in model.calls]

    assert seeds(seed=7) == seeds(seed=7) == [7, 8, 9]
    assert seeds(seed=2**64 - 1) == [2**64 - 1, 0, 1]
    assert seeds() == [None] * 3


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"num_beam": 4}, TypeError, "num_beams"),
        ({"num_beams": 0}, ValueError, "num_beams"),
        ({"n_best": 5}, ValueError, "n_best=5 must not be above num_beams=4"),
        ({"n_best": 0}, ValueError, "n_best must be at least 1"),
        ({"batch_tokens": 0}, ValueError, "batch_tokens must be at least 1, got 0"),
        ({"num_return_sequences": 2}, TypeError, "n_best"),
        ({"n": 2}, TypeError, "has no option 'n'; did you mean 'n_best'"),
        ({"callback": print}, TypeError, "did you mean 'progress'"),
        ({"src_lan": "de"}, TypeError, "did you mean 'src_lang'"),
        ({"max_input_length": 9}, TypeError, "did you mean 'truncate'"),
        ({"output_scores": True}, TypeError, "returns texts: output_scores is for generate"),
        ({"prompt_lookup_num_tokens": 2}, NotImplementedError, "prompt_lookup_num_tokens"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(
    options: dict, error: type[Exception], says: str
) -> None:
    model = StandIn()
    with pytest.raises(error, match=says):
        translate(model, ["a"], **options)
    assert not model.calls


def test_a_decoder_alone_does_not_translate() -> None:
    model = StandIn()
    model.spec = replace(model.spec, encoder=None)
    with pytest.raises(ValueError, match="needs an encoder"):
        translate(model, ["a"])


@given(text=st.text(alphabet='ab.!?…," \t,;。、é', max_size=80), most=st.integers(1, 12))
def test_parts_are_the_text_and_fit(text: str, most: int) -> None:
    parts = split_text(text, lambda part: len(part) <= most)
    assert "".join(parts) == text
    assert all(len(part) <= most for part in parts)


@pytest.mark.parametrize(
    ("text", "most", "parts"),
    [
        ("Kurz. Gut.", 10, ["Kurz. Gut."]),
        ("Ja. Nein. Wohl.", 10, ["Ja. ", "Nein. ", "Wohl."]),
        ("„Ja.“ (Nein.) Er ging.", 10, ["„Ja.“ ", "(Nein.) ", "Er ging."]),
        (
            "Obst, z. B. Äpfel usw.  mag er. Ich auch.",
            32,
            [
                "Obst, z. B. Äpfel usw.  mag er. ",
                "Ich auch.",
            ],
        ),
        ("Um 7.30 Uhr, sagt er, geht es. So?", 24, ["Um 7.30 Uhr, sagt er, ", "geht es. ", "So?"]),
        ("ein zwei drei", 9, ["ein zwei ", "drei"]),
        ("abcdefgh", 4, ["abcd", "efgh"]),
        ("今日は。明日は、ね。", 4, ["今日は。", "明日は、", "ね。"]),
        ("x", 0, ["x"]),
    ],
)
def test_cuts_where_a_reader_pauses(text: str, most: int, parts: list[str]) -> None:
    assert split_text(text, lambda part: len(part) <= most) == parts


def test_a_very_long_line_is_cut_in_reasonable_time() -> None:
    tried = 0

    def fits(part: str) -> bool:
        nonlocal tried
        tried += 1
        return len(part) <= 100

    assert len(split_text("wort " * 4000, fits)) == 200
    assert tried < 3 * 4000


def test_model_translate_is_the_same() -> None:
    assert StandIn().translate(["a b", ""], num_beams=2) == ["A B", ""]


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
@pytest.mark.parametrize("options", [{}, {"num_beams": 1}, {"max_length": 6, "num_beams": 3}])
def test_the_demo_model_gives_the_text_of_transformers(options: dict) -> None:
    sentences = (DEMO / "sentences.de.txt").read_text(encoding="utf-8").splitlines()
    lines = [*sentences[:6], "", "Ja!", "Ω <unk> ja?"]
    theirs = MarianMTModel.from_pretrained(DEMO, dtype=torch.float32)
    tokenizer = MarianTokenizer.from_pretrained(DEMO)
    expected = []
    for line in lines:
        found = theirs.generate(**tokenizer([line], return_tensors="pt"), **options)[0]
        expected.append(tokenizer.decode(found, skip_special_tokens=True) if line else "")
    assert len(set(expected)) > 7
    model = decoding.load(DEMO, "cpu", threads=2)
    for batch_tokens in (1, 60, 4096):
        assert model.translate(lines, batch_tokens=batch_tokens, **options) == expected
