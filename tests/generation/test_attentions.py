"""Attention to the source: the weights that are kept, what follows from them, word alignments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import decoding
from decoding.cli.main import main
from decoding.text.alignment import alignment, words_of, written
from decoding.text.translate import Translator
from tests.support import random_models
from tests.support.demo import DEMO

FIELDS = {"return_dict_in_generate": True, "output_attentions": True, "output_scores": True}


def case(lengths: list[int], left: bool = False) -> tuple[Tensor, Tensor]:
    """Ids and mask of a ragged batch."""
    width = max(lengths)
    ids = torch.randint(0, 60, (len(lengths), width), generator=torch.Generator().manual_seed(3))
    columns = torch.arange(width)
    mask = torch.stack([columns >= width - n if left else columns < n for n in lengths])
    return ids, mask.long()


def compare(name: str, ids: Tensor, mask: Tensor, device: str, **options: Any) -> Any:
    """Our output, whose attentions are those of transformers' last layer, the mean over heads."""
    model = random_models.reference(name)
    model.set_attn_implementation("eager")
    options = {"attention_mask": mask, **FIELDS, **options}
    theirs = model.generate(ids, **options)
    ours = random_models.ours(name, device).generate(ids, **options)
    assert torch.equal(ours.sequences, theirs.sequences)
    means = torch.stack([layers[-1].mean(1)[:, -1] for layers in theirs.cross_attentions])
    steps = torch.stack([layer[:, 0, 0] for (layer,) in ours.cross_attentions])
    if options.get("num_beams", 1) > 1:
        rows = theirs.beam_indices[:, : ours.hypothesis_attentions.shape[1]]
        assert torch.equal(rows, ours.beam_indices)
    else:
        rows = torch.arange(len(ids))[:, None].expand(-1, len(means)).clone()
        for row, length in zip(rows, ours.lengths, strict=True):
            row[length:] = -1
    assert ours.hypothesis_attentions.shape == (*rows.shape, ids.shape[1])
    for t in range(rows.shape[1]):
        there = rows[:, t] >= 0
        expected = means[t, rows[there, t].long()]
        torch.testing.assert_close(steps[t, rows[there, t].long()], expected, rtol=0, atol=1e-5)
        kept = ours.hypothesis_attentions[:, t]
        torch.testing.assert_close(kept[there], expected, rtol=0, atol=1e-5)
        assert (kept[~there] == 0).all()
    return ours


@pytest.mark.parametrize("name", ["marian", "marian-gelu-deep"])
@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 4}, {"num_beams": 3, "num_return_sequences": 2}]
)
def test_equal_transformers(name: str, left: bool, options: dict[str, Any], device: str) -> None:
    ids, mask = case([5, 9, 2, 7], left)
    ours = compare(name, ids, mask, device, max_new_tokens=12, **options)
    sums = ours.hypothesis_attentions.sum(2)
    places = torch.arange(sums.shape[1]) < ours.lengths[:, None]
    torch.testing.assert_close(sums, places.float(), rtol=0, atol=1e-5)
    columns = mask.repeat_interleave(options.get("num_return_sequences", 1), 0)[:, None] == 0
    assert (ours.hypothesis_attentions.masked_select(columns) == 0).all()


def test_a_decoder_prompt(device: str) -> None:
    """Its steps do not count."""
    ids, mask = case([5, 9])
    prompt = torch.tensor([[59, 4, 5], [59, 6, 7]])
    compare("marian", ids, mask, device, max_new_tokens=6, num_beams=2, decoder_input_ids=prompt)


def test_splits_do_not_show() -> None:
    ids, mask = case([5, 9, 2, 7, 3])
    options: dict[str, Any] = {"max_new_tokens": 8, "num_beams": 3, **FIELDS}
    options["attention_mask"] = mask
    whole = random_models.ours("marian").generate(ids, **options)
    limits = decoding.Limits(batch=2, beams=3, source=9, target=8, controls=64, attentions=1)
    split = random_models.load("marian", limits=limits).generate(ids, **options)
    torch.testing.assert_close(split.hypothesis_attentions, whole.hypothesis_attentions)


