"""The demo model's training: its loss, its search, and the directory it writes."""

from __future__ import annotations

import argparse
import gzip
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor

from decoding.models import load
from decoding.models.torch.blocks import Dropout
from decoding.models.torch.transformer import Transformer
from examples.train_a_translator import export, train, trainer
from examples.train_a_translator.beam import search, translate
from examples.train_a_translator.corpus import (
    EOS,
    IGNORED,
    Batch,
    Packed,
    batches,
    encode,
    read_split,
    sampled_epochs,
    train_pieces,
)
from tests.training.translator import PAD, epoch, row, small_model

CPU = torch.device("cpu")
WORDS = "der die das Haus Hund ist war groß klein rot the a house dog is was big small red".split()


def sentences(count: int, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, random.integers(1, 9))) for _ in range(count)]


def test_each_epoch_is_cut_anew_into_subwords(tmp_path: Path) -> None:
    lines = sentences(60, 0)
    pieces = train_pieces(lines, 60)
    plain = encode(pieces, lines)
    assert np.array_equal(plain.ids, encode(pieces, lines).ids)
    assert (plain.ids[plain.offsets[1:] - 1] == EOS).all()

    for language in ("de", "en"):
        text = "\n".join(lines) + "\n"
        (tmp_path / f"train.{language}.gz").write_bytes(gzip.compress(text.encode()))
    epochs = sampled_epochs(pieces, tmp_path, dropout=0.3, workers=1)
    (first, _), (second, _) = next(epochs), next(epochs)
    epochs.close()
    assert len(first.ids) > len(plain.ids) and not np.array_equal(first.ids, second.ids)
    processor = sentencepiece.SentencePieceProcessor(model_proto=pieces)
    assert [processor.decode(list(row(second, i))) for i in range(60)] == lines
    (tmp_path / "train.en.gz").write_bytes(gzip.compress(b"one line\n"))
    with pytest.raises(ValueError, match="train: 60 sources but 1 targets"):
        read_split(tmp_path, "train")


def expected_loss(model: Transformer, batch: Batch) -> Tensor:
    logits = model(batch.source, batch.source_mask, batch.target).flatten(0, 1)[batch.places]
    return F.cross_entropy(logits, batch.labels, label_smoothing=0.1)


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("r_drop", [0.0, 4.0])  # two equal passes do not diverge
def test_the_loss_is_smoothed_cross_entropy_without_dropout(plain: bool, r_drop: float) -> None:
    model, batch = small_model(plain=plain), epoch(20, 100)[0]
    loss = trainer.loss(model, batch, r_drop, plain)
    expected = expected_loss(small_model(plain=True), batch)
    torch.testing.assert_close(loss, expected)


def test_fused_modules_train_as_torchs_do(device: str) -> None:
    batch, found = epoch(20, 100, device=device)[0], []
    for plain in (False, True):
        model = small_model(plain=plain).to(device)
        trainer.loss(model, batch, 4.0, plain).backward()
        found.append({name: weight.grad for name, weight in model.named_parameters()})
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        torch.testing.assert_close(gradient, found[1][name], msg=name)


def test_under_autocast_all_blocks_have_the_type_of_products(device: str) -> None:
    batch, values = epoch(20, 100, device=device)[0], []
    with torch.autocast(device, torch.bfloat16):
        for plain in (False, True):
            model = small_model(plain=plain).to(device)
            values.append(trainer.loss(model, batch, 0.0, plain).float())
            memory = model.encode(batch.source, batch.source_mask)
            assert plain or memory.dtype == torch.bfloat16
    torch.testing.assert_close(*values, rtol=1e-2, atol=0.0)


def test_r_drop_adds_the_divergence_of_two_passes() -> None:
    model, batch = small_model(Dropout(block=0.3)), epoch(20, 100)[0]
    values = []
    for r_drop in (1e-9, 4.0):
        torch.manual_seed(0)  # the same dropout twice
        values.append(trainer.loss(model, batch, r_drop))
    torch.manual_seed(0)
    twice = (side.repeat(2, 1) for side in (batch.source, batch.source_mask, batch.target))
    places = batch.places[batch.labels != IGNORED]
    assert len(places) < len(batch.places)
    p, q = (logits.flatten(0, 1)[places].log_softmax(-1) for logits in model(*twice).chunk(2))
    both = sum(F.kl_div(a, b, log_target=True, reduction="batchmean") for a, b in ((p, q), (q, p)))
    torch.testing.assert_close(values[1] - values[0], both)


@torch.no_grad()
def greedy_score(model: Transformer, source: Tensor, limit: int) -> float:
    """The mean log-probability of the greedy row, -inf when it does not end."""
    ids, total = [PAD], 0.0
    mask = torch.ones_like(source, dtype=torch.bool)
    for step in range(1, limit):
        logits = model(source, mask, torch.tensor([ids]))[0, -1]
        logits[PAD] = -torch.inf
        log_p, token = logits.log_softmax(-1).max(-1)
        total += float(log_p)
        ids.append(int(token))
        if ids[-1] == EOS:
            return total / step
    return -float("inf")


