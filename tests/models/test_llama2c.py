"""llama2.c's checkpoints, of every version, and the story that its smallest model tells."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sentencepiece import SentencePieceProcessor
from torch import Tensor

import decoding
from decoding.models import load
from decoding.models.files import Directory
from decoding.models.formats import llama2c
from decoding.models.weights.lazy import Weights
from decoding.text.tokenizers import load_tokenizer
from tests.models.test_models import assert_close, oracle
from tests.support.families import GROUPED, Family
from tests.support.vocabularies import ENGLISH, GERMAN, train_sentencepiece

STORIES = Path(__file__).parent.parent / "data/stories260K"
GROUP = 16  # of numbers with one scale


def test_a_story(device: str) -> None:
    model = decoding.load(STORIES, device, dtype="float32")
    found = model.generate(max_new_tokens=256)[0].tolist()
    story = (STORIES / "story.txt").read_text().rstrip("\n")
    assert model.tokenizer.decode(found, skip_special_tokens=True) == story
    assert model.tokenizer.encode(story) == found


# Every version


@pytest.fixture(scope="module", params=["tied", "untied"])
def theirs(request: pytest.FixtureRequest) -> Any:
    options = {"tie_word_embeddings": request.param == "tied", "rms_norm_eps": 1e-5}
    return Family("LlamaForCausalLM", GROUPED | options).model(end=2)


def state_of(model: Any) -> dict[str, Tensor]:
    """The model's weights by Meta's names; pairs that turn together are neighbours there."""
    state = {}
    stored = model.state_dict()
    for name, theirs in {
        "tok_embeddings": "model.embed_tokens",
        "norm": "model.norm",
        "output": "lm_head",
        "attention_norm": "input_layernorm",
        "attention.wq": "self_attn.q_proj",
        "attention.wk": "self_attn.k_proj",
        "attention.wv": "self_attn.v_proj",
        "attention.wo": "self_attn.o_proj",
        "ffn_norm": "post_attention_layernorm",
        "feed_forward.w1": "mlp.gate_proj",
        "feed_forward.w2": "mlp.down_proj",
        "feed_forward.w3": "mlp.up_proj",
    }.items():
        for prefix, held in [("", ""), *((f"layers.{i}.", f"model.layers.{i}.") for i in (0, 1))]:
            if f"{held}{theirs}.weight" in stored:
                weight = stored[f"{held}{theirs}.weight"]
                if name in ("attention.wq", "attention.wk"):
                    heads = weight.view(-1, 2, model.config.head_dim // 2, weight.shape[1])
                    weight = heads.transpose(1, 2).reshape(weight.shape)
                state[f"{prefix}{name}.weight"] = weight
    return state


def sizes(model: Any) -> tuple[int, ...]:
    c = model.config
    heads = (c.num_attention_heads, c.num_key_value_heads)
    numbers = (c.hidden_size, c.intermediate_size, c.num_hidden_layers, *heads)
    return (*numbers, c.vocab_size, c.max_position_embeddings)


def written(model: Any, version: int) -> bytes:
    """A file by the definition of llama2.c's export.py and the programs that read it."""
    state, tied = state_of(model), model.config.tie_word_embeddings
    numbers = list(sizes(model))
    products = ["attention.wq", "attention.wk", "attention.wv", "attention.wo"]
    inner = ["feed_forward.w1", "feed_forward.w2", "feed_forward.w3"]
    angles = 48 * 4 * 2 * 4  # bytes of cosines and sines that nobody reads
    if version == 0:
        numbers[5] *= 1 if tied else -1
        head = struct.pack("7i", *numbers)
        order = ["tok_embeddings", "attention_norm", *products, "ffn_norm", *inner, "norm"]
        body = b"".join(floats(state, name) for name in order) + b"\xff" * angles
        return head + body + (b"" if tied else floats(state, "output"))
    head = struct.pack("<Ii7iB", 0x616B3432, version, *numbers, tied)
    head += struct.pack("<i", GROUP) if version == 2 else b""
    norms = b"".join(floats(state, name) for name in ("attention_norm", "ffn_norm", "norm"))
    order = ["tok_embeddings", *products, *inner, *([] if tied else ["output"])]
    write = floats if version == 1 else int8
    return head.ljust(256, b"\0") + norms + b"".join(write(state, name) for name in order)


def of_layers(state: dict[str, Tensor], name: str) -> Iterator[Tensor]:
    names = (f"{name}.weight", f"layers.0.{name}.weight", f"layers.1.{name}.weight")
    return (state[each] for each in names if each in state)


def floats(state: dict[str, Tensor], name: str) -> bytes:
    return b"".join(weight.numpy().tobytes() for weight in of_layers(state, name))


def int8(state: dict[str, Tensor], name: str) -> bytes:
    content = b""
    for weight in of_layers(state, name):
        groups = weight.reshape(-1, GROUP)
        scales = groups.abs().amax(1) / 127
        content += (groups / scales[:, None]).round().to(torch.int8).numpy().tobytes()
        content += scales.numpy().tobytes()
    return content


