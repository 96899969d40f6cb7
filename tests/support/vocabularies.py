"""Small vocabularies, trained on a few sentences."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentencepiece
import tokenizers

GERMAN = """Heute Morgen hat es geregnet, aber jetzt scheint die Sonne.
Wo hast du meinen Schlüssel hingelegt?
Meine Großmutter backt jeden Sonntag einen Kuchen.
Ich möchte gern eine Tasse Tee mit Milch.
Der Zug nach Köln fährt um 7:45 Uhr ab, oder?
„Das ist nicht wahr“, sagte er leise.""".splitlines()
ENGLISH = """It rained this morning, but now the sun is shining.
Where did you put my key?
My grandmother bakes a cake every Sunday.
I'd like a cup of tea with milk, please.
The train to Cologne leaves at 7:45, doesn't it?
"That isn't true," he said quietly.""".splitlines()

TEXT = ENGLISH + GERMAN


def train_sentencepiece(lines: list[str], path: Path, **options: Any) -> list[str]:
    """Writes a unigram model of at most 120 pieces; returns its pieces. options: the trainer's."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines * 4),
        model_writer=model,
        minloglevel=2,
        **{"vocab_size": 120, "hard_vocab_limit": False, "bos_id": -1} | options,
    )
    path.write_bytes(model.getvalue())
    spm = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    return [spm.id_to_piece(number) for number in range(spm.get_piece_size())]


def numbered(pieces: list[str]) -> str:
    """A vocabulary in Marian's order: EOS, unknown, the pieces, language codes, padding."""
    ordinary = sorted(set(pieces) - {"</s>", "<unk>"})
    tokens = ["</s>", "<unk>", *ordinary, ">>fra<<", ">>deu<<", "<pad>"]
    return json.dumps({token: number for number, token in enumerate(tokens)})


def train_bpe(folder: Path, lines: Sequence[str] = TEXT, size: int = 330) -> None:
    """Writes vocab.json and merges.txt of a byte-level BPE, `<|endoftext|>` behind the merges."""
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(lines, vocab_size=size, show_progress=False)
    trained.save_model(str(folder))
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    (folder / "vocab.json").write_text(json.dumps(vocab | {"<|endoftext|>": len(vocab)}))


def train_word_bpe(
    folder: Path, special: list[str], lines: Sequence[str] = TEXT, size: int = 250
) -> None:
    """Writes vocab.json and merges.txt as Blenderbot-small has them: `special`, then its tokens."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, end_of_word_suffix="</w>", show_progress=False
    )
    backend.train_from_iterator([line.lower() for line in lines], trainer)
    model = json.loads(backend.to_str())["model"]
    ends, goes_on = "</w>", "@@"
    tokens = [t.removesuffix(ends) if t.endswith(ends) else t + goes_on for t in model["vocab"]]
    vocab = {token: number for number, token in enumerate(dict.fromkeys(special + tokens))}
    (folder / "vocab.json").write_text(json.dumps(vocab))
    merges = "".join(f"{first} {second}\n" for first, second in model["merges"])
    (folder / "merges.txt").write_text(f"#version: 0.2\n{merges}", encoding="utf-8")
