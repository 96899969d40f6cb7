"""Small models in every format that we read, to be damaged: see files.py."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import tokenizers
import torch
from safetensors.torch import save_file

import decoding
from tests.models.quantised.checkpoints import LAYOUTS, write_quantised
from tests.support.checkpoints import gpt2, marian, stored, write
from tests.support.families import ENCODERS, FAMILIES, encoder
from tests.support.lightconv import DYNAMIC, LIGHT, LightConv
from tests.support.toolkits import (
    FAIRSEQ,
    POST_NORM,
    PRE_NORM,
    fairseq_model,
    marian_model,
    opennmt_content,
    opennmt_model,
    write_fairseq,
    write_marian,
)
from tests.support.vocabularies import (
    ENGLISH,
    GERMAN,
    numbered,
    train_bpe,
    train_sentencepiece,
    train_word_bpe,
)

STORIES = Path(__file__).parent.parent / "data/stories260K"
LINES = GERMAN + ENGLISH

# Fills an empty folder; returns the name in it that decoding.load() gets, "" for the folder itself.
Maker = Callable[[Path], str]


@cache
def model_of(name: str) -> Any:
    """A model of transformers. name: of FAMILIES, ENCODERS, "marian" or "gpt2"."""
    if name in FAMILIES:
        return FAMILIES[name].model(end=2)
    return encoder(name) if name in ENCODERS else {"marian": marian, "gpt2": gpt2}[name]()


# Texts


def word_pieces(folder: Path) -> None:
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    words = sorted({word.lower() for line in LINES for word in line.split()})[:50]
    (folder / "vocab.txt").write_text("\n".join([*marks, *words]) + "\n", encoding="utf-8")


def whole(folder: Path) -> None:
    """A tokenizer.json."""
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(LINES, vocab_size=300, show_progress=False)
    trained.save(str(folder / "tokenizer.json"))


def pieces(folder: Path, name: str, **options: int) -> None:
    train_sentencepiece(LINES, folder / name, **options)


def m2m_pieces(folder: Path) -> None:
    found = train_sentencepiece(LINES, folder / "sentencepiece.bpe.model", bos_id=1, eos_id=2)
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *found[3:-5]]
    vocab = {token: number for number, token in enumerate(tokens)}
    (folder / "vocab.json").write_text(json.dumps(vocab))


def marian_pieces(folder: Path) -> None:
    found = train_sentencepiece(GERMAN, folder / "source.spm")
    found += train_sentencepiece(ENGLISH, folder / "target.spm")
    (folder / "vocab.json").write_text(numbered(found))


def words(folder: Path) -> None:
    train_word_bpe(folder, ["__null__", "__start__", "__end__", "__unk__", "__newln__"])


T5_PIECES = partial(pieces, name="spiece.model", pad_id=0, eos_id=1, unk_id=2)
FAIRSEQ_PIECES = partial(pieces, name="sentencepiece.bpe.model", bos_id=1, eos_id=2)
# By model_type; the others have a tokenizer.json.
TEXTS: dict[str, Callable[[Path], None]] = {
    **dict.fromkeys(("bart", "blenderbot", "gpt2", "gptj", "opt", "roberta"), train_bpe),
    **dict.fromkeys(("bert", "distilbert"), word_pieces),
    **dict.fromkeys(("t5", "mt5", "umt5", "pegasus"), T5_PIECES),
    **dict.fromkeys(("mbart", "xlm-roberta"), FAIRSEQ_PIECES),
    "blenderbot-small": words,
    "m2m_100": m2m_pieces,
    "marian": marian_pieces,
}
SETTINGS = {
    "model_max_length": 512,
    "clean_up_tokenization_spaces": False,
    "added_tokens_decoder": {},
    "unk_token": {"content": "<unk>", "lstrip": False},
}


def write_text_files(folder: Path, kind: str) -> None:
    TEXTS.get(kind, whole)(folder)
    if kind in ("marian", "bert"):
        settings = SETTINGS if kind == "marian" else {"do_lower_case": True}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))


# Hugging Face's formats


def safetensors(folder: Path, name: str) -> str:
    model = model_of(name)
    write(folder, model)
    if name not in ENCODERS:
        generation = model.generation_config.to_json_string()
        (folder / "generation_config.json").write_text(generation)
    write_text_files(folder, model.config.model_type)
    return ""


def quantised(folder: Path, name: str, layout: str) -> str:
    safetensors(folder, name)
    write_quantised(folder, model_of(name), LAYOUTS[layout])
    return ""


def torch_file(folder: Path, name: str, old: bool = False) -> str:
    """old: as torch wrote until version 1.5, no zip."""
    safetensors(folder, name)
    (folder / "model.safetensors").unlink()
    state = stored(model_of(name))
    torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=not old)
    return ""


def shards(folder: Path, name: str, suffix: str) -> str:
    """suffix: "safetensors" or "bin"."""
    safetensors(folder, name)
    (folder / "model.safetensors").unlink()
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    state = stored(model_of(name))
    shard_of = {name: f"{stem}-0000{i % 3 + 1}-of-00003.{suffix}" for i, name in enumerate(state)}
    for shard in set(shard_of.values()):
        part = {name: tensor for name, tensor in state.items() if shard_of[name] == shard}
        save = save_file if suffix == "safetensors" else torch.save
        save(part, folder / shard)
    index = {"metadata": {"total_size": 1}, "weight_map": shard_of}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))
    return ""


def sentences(folder: Path) -> str:
    """Of sentence-transformers."""
    safetensors(folder, "bert")
    types = ("Transformer", "Pooling", "Normalize")
    modules = [
        {
            "idx": i,
            "name": str(i),
            "path": f"{i}_{kind}" if i else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for i, kind in enumerate(types)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True}
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    settings = {"max_seq_length": 20, "do_lower_case": True}
    (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
    return ""


def converted(folder: Path, name: str, dtype: str) -> str:
    origin = folder / "origin"
    origin.mkdir()
    safetensors(origin, name)
    decoding.load(origin, "cpu", dtype, threads=1).save(folder)
    shutil.rmtree(origin)
    return ""


# Other toolkits


def fairseq(folder: Path, name: str, codes: bool = False, cfg: bool = False) -> str:
    """codes: text is cut by byte-pair merges. cfg: options as from version 0.10 on."""
    changed: dict[str, Any] = {"bpe": "sentencepiece", "sentencepiece_model": "/there/spm.model"}
    if codes:
        changed = {"bpe": "subword_nmt", "bpe_codes": "bpecodes"}
        merges = ["#version: 0.2", "a b", "ab c</w>", "d e</w>"]
        (folder / "bpecodes").write_text("\n".join(merges) + "\n")
    path = write_fairseq(folder / "model.pt", fairseq_model(FAIRSEQ[name]), **changed)
    if cfg:
        content = torch.load(path, weights_only=False)
        options = vars(content["args"])
        groups = ("source_lang", "target_lang", "task"), ("bpe", "sentencepiece_model")
        content["args"] = None
        content["cfg"] = {
            "task": {key: options[key] for key in groups[0]},
            "bpe": {"_name": "sentencepiece", "sentencepiece_model": "spm.model"},
            "model": {key: options[key] for key in options if key not in sum(groups, ())},
        }
        torch.save(content, path)
    write_dictionaries(folder)
    return ""


def write_dictionaries(folder: Path) -> None:
    found = train_sentencepiece(LINES, folder / "spm.model")
    kept = [piece for piece in found if piece not in ("<unk>", "</s>")][:56]
    for language in ("de", "en"):
        lines = "".join(f"{piece} 100\n" for piece in kept)
        (folder / f"dict.{language}.txt").write_text(lines, encoding="utf-8")


def light_convolutions(folder: Path, options: dict[str, Any]) -> str:
    texts = {"source_lang": "de", "target_lang": "en", "bpe": "sentencepiece"}
    model = LightConv(1, **options)
    model.write(folder / "checkpoint_best.pt", **texts, sentencepiece_model="spm.model")
    write_dictionaries(folder)
    return "checkpoint_best.pt"


def marian_npz(folder: Path, post_norm: bool, lists: bool) -> str:
    """lists: vocabularies are YAML; else they are SentencePiece models."""
    write_marian(folder / "model.npz", marian_model(POST_NORM if post_norm else PRE_NORM))
    vocabularies = ["vocab.yml", "vocab.yml"] if lists else ["de.spm", "en.spm"]
    if lists:
        found = train_sentencepiece(GERMAN, folder / "source.spm")
        found += train_sentencepiece(ENGLISH, folder / "target.spm")
        (folder / "vocab.yml").write_text(numbered(found))
    else:
        pieces(folder, "de.spm", eos_id=0, unk_id=1)
        pieces(folder, "en.spm", eos_id=0, unk_id=1)
    (folder / "decoder.yml").write_text(
        "relative-paths: true\nmodels:\n  - model.npz\nvocabs:\n"
        + "".join(f"  - {name}\n" for name in vocabularies)
        + "beam-size: 4\nnormalize: 0.6\nword-penalty: 0\nallow-unk: false\n"
    )
    return ""


def opennmt(folder: Path) -> str:
    options = {
        "transforms": ["sentencepiece"],
        "src_subword_model": "spm.model",
        "tgt_subword_model": "/there/spm.model",
    }
    torch.save(opennmt_content(opennmt_model(), **options), folder / "model.pt")
    pieces(folder, "spm.model")
    return "model.pt"


def llama2c(folder: Path) -> str:
    for name in ("stories260K.bin", "tok512.bin"):
        shutil.copyfile(STORIES / name, folder / name)
    return "stories260K.bin"


MAKERS: dict[str, Maker] = {
    **{name: partial(safetensors, name=name) for name in (*FAMILIES, *ENCODERS, "marian", "gpt2")},
    "torch marian": partial(torch_file, name="marian"),
    "torch gpt2": partial(torch_file, name="gpt2"),
    "torch old": partial(torch_file, name="gpt2", old=True),
    "fp8 llama": partial(quantised, name="llama", layout="fp8-blocks"),
    "fp8 bart": partial(quantised, name="bart", layout="float-channel"),
    "int8 llama": partial(quantised, name="llama", layout="int-channel"),
    "int8 phi3": partial(quantised, name="phi3", layout="int-asymmetric"),
    "shards marian": partial(shards, name="marian", suffix="safetensors"),
    "shards llama": partial(shards, name="llama", suffix="bin"),
    "sentences": sentences,
    "converted marian": partial(converted, name="marian", dtype="float32"),
    "converted gpt2": partial(converted, name="gpt2", dtype="int8"),
    "converted llama": partial(converted, name="llama", dtype="bfloat16"),
    "converted bert": partial(converted, name="bert", dtype="float32"),
    "fairseq": partial(fairseq, name="post-norm"),
    "fairseq codes": partial(fairseq, name="pre-norm", codes=True),
    "fairseq cfg": partial(fairseq, name="pre-norm", cfg=True),
    "lightconv": partial(light_convolutions, options=LIGHT),
    "dynamicconv": partial(light_convolutions, options=DYNAMIC),
    "marian npz": partial(marian_npz, post_norm=True, lists=True),
    "marian npz spm": partial(marian_npz, post_norm=False, lists=False),
    "opennmt": opennmt,
    "llama2c": llama2c,
}
