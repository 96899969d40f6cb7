"""transformers' tokenizer of each family, with a vocabulary trained on given lines."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from sentencepiece import SentencePieceProcessor

from decoding.text.tokenizers.llama import BYTES
from decoding.text.tokenizers.multilingual import MBART
from tests.support.vocabularies import (
    TEXT,
    numbered,
    train_bpe,
    train_sentencepiece,
    train_word_bpe,
)

Lines = Sequence[str]
Pairs = list[tuple[str, str]]


def byte_level(folder: Path, lines: Lines, size: int) -> tuple[dict[str, int], Pairs]:
    """A byte-level BPE: its vocabulary and its merges."""
    train_bpe(folder, lines, size)
    vocab = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
    written = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    merges = [line.split(" ") for line in written if not line.startswith("#version")]
    return vocab, [(first, second) for first, second in merges]


def with_bytes(special: Lines, lines: Lines, size: int) -> tuple[dict[str, int], Pairs]:
    """The same of pieces of text, with bytes for letters that are none."""
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size, limit_alphabet=size // 3, show_progress=False
    )
    backend.train_from_iterator(lines, trainer)
    model = json.loads(backend.to_str())["model"]
    ordered = sorted(model["vocab"], key=model["vocab"].__getitem__)
    tokens = dict.fromkeys([*special, *BYTES, *ordered, "▁▁", "▁▁▁▁"])
    merges = [(first, second) for first, second in model["merges"]]
    return dict(zip(tokens, range(len(tokens)), strict=True)), [*merges, ("▁", "▁"), ("▁▁", "▁▁")]


def unigram(folder: Path, lines: Lines, size: int, **options: Any) -> list[tuple[str, float]]:
    """SentencePiece's pieces with their scores, as the library `tokenizers` takes them."""
    path = folder / "unigram.model"
    options |= {"vocab_size": size, "character_coverage": 0.98}
    train_sentencepiece(list(lines), path, **options)
    model = SentencePieceProcessor(model_file=str(path))
    return [(model.id_to_piece(i), model.get_score(i)) for i in range(len(model))]


def gpt2(kind: str, **settings: Any) -> Callable[[Path, Lines, int], Any]:
    def make(folder: Path, lines: Lines, size: int) -> Any:
        vocab, merges = byte_level(folder, lines, size)
        return getattr(transformers, kind)(vocab=vocab, merges=merges, **settings)

    return make


def bart(kind: str) -> Callable[[Path, Lines, int], Any]:
    def make(folder: Path, lines: Lines, size: int) -> Any:
        vocab, merges = byte_level(folder, lines, size)
        for token in ("<s>", "<pad>", "</s>", "<unk>", "<mask>"):
            vocab[token] = len(vocab)
        return getattr(transformers, kind)(vocab=vocab, merges=merges)

    return make


def llama(kind: str, special: Lines, **settings: Any) -> Callable[[Path, Lines, int], Any]:
    def make(folder: Path, lines: Lines, size: int) -> Any:
        vocab, merges = with_bytes(special, lines, size)
        return getattr(transformers, kind)(vocab=vocab, merges=merges, **settings)

    return make


def bert(folder: Path, lines: Lines, size: int) -> Any:
    trained = tokenizers.BertWordPieceTokenizer()
    trained.train_from_iterator(lines, vocab_size=size, show_progress=False)
    return transformers.BertTokenizer(vocab=trained.get_vocab(), clean_up_tokenization_spaces=True)


def t5(folder: Path, lines: Lines, size: int) -> Any:
    pieces = unigram(folder, lines, size, pad_id=0, eos_id=1, unk_id=2)
    marks = [(f"<extra_id_{number}>", 0.0) for number in reversed(range(100))]
    return transformers.T5Tokenizer(vocab=pieces + marks, clean_up_tokenization_spaces=True)


def fairseq(kind: str, behind: Lines) -> Callable[[Path, Lines, int], Any]:
    def make(folder: Path, lines: Lines, size: int) -> Any:
        first = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
        pieces = unigram(folder, lines, size, bos_id=1, eos_id=2)[3:]
        last = [(token, 0.0) for token in (*behind, "<mask>")]
        return getattr(transformers, kind)(vocab=first + pieces + last)

    return make


def marian(folder: Path, lines: Lines, size: int) -> Any:
    half = len(lines) // 2
    source = train_sentencepiece(list(lines[half:]), folder / "source.spm", vocab_size=size)
    target = train_sentencepiece(list(lines[:half]), folder / "target.spm", vocab_size=size)
    (folder / "vocab.json").write_text(numbered(source + target))
    written = {"clean_up_tokenization_spaces": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(written))
    return transformers.MarianTokenizer.from_pretrained(folder)


def blenderbot_small(folder: Path, lines: Lines, size: int) -> Any:
    special = ["__null__", "__start__", "__end__", "__unk__", "__newln__"]
    train_word_bpe(folder, special, lines, size)
    return transformers.BlenderbotSmallTokenizer.from_pretrained(folder)


FAMILIES: dict[str, Callable[[Path, Lines, int], Any]] = {
    "bart": bart("BartTokenizer"),
    "bert": bert,
    "blenderbot-small": blenderbot_small,
    "gemma": llama("GemmaTokenizer", ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")),
    "gpt2": gpt2("GPT2Tokenizer", pad_token="<|endoftext|>"),
    "gpt_neox": gpt2("GPTNeoXTokenizer"),
    "llama": llama("LlamaTokenizer", ("<unk>", "<s>", "</s>"), pad_token="</s>"),
    "marian": marian,
    "mbart": fairseq("MBartTokenizer", MBART),
    "phi": gpt2("CodeGenTokenizer", pad_token="<|endoftext|>"),
    "qwen2": gpt2("Qwen2Tokenizer"),
    "roberta": bart("RobertaTokenizer"),
    "t5": t5,
    "xlm-roberta": fairseq("XLMRobertaTokenizer", ()),
}


def trained(family: str, folder: Path, lines: Lines, size: int = 400) -> Any:
    """transformers' tokenizer of a family, and in `folder` its files."""
    theirs = FAMILIES[family](folder, lines, size)
    if not (folder / "tokenizer_config.json").is_file():
        theirs.save_pretrained(folder)
    return theirs


def text_generation_directory(family: str, folder: Path, positions: int = 96) -> Path:
    """A small random model that generates text, with its tokenizer; its answers seldom end."""
    theirs = trained(family, folder, TEXT)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"vocab_size": len(theirs), "max_position_embeddings": positions}
    sizes |= {"bos_token_id": theirs.bos_token_id, "eos_token_id": theirs.eos_token_id}
    if family == "gpt2":
        sizes |= {"initializer_range": 0.2, "tie_word_embeddings": False}
        config = transformers.GPT2Config(n_embd=32, n_layer=2, n_head=2, **sizes)
        model: Any = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.LlamaConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            initializer_range=0.2,
            **sizes,
        )
        model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder)
    return folder