@pytest.mark.parametrize("name", ["marian", "marian-gelu-deep"])
@pytest.mark.parametrize("beams", [1, 3])
def test_of_given_tokens(name: str, beams: int, device: str) -> None:
    """Read at once, they attend as they did step by step; hypotheses share a source."""
    ids, mask = case([5, 9, 2, 7])
    options: dict[str, Any] = {"num_beams": beams, "num_return_sequences": beams, **FIELDS}
    model = random_models.ours(name, device)
    kept = model.generate(ids, attention_mask=mask, max_new_tokens=12, **options)
    rows = zip(kept.sequences, kept.lengths, strict=True)
    new = [row[1 : 1 + length].tolist() for row, length in rows]
    sources = [row[there == 1].tolist() for row, there in zip(ids, mask, strict=True)]
    sources = [source for source in sources for _ in range(beams)]
    start = model.generation_config["decoder_start_token_id"]
    order = [3, 0, 2, 1] if beams == 1 else [7, 0, 11, 5, 6, 2, 9, 1, 3, 10, 8, 4]
    found = model.attention_arrays(
        [sources[i] for i in order], [new[i] for i in order], decoder_start_token_id=start
    )
    for i, own in zip(order, found, strict=True):
        assert own.shape == (len(new[i]), len(sources[i]))
        expected = kept.hypothesis_attentions[i, : len(new[i]), : len(sources[i])]
        torch.testing.assert_close(torch.tensor(own), expected.cpu(), rtol=0, atol=1e-5)


def test_of_given_tokens_within_limits() -> None:
    limits = decoding.Limits(batch=2, beams=1, source=9, target=1, labels=6, attentions=1)
    model = random_models.load("marian", limits=limits)
    sources, labels = [[4, 5, 6], [7, 8], [4, 5, 6]], [[9, 3], [4, 5, 6, 7, 8, 9], [-100]]
    found = model.attention_arrays(sources, labels, decoder_start_token_id=59)
    assert [own.shape for own in found] == [(2, 3), (6, 2), (0, 3)]
    for own in found:
        np.testing.assert_allclose(own.sum(1), 1, atol=1e-5)


@pytest.mark.parametrize("left", [False, True])
def test_coverage_penalty(left: bool, device: str) -> None:
    ids, mask = case([5, 9, 2, 7], left)
    model = random_models.ours("marian", device)
    options: dict[str, Any] = {"num_beams": 6, "num_return_sequences": 6, "max_new_tokens": 10}
    options |= {"attention_mask": mask, "length_penalty": 0.5, "num_beams": 6, **FIELDS}
    plain = model.generate(ids, **options)
    received = plain.hypothesis_attentions.sum(1).clamp(max=1)
    coverage = received.log().where(mask.repeat_interleave(6, 0) == 1, 0.0).sum(1)
    scores = (plain.sequences_scores + 0.3 * coverage).view(4, 6)
    order = scores.argsort(1, descending=True)
    assert not torch.equal(order, torch.arange(6).expand(4, 6))  # it makes a difference
    ours = model.generate(ids, coverage_penalty=0.3, **options)
    expected = scores.gather(1, order).flatten()
    torch.testing.assert_close(ours.sequences_scores, expected, rtol=1e-5, atol=1e-5)
    rows = (order + 6 * torch.arange(4)[:, None]).flatten()
    assert torch.equal(ours.sequences, plain.sequences[rows])
    best = model.generate(ids, coverage_penalty=0.3, **options | {"num_return_sequences": 1})
    longest = best.sequences.shape[1]
    assert torch.equal(best.sequences, ours.sequences[::6, :longest])


def test_decoder_only_models_have_no_source() -> None:
    model = random_models.ours("gpt2")
    with pytest.raises(ValueError, match="coverage_penalty counts attention to a source"):
        model.generate([[4, 5]], num_beams=2, coverage_penalty=0.1)
    with pytest.raises(NotImplementedError, match="output_attentions keeps attention to a source"):
        model.generate([[4, 5]], return_dict_in_generate=True, output_attentions=True)


# Word alignments.


class Pieces:
    """Texts and ids are written as pieces; `<...>` is a special token."""

    def __init__(self, target: str) -> None:
        self.target = self.source_pieces(target)

    def source_pieces(self, text: str) -> list[str | None]:
        return [None if piece.startswith("<") else piece for piece in text.split()]

    def target_pieces(self, ids: Any) -> list[str | None]:
        return [self.target[i] for i in ids]


