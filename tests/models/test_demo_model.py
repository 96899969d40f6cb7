"""The bundled model: the same translations as transformers', token for token."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from typing import Any

import pytest
import sacrebleu
import torch
from transformers import MarianMTModel

import decoding
from tests.support.comparison import assert_close_scores, is_tie, rows_of
from tests.support.demo import DEMO

BATCH = 25

SUBJECTS = ["Mein Bruder", "Die alte Lehrerin", "Unser neuer Nachbar", "Das kleine Mädchen", "Tom"]
PREDICATES = [
    "liest ein Buch über die Geschichte Europas",
    "wartet auf den Zug",
    "hat den ganzen Kuchen allein gegessen, obwohl niemand es wusste",
    "kann nicht schwimmen",
    "wollte gestern mit uns ins Kino gehen, aber es regnete",
]
ENDINGS = [".", "?", ", und das gefällt mir.", ", weil es draußen sehr kalt ist."]
SENTENCES = ["".join((s, " ", p, e)) for s, p, e in product(SUBJECTS, PREDICATES, ENDINGS)]


@pytest.mark.parametrize(
    "options",
    [
        {"num_return_sequences": 2},  # of the checkpoint's own 4 beams
        {"num_beams": 1},
    ],
)
def test_a_hundred_sentences(options: dict[str, Any], device: str) -> None:
    model = decoding.load(DEMO, device, "float32", threads=2)
    theirs = MarianMTModel.from_pretrained(DEMO, dtype=torch.float32).eval()
    ids = [model.tokenizer.encode(sentence) for sentence in SENTENCES]
    assert len(ids) == 100
    options = options | {"return_dict_in_generate": True, "output_scores": True}
    copies = options.get("num_return_sequences", 1)
    mine: Any = model.generate(ids, **options)
    pad, ties = theirs.generation_config.pad_token_id, 0
    for start in range(0, len(ids), BATCH):
        part = ids[start : start + BATCH]
        table = torch.nn.utils.rnn.pad_sequence(
            [torch.tensor(row) for row in part], batch_first=True, padding_value=pad
        )
        lengths = torch.tensor([len(row) for row in part])
        mask = (torch.arange(table.shape[1]) < lengths[:, None]).long()
        expected = theirs.generate(table, attention_mask=mask, **options)
        ours = slice(start * copies, (start + BATCH) * copies)
        width = expected.sequences.shape[1]
        assert bool((mine.sequences[ours, width:] == pad).all())
        for row, (a, b) in enumerate(
            zip(mine.sequences[ours, :width].tolist(), expected.sequences.tolist(), strict=True)
        ):
            if a != b:
                ties += 1
                item = row // copies
                alone = {"input_ids": torch.tensor([part[item]])} | options
                found = model.generate(**alone)
                assert is_tie(lambda alone=alone, **more: theirs.generate(**alone, **more), found)
                assert rows_of(found)[row % copies] == a[: found.sequences.shape[1]]
        if "num_beams" not in options or options["num_beams"] > 1:
            assert_close_scores(mine.sequences_scores[ours], expected.sequences_scores)
    assert ties <= copies


def test_translations_are_english() -> None:
    model = decoding.load(DEMO, "cpu", threads=2)
    found = " ".join(model.translate(SENTENCES[:20])).lower().split()
    assert sum(word in ("the", "a", "my", "is", "has", "to", "of", "for") for word in found) >= 20


@pytest.mark.parametrize(("dtype", "least"), [("bfloat16", 97), ("int8", 85)])
def test_fewer_bits_translate_as_well(dtype: str, least: float) -> None:
    """BLEU of the sentences' float32 translations as references."""
    exact = decoding.load(DEMO, "cpu", "float32", threads=2).translate(SENTENCES)
    model = decoding.load(DEMO, "cpu", dtype, threads=2)
    assert model.dtype == getattr(torch, dtype) and not model.unquantized
    assert sacrebleu.corpus_bleu(model.translate(SENTENCES), [exact]).score > least


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_translates_as_well(dtype: str) -> None:
    """BLEU of the sentences' float32 translations as references: a word in a hundred may differ."""
    exact = decoding.load(DEMO, "cpu", "float32", threads=2).translate(SENTENCES)
    half = decoding.load(DEMO, "cuda", dtype)
    assert half.dtype == getattr(torch, dtype)
    assert sacrebleu.corpus_bleu(half.translate(SENTENCES), [exact]).score > 97
    assert decoding.load(DEMO, "cuda").dtype == torch.float16, "as the checkpoint is stored"


def test_loading_leaves_torchs_compiler_alone() -> None:
    # Its import takes longer than loading a small model, and 70 MB.
    program = (
        f"import sys, decoding; decoding.load({str(DEMO)!r}, device='cpu'); "
        "assert not {'torch._dynamo', 'sympy'} & sys.modules.keys()"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