@torch.no_grad()
def row_score(model: Transformer, source: Tensor, ids: list[int]) -> float:
    mask = torch.ones_like(source, dtype=torch.bool)
    logits = model(source, mask, torch.tensor([ids[:-1]]))[0]
    logits[:, PAD] = -torch.inf
    return float(logits.log_softmax(-1).gather(1, torch.tensor(ids[1:])[:, None]).mean())


def trained(pair: tuple[Packed, Packed]) -> Transformer:
    """A model that knows when sentences end, and is unsure about the rest."""
    model = small_model()
    args = argparse.Namespace(rate=1e-2, warmup=5, r_drop=0.0, plain=False)
    updates, order = trainer.Trainer(model, args), np.random.default_rng(0)
    for _ in range(10):
        for batch in batches(pair, PAD, 100, order, CPU):
            updates.step(batch, 0.0)
    return model.eval()


def test_the_search_ends_its_rows_and_is_no_worse_than_greedy() -> None:
    lines = sentences(60, 0)
    packed = encode(train_pieces(lines, PAD), lines)
    model = trained((packed, packed))
    source = torch.tensor([row(packed, i)[:7] for i in range(60) if len(row(packed, i)) >= 7][:12])
    mask = torch.ones_like(source, dtype=torch.bool)
    found = search(model, source, mask, PAD, beams=4, limit=60).tolist()
    better = 0
    for sentence, ids in enumerate(found):
        end = ids.index(EOS) + 1
        assert ids[0] == PAD and PAD not in ids[1:] and set(ids[end:]) == {EOS}
        ours = row_score(model, source[sentence, None], ids[:end])
        greedy = greedy_score(model, source[sentence, None], 60)
        assert ours >= greedy - 1e-5
        better += int(ours > greedy + 1e-3 > -1e9)
    assert better >= 2
    alone = [search(model, ids[None], mask[:1], PAD, 4, 60)[0].tolist() for ids in source]
    assert alone == found


def test_the_written_directory_is_marians(tmp_path: Path) -> None:
    pieces = train_pieces(sentences(60, 0), PAD)
    model = small_model().half().float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn(parameter.shape), alpha=0.25)
    model = model.half().float()
    exact = small_model().encoder.embed.positions
    for side in (model.encoder, model.decoder):  # not stored, hence not rounded
        assert side.embed.positions is not None and exact is not None
        side.embed.positions.copy_(exact)
    export.save(model, pieces, tmp_path)

    theirs = transformers.MarianMTModel.from_pretrained(tmp_path, dtype=torch.float32).eval()
    tokenizer = transformers.MarianTokenizer.from_pretrained(tmp_path)
    text = ["das Haus ist rot", "der Hund"]
    batch = tokenizer(text, return_tensors="pt", padding=True)
    packed = encode(pieces, text)
    assert batch["input_ids"][batch["attention_mask"].bool()].tolist() == packed.ids.tolist()
    inputs = (batch["input_ids"], batch["attention_mask"].bool(), batch["input_ids"])
    with torch.no_grad():
        logits = theirs(**batch, decoder_input_ids=batch["input_ids"]).logits
        torch.testing.assert_close(model(*inputs), logits, rtol=1e-4, atol=1e-4)
    for name, tensor in load(tmp_path).state.items():
        torch.testing.assert_close(tensor, model.state_dict()[name], rtol=0, atol=0, msg=name)
    assert theirs.generation_config.bad_words_ids == [[PAD]]
    assert theirs.generation_config.num_beams == 4
    assert (tmp_path / "model.safetensors").stat().st_size < 2 * sum(
        parameter.numel() for parameter in theirs.parameters() if parameter.requires_grad
    ) + 10_000
    translated = translate(model, pieces, packed, PAD)
    assert len(translated) == 2


def test_a_short_training_improves_and_returns_the_best(capsys: pytest.CaptureFixture[str]) -> None:
    lines = sentences(60, 0)
    pieces = train_pieces(lines, PAD)
    pair = encode(pieces, lines), encode(pieces, lines)
    args = argparse.Namespace(
        rate=1e-2, warmup=5, r_drop=0.0, plain=False, tokens=200, seed=0, evaluations=2
    )  # fmt: skip
    model = small_model()
    batch = next(batches(pair, PAD, 200, np.random.default_rng(0), CPU))
    before = trainer.loss(model, batch, 0.0).item()
    corpus: Any = SimpleNamespace(
        pieces=pieces, pad=PAD, epochs=iter([pair] * 20), judge=lambda *_: (lines, [lines])
    )
    best = train.fit(trainer.Trainer(model, args), corpus, train.Clock(minutes=0, steps=40))
    assert trainer.loss(best, batch, 0.0).item() < before - 0.5
    assert not any(parameter.requires_grad for parameter in best.parameters())
    report = capsys.readouterr().out
    assert " 50%  step 20" in report and "100%  step 40" in report and "dev BLEU 100.00" in report