def test_words_of() -> None:
    assert words_of(["▁Das", "▁ist", "▁ein", "▁Haus", ".", None]) == [0, 1, 2, 3, 3, -1]
    assert words_of([None, "Da", "s", "▁", "i", "st"]) == [-1, 0, 0, -1, 1, 1]
    assert words_of(["▁", "▁a", "▁", "▁", "b", "▁"]) == [-1, 0, -1, -1, 1, -1]
    assert words_of([]) == [] and words_of([None]) == [-1]


def test_alignment_by_shares() -> None:
    """What draws attention from everywhere, and special tokens, do not win; pieces add up."""
    attention = torch.tensor([
        [0.1, 0.2, 0.6, 0.1],  # word 0: most to the full stop, most of the second piece's
        [0.0, 0.0, 0.5, 0.5],  # word 1, first piece
        [0.1, 0.0, 0.9, 0.0],  # word 1, second piece
        [0.3, 0.1, 0.5, 0.1],  # the end
    ])  # fmt: skip
    found = alignment(Pieces("▁x ▁y z </s>"), "▁a b ▁c </s>", range(4), attention.numpy())
    assert found == [(0, 0), (1, 1)] and written(found) == "0-0 1-1"
    assert alignment(Pieces("▁x"), "▁a ▁b", range(1), np.array([[0.0, 1.0]])) == [(1, 0)]


@pytest.fixture(scope="module")
def translator() -> decoding.Model:
    return decoding.load(DEMO, device="cpu", threads=1)


@pytest.mark.parametrize("beams", [1, 3])
def test_translations_are_aligned(translator: decoding.Model, beams: int) -> None:
    lines = ["Das ist ein Haus.", "", "Der Bus kommt heute zehn Minuten später."]
    options: dict[str, Any] = {"num_beams": beams}
    options |= {"n_best": beams, "length_penalty": 1.0} if beams > 1 else {}
    found = list(Translator(translator, alignments=True, **options).stream(lines))
    plain = list(Translator(translator, **options).stream(lines))
    assert [[best[0] for best in line] for line in found] == [[b[0] for b in p] for p in plain]
    assert found[1][0].alignment == () and all(best.alignment == () for best in plain[0])
    assert found[0][0].text == "That's a house."
    assert found[0][0].alignment == ((0, 0), (2, 1), (3, 2))
    for best in found[2]:
        words = [j for _, j in best.alignment]
        assert sorted(words) == list(range(len(best.text.split())))  # each of them once
        assert all(0 <= i < 7 for i, _ in best.alignment)


def test_parts_of_a_line_are_aligned_one_behind_the_other(translator: decoding.Model) -> None:
    line = " ".join(["Das ist ein Haus."] * 60)
    with pytest.warns(UserWarning, match="too many for this model"):
        [[best]] = Translator(translator, alignments=True, num_beams=1).stream([line])
    words = len(best.text.split())
    assert words > 150 and sorted(j for _, j in best.alignment) == list(range(words))
    near = sum(abs(i / 240 - j / words) < 0.02 for i, j in best.alignment)
    assert near > 0.8 * words


def test_the_program_writes_alignments(
    translator: decoding.Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(decoding, "load", lambda *_, **__: translator)
    source, sink = tmp_path / "in", tmp_path / "out"
    source.write_text("Das ist ein Haus.\n\n")
    files = ["--input", str(source), "--output", str(sink), "--num-beams", "2"]
    assert main(["translate", "--model", "demo", *files, "--alignments"]) == 0
    assert sink.read_text() == "That's a house. ||| 0-0 2-1 3-2\n ||| \n"
    assert main(["translate", "--model", "demo", *files, "--alignments", "--scores"]) == 0
    head, score, pairs = sink.read_text().splitlines()[0].split(" ||| ")
    assert (head, pairs) == ("That's a house.", "0-0 2-1 3-2") and float(score) < 0


def test_alignment_of_nothing() -> None:
    assert alignment(Pieces("</s>"), "▁a </s>", range(1), np.ones((1, 2))) == []
    assert alignment(Pieces("▁x </s>"), "</s>", range(2), np.ones((2, 1))) == []
    assert written([]) == ""