@pytest.mark.parametrize("version", [0, 1])
@torch.no_grad()
def test_versions_of_float32(theirs: Any, version: int, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(written(theirs, version))
    check(theirs, path)
    assert load(path).state.keys() == load(theirs).state.keys()


@torch.no_grad()
def test_what_training_saves(theirs: Any, tmp_path: Path) -> None:
    names = ("dim", "n_layers", "n_heads", "n_kv_heads", "vocab_size", "max_seq_len")
    numbers = [size for i, size in enumerate(sizes(theirs)) if i != 1]
    arguments = dict(zip(names, numbers, strict=True)) | {"multiple_of": 4, "dropout": 0.0}
    state = {f"_orig_mod.{name}": weight for name, weight in state_of(theirs).items()}
    torch.save({"model": state, "model_args": arguments, "iter_num": 3}, tmp_path / "ckpt.pt")
    check(theirs, tmp_path)


def check(theirs: Any, source: Path) -> None:
    ids = torch.randint(4, 60, (3, 9), generator=torch.Generator().manual_seed(3))
    assert_close(oracle(load(source))(ids), theirs(ids).logits)


def test_int8_is_read_to_half_a_step(theirs: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(written(theirs, 2))
    found, expected = Weights(llama2c.read(path, Directory(tmp_path)).state), state_of(theirs)
    for name, weight in found.items():
        if name.endswith("norm.weight"):
            assert torch.equal(weight, expected[name])
        else:
            groups, exact = weight.view(-1, GROUP), expected[name].reshape(-1, GROUP)
            step = exact.abs().amax(1, keepdim=True) / 127
            assert ((groups - exact).abs() <= 0.501 * step).all(), name
    kept = {name for name in expected if name != "output.weight" or "output.weight" in found}
    assert found.keys() == kept
    assert ("output.weight" in found) is not theirs.config.tie_word_embeddings


def test_refused_files(theirs: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    content = written(theirs, 1)
    for damaged in (content[:-4], content + b"\0", b"short", b"PK\3\4" * 20):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="model.bin is no model of llama2.c"):
            load(path)
    path.write_bytes(content[:4] + struct.pack("i", 3) + content[8:])
    with pytest.raises(ValueError, match="model.bin is of llama2.c's version 3"):
        load(tmp_path)


# Vocabularies


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SentencePieceProcessor]:
    """A directory with tokenizer.model, as Llama's is made, and sentencepiece's view of it."""
    path = tmp_path_factory.mktemp("llama") / "tokenizer.model"
    options = {
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "split_digits": True,
        "vocab_size": 400,
    }
    train_sentencepiece(GERMAN + ENGLISH, path, bos_id=1, eos_id=2, **options)
    return path.parent, SentencePieceProcessor(model_file=str(path))


TEXTS = [*GERMAN, *ENGLISH, " two  spaces ", "  x", "привет! 👋🏽\n\n\tso", "aaaaaaa", "\u2603"]


def test_a_sentencepiece_model(vocabulary: tuple[Path, SentencePieceProcessor]) -> None:
    folder, model = vocabulary
    ours = load_tokenizer(folder, {"model_type": "llama"})
    for text in TEXTS:
        assert ours.encode(text) == [1, *model.encode(text)]
        assert ours.decode(ours.encode(text), skip_special_tokens=True) == text
    assert ours.decode([1, 404, 2], skip_special_tokens=False).startswith("<s>")


def test_a_vocabulary_as_llama2c_writes_it(
    vocabulary: tuple[Path, SentencePieceProcessor], tmp_path: Path
) -> None:
    folder, model = vocabulary
    content = struct.pack("i", 9)
    for number in range(len(model)):
        piece = {1: "\n<s>\n", 2: "\n</s>\n"}.get(number, model.id_to_piece(number))
        if model.is_byte(number):
            piece = chr(int(piece[3:5], 16))
        stored = piece.replace("▁", " ").encode()
        content += struct.pack("fi", model.get_score(number), len(stored)) + stored
    (tmp_path / "tok.bin").write_bytes(content)
    config = {"model_type": "llama2c", "vocab_size": len(model), "tokenizer_file": "tok.bin"}
    ours, whole = load_tokenizer(tmp_path, config), load_tokenizer(folder, {"model_type": "llama"})
    for text in TEXTS:
        assert ours.encode(text) == whole.encode(text)
    with pytest.raises(ValueError, match="has more pieces than the model, 7"):
        load_tokenizer(tmp_path, config | {"vocab_size": 7})
    with pytest.raises(ValueError, match=f"has {len(model)} pieces, the model 700"):
        load_tokenizer(tmp_path, config | {"vocab_size": 700})
    (tmp_path / "tok.bin").write_bytes(content + b"ab")
    with pytest.raises(ValueError, match="has more pieces than the model"):
        load_tokenizer(tmp_path, config)
    for damaged in (content[:-1], content[:-7]):
        (tmp_path / "tok.bin").write_bytes(damaged)
        with pytest.raises(ValueError, match="is no vocabulary of llama2.c"):
            load_tokenizer(tmp_path, config)
