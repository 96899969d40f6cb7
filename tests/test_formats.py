"""Checkpoints of other toolkits: the same tokens as the transformers model that they hold."""

from __future__ import annotations

import pickle
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import decoding
import decoding.translate
from decoding.models import load
from tests import toolkits
from tests.comparison import assert_close_scores, is_tie, rows_of
from tests.families import TOKENS, ragged
from tests.random_models import spec_of
from tests.toolkits import FAIRSEQ, POST_NORM, PRE_NORM, marian_arrays

SEARCHES: list[dict[str, Any]] = [
    {"num_beams": 1},
    {"num_beams": 4, "num_return_sequences": 3, "early_stopping": False, "length_penalty": 1.0},
]
# What each toolkit does by default, and transformers does not.
PLAIN = {"bad_words_ids": None, "min_new_tokens": None}


def write_opennmt(path: Path, model: Any, **changed: Any) -> Path:
    torch.save(toolkits.opennmt_content(model, **changed), path)
    return path


MODELS: dict[str, tuple[Callable[[], Any], Callable[[Path, Any], Path], str]] = {
    "fairseq-post-norm": (
        lambda: toolkits.fairseq_model(FAIRSEQ["post-norm"]),
        toolkits.write_fairseq,
        "checkpoint_best.pt",
    ),
    "fairseq-pre-norm": (
        lambda: toolkits.fairseq_model(FAIRSEQ["pre-norm"]),
        toolkits.write_fairseq,
        "checkpoint_best.pt",
    ),
    "marian-post-norm": (
        lambda: toolkits.marian_model(POST_NORM),
        toolkits.write_marian,
        "model.npz",
    ),
    "marian-pre-norm": (
        lambda: toolkits.marian_model(PRE_NORM),
        toolkits.write_marian,
        "model.npz",
    ),
    "opennmt": (toolkits.opennmt_model, write_opennmt, "model_step_60.pt"),
}


@pytest.fixture(scope="module", params=MODELS)
def theirs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A transformers model, and the file that holds it."""
    make, write, name = MODELS[request.param]
    model = make()
    return model, write(tmp_path_factory.mktemp("model") / name, model)


@pytest.mark.parametrize("options", SEARCHES, ids=["greedy", "beams"])
def test_the_tokens_of_transformers(theirs: Any, options: dict[str, Any], device: str) -> None:
    model, path = theirs
    start = model.config.decoder_start_token_id
    options = options | {
        "max_new_tokens": TOKENS,
        "eos_token_id": model.config.eos_token_id,
        "pad_token_id": model.config.pad_token_id,
        "decoder_start_token_id": start,
        "return_dict_in_generate": True,
        "output_scores": True,
    }

    def reference(**more: Any) -> Any:
        return model.generate(**ragged(model), **options, **more)

    given = ragged(model)
    ours = decoding.load(path, device, dtype="float32", threads=1 if device == "cpu" else None)
    found, expected = ours.generate(**given, **options, **PLAIN), reference()
    if rows_of(found) != rows_of(expected):
        assert is_tie(reference, found), f"{rows_of(expected)}\n{rows_of(found)}"
    elif options["num_beams"] > 1:
        assert_close_scores(found.sequences_scores, expected.sequences_scores)
    assert str(ours.memory_plan()).startswith("name ")


def test_there_is_something_to_tell_apart(theirs: Any) -> None:
    """Rows differ and end at different lengths, or the parity above would show little."""
    model, _ = theirs
    options = {"max_new_tokens": TOKENS, "num_beams": 4, "num_return_sequences": 4}
    found = model.generate(**ragged(model), **options)[:, -TOKENS:].tolist()
    eos = model.config.eos_token_id
    assert len({tuple(row) for row in found}) >= 8
    assert len({row.index(eos) if eos in row else None for row in found}) >= 2


def assert_same(ours: Any, expected: Any) -> None:
    assert ours.spec == expected.spec and ours.state.keys() == expected.state.keys()
    for name, tensor in expected.state.items():
        assert torch.equal(ours.state[name], tensor), name


def test_texts_are_translated(tmp_path: Path) -> None:
    """From a directory as published, by its own dictionaries."""
    model = toolkits.fairseq_model(FAIRSEQ["pre-norm"])
    toolkits.write_fairseq(tmp_path / "model.pt", model)
    lines = [f"word{number} 1" for number in range(4, model.config.vocab_size)]
    for language in ("de", "en"):
        (tmp_path / f"dict.{language}.txt").write_text("\n".join(lines) + "\n")
    ours = decoding.load(tmp_path, "cpu")
    texts = ["word7 word5 nobody", "word20", ""]
    options: dict[str, Any] = {"num_beams": 2, "max_new_tokens": TOKENS}
    rows = ours.generate([[7, 5, 3, 2], [20, 2]], **options)[:, 1:].tolist()
    expected = [
        " ".join(f"word{token}" if token > 3 else "<unk>" for token in row if token > 2)
        for row in rows
    ]
    assert ours.translate(texts, **options) == [*expected, ""]
    found = decoding.translate.Translator(ours, alignments=True, n_best=2, **options)
    [[best, _], *_] = found.stream(texts)
    assert sorted(word for _, word in best.alignment) == list(range(len(best.text.split())))


def test_a_converted_checkpoint_has_its_text(tmp_path: Path) -> None:
    """Model.save: options that are objects are left out, the dictionaries come along."""
    model = toolkits.fairseq_model(FAIRSEQ["pre-norm"])
    (tmp_path / "there").mkdir()
    for language in ("de", "en"):
        (tmp_path / f"there/dict.{language}.txt").write_text("one 1\ntwo 1\n")
    changed: dict[str, Any] = {"criterion": Path("an object"), "adam_betas": (0.9, 0.98)}
    path = toolkits.write_fairseq(tmp_path / "there/model.pt", model, **changed)
    ours = decoding.load(path, "cpu", dtype="float32")
    assert "criterion" not in ours.config and ours.config["adam_betas"] == (0.9, 0.98)
    ours.save(tmp_path / "here")
    converted = decoding.load(tmp_path / "here", "cpu")
    assert converted.tokenizer.encode("two one") == [5, 4, 2]
    rows = {"input_ids": [[5, 4, 2]], "max_new_tokens": TOKENS}
    assert torch.equal(converted.generate(**rows), ours.generate(**rows))


# fairseq


@pytest.fixture(scope="module")
def fairseq(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A model, and what its file of options as `args` is loaded as."""
    model = toolkits.fairseq_model(FAIRSEQ["pre-norm"])
    path = toolkits.write_fairseq(tmp_path_factory.mktemp("fairseq") / "model.pt", model)
    return model, load(path)


def test_fairseq_options_in_groups(fairseq: tuple[Any, Any], tmp_path: Path) -> None:
    """`cfg` as fairseq-train writes it from version 0.10 on, and as fairseq-hydra-train does."""
    model, expected = fairseq
    options = toolkits.fairseq_options(model)
    task = {"_name": options["task"], "source_lang": "de", "target_lang": "en"}
    groups: dict[str, Any] = {"_name": "transformer"}
    for name, value in options.items():
        side, _, rest = name.partition("_")
        if side in ("encoder", "decoder"):
            groups.setdefault(side, {})[rest] = value
        else:
            groups[name] = value
    del groups["arch"]
    bpe = {"_name": "sentencepiece", "sentencepiece_model": "/data/spm.model"}
    for group in (Namespace(**options), groups):
        state = toolkits.fairseq_state(model)
        cfg = {"model": group, "task": task, "bpe": bpe, "tokenizer": None}
        content: dict[str, Any] = {"args": None, "cfg": cfg, "model": state}
        content["optimizer_history"] = []
        torch.save(content, tmp_path / "model.pt")
        loaded = load(tmp_path)
        assert_same(loaded, expected)
        assert loaded.config["bpe"] == "sentencepiece" and loaded.config["tokenizer"] is None
        assert loaded.config["sentencepiece_model"] == "/data/spm.model"
        assert loaded.config["source_lang"] == "de" and loaded.config["task"] == "translation"


def test_fairseq_names_of_2018(fairseq: tuple[Any, Any], tmp_path: Path) -> None:
    """Fused projections, numbered norms, no output where it is tied, versions and no last norm."""
    model, expected = fairseq
    norms = {"encoder": ["self_attn", "final"], "decoder": ["self_attn", "encoder_attn", "final"]}
    old = {}
    for name, tensor in toolkits.fairseq_state(model).items():
        for side, kinds in norms.items():
            for number, kind in enumerate(kinds):
                if name.startswith(side):
                    name = name.replace(f".{kind}_layer_norm.", f".layer_norms.{number}.")
        old[name] = tensor
    for name in [name for name in old if ".q_proj." in name]:
        attention, _, kind = name.partition(".q_proj.")
        parts = [old.pop(f"{attention}.{part}_proj.{kind}") for part in "qkv"]
        old[f"{attention}.in_proj_{kind}"] = torch.cat(parts)
    del old["decoder.output_projection.weight"]
    loaded = load(toolkits.write_fairseq(tmp_path / "model.pt", model, old))
    assert_same(loaded, expected)
    for side in norms:
        for kind in ("weight", "bias"):
            del old[f"{side}.layer_norm.{kind}"]
    spec = spec_of(load(toolkits.write_fairseq(tmp_path / "model.pt", model, old)))
    assert not spec.decoder.final_norm and spec.encoder and not spec.encoder.final_norm
    old["decoder.embed_out"] = torch.ones_like(old["decoder.embed_tokens.weight"])
    untied = load(
        toolkits.write_fairseq(tmp_path / "model.pt", model, old, share_all_embeddings=False)
    )
    assert torch.equal(untied.state["output.weight"], old["decoder.embed_out"])


def test_fairseq_copies_of_version_0_12_are_ignored(
    fairseq: tuple[Any, Any], tmp_path: Path
) -> None:
    model, expected = fairseq
    state = toolkits.fairseq_state(model)
    for part in ("in_proj", "out_proj", "fc1", "fc2"):
        state[f"encoder.layers.0.{part}_weight"] = torch.zeros(2, 2)
    assert_same(load(toolkits.write_fairseq(tmp_path / "model.pt", model, state)), expected)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"arch": "bart_large"}, "arch='bart_large' is not supported"),
        ({"arch": "transformer_lm_gpt"}, "arch='transformer_lm_gpt' is not supported"),
        ({"arch": None}, "arch='None' is not supported"),
        ({"task": "multilingual_translation"}, "task='multilingual_translation'"),
        ({"cross_self_attention": True}, "cross_self_attention=True"),
        ({"no_token_positional_embeddings": True}, "no_token_positional_embeddings=True"),
        ({"activation_fn": "linear"}, "activation_fn='linear' is not supported, only relu"),
        ({"decoder_layers": 3}, "lacks the tensor decoder.layers.2."),
        ({"encoder_layers": 1}, "unexpected tensors.*encoder.layers.1."),
        ({"encoder_learned_pos": True}, "lacks the tensor encoder.embed_positions.weight"),
        ({"decoder_attention_heads": 3}, "decoder_attention_heads=3 does not divide"),
        ({"encoder_normalize_before": False}, "unexpected tensors.*encoder.layer_norm"),
    ],
)
def test_refused_fairseq_options(
    fairseq: tuple[Any, Any], changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        load(toolkits.write_fairseq(tmp_path / "model.pt", fairseq[0], **changed))


# Marian


@pytest.fixture(scope="module")
def marian() -> Any:
    return toolkits.marian_model(PRE_NORM)


def test_marians_search_is_that_of_decoder_yml(marian: Any, tmp_path: Path) -> None:
    toolkits.write_marian(tmp_path / "model.npz", marian)
    np.savez(tmp_path / "model.npz.optimizer.npz", adam=np.zeros(2))
    plain = load(tmp_path).generation_config
    assert plain["num_beams"] == 12 and plain["length_penalty"] == 0.0
    assert plain["bad_words_ids"] == [[1]] and plain["eos_token_id"] == 0
    assert plain["decoder_start_token_id"] == plain["pad_token_id"] == toolkits.START
    decoder = tmp_path / "decoder.yml"
    decoder.write_text(
        "relative-paths: true\nmodels:\n  - /trained/there/model.npz\nvocabs: [a.spm, b.spm]\n"
        "beam-size: 6\nnormalize: 0.6\nword-penalty: 0\nallow-unk: true\n"
    )
    for source in (tmp_path, decoder):
        loaded = load(source)
        found = loaded.generation_config
        assert (found["num_beams"], found["length_penalty"]) == (6, 0.6)
        assert found["bad_words_ids"] is None and loaded.config["vocabs"] == ["a.spm", "b.spm"]
    for text, message in [
        ("models: [a.npz, b.npz]", "must name one model"),
        ("models: [model.npz]\nword-penalty: 0.2", "word-penalty=0.2 is not supported, only 0"),
        ("models: [", "is not valid YAML"),
        ("one line", "must hold options, got str"),
    ]:
        decoder.write_text(text)
        with pytest.raises(ValueError, match=message):
            load(tmp_path)
    decoder.write_text("models: [other.npz]")
    with pytest.raises(FileNotFoundError, match="other.npz is missing, but decoder.yml names it"):
        load(tmp_path)


def test_marians_tables(marian: Any, tmp_path: Path) -> None:
    """Whatever is tied to what, and with an output of before version 1.8, or without a bias."""
    expected = load(toolkits.write_marian(tmp_path / "model.npz", marian)).state
    arrays = marian_arrays(marian)
    last = toolkits.START
    assert not expected["decoder.embed.tokens"][last].any()
    assert expected["output.bias"][last] == -1e4 and len(expected["encoder.embed.tokens"]) == last

    old = dict(arrays)
    old["decoder_ff_logit_out_W"] = old.pop("decoder_ff_logit_out_Wt").T
    found = load(toolkits.write_marian(tmp_path / "model.npz", marian, old)).state
    assert torch.equal(found["output.weight"], expected["output.weight"])

    shared = dict(arrays)
    shared["Wemb"] = shared.pop("decoder_Wemb")
    del shared["encoder_Wemb"], shared["decoder_ff_logit_out_b"]
    options = {"tied-embeddings-src": True, "output-omit-bias": True}
    found = load(toolkits.write_marian(tmp_path / "model.npz", marian, shared, **options)).state
    assert found["encoder.embed.tokens"] is found["decoder.embed.tokens"]
    assert torch.equal(found["output.weight"], expected["output.weight"])
    assert not found["output.bias"][:last].any()

    tied = dict(arrays)
    del tied["decoder_ff_logit_out_Wt"]
    options = {"tied-embeddings": True}
    found = load(toolkits.write_marian(tmp_path / "model.npz", marian, tied, **options)).state
    assert found["output.weight"] is found["decoder.embed.tokens"]


def test_marians_norm_behind_the_embedding(marian: Any, tmp_path: Path) -> None:
    arrays = marian_arrays(marian)
    for side in ("encoder", "decoder"):
        for kind in ("scale", "bias"):
            arrays[f"{side}_emb_ln_{kind}_pre"] = np.full((1, 32), len(kind), np.float32)
    options = {"transformer-postprocess-emb": "nd"}
    loaded = load(toolkits.write_marian(tmp_path / "model.npz", marian, arrays, **options))
    assert spec_of(loaded).decoder.embed_norm
    assert loaded.state["encoder.embed.norm.weight"].eq(5).all()
    assert loaded.state["decoder.embed.norm.bias"].eq(4).all()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"type": "s2s"}, "type='s2s'"),
        ({"transformer-ffn-activation": "gelu"}, "transformer-ffn-activation='gelu'"),
        ({"transformer-decoder-autoreg": "rnn"}, "transformer-decoder-autoreg='rnn'"),
        ({"transformer-tied-layers": [1, 1]}, "transformer-tied-layers="),
        ({"transformer-no-projection": True}, "transformer-no-projection=True"),
        ({"transformer-ffn-depth": 3}, "transformer-ffn-depth=3"),
        ({"transformer-postprocess": "dan"}, "transformer-postprocess='dan' is not supported"),
        ({"transformer-preprocess": "r"}, "transformer-preprocess='r' is not supported"),
        ({"transformer-postprocess-top": "an"}, "transformer-postprocess-top='an'"),
        ({"dec-depth": 3}, "lacks the tensor decoder_l3_"),
        ({"enc-depth": 1}, "unexpected tensors.*encoder_l2_"),
        ({"tied-embeddings-all": True}, "lacks the tensor Wemb"),
        ({"transformer-decoder-dim-ffn": 20}, "decoder_l1_ffn_W1.*must have the shape"),
    ],
)
def test_refused_marian_options(
    marian: Any, changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        load(toolkits.write_marian(tmp_path / "model.npz", marian, **changed))


# OpenNMT-py


@pytest.fixture(scope="module")
def opennmt(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A model, and what its file in the layout of version 3 is loaded as."""
    model = toolkits.opennmt_model()
    return model, load(write_opennmt(tmp_path_factory.mktemp("opennmt") / "model.pt", model))


def test_opennmt_ids_are_those_of_its_vocabulary(opennmt: tuple[Any, Any]) -> None:
    found = opennmt[1].generation_config
    assert found["decoder_start_token_id"] == found["bos_token_id"] == toolkits.START
    assert (found["eos_token_id"], found["pad_token_id"]) == (2, 1)


@pytest.fixture
def torchtext(monkeypatch: pytest.MonkeyPatch) -> type:
    """A class of a package that is not there when a file is read."""
    module = ModuleType("torchtext")
    field = type("Field", (), {"__module__": "torchtext"})
    module.Field = field  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torchtext", module)
    return field


@pytest.mark.parametrize("version", [0, 1, 2])
def test_opennmt_files_of_before_version_3(
    opennmt: tuple[Any, Any],
    version: int,
    torchtext: type,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Vocabularies are torchtext's objects, the generator has a first layer, and at first norms
    had names of their own."""
    model, expected = opennmt

    def made(**attributes: Any) -> Any:
        found = torchtext()
        found.__dict__.update(attributes)
        return found

    def vocab(side: str) -> Any:
        return made(itos=toolkits.TOKENS, stoi={"a": 1}, freqs=None)

    content = toolkits.opennmt_content(model)
    content["generator"] = {f"0.{name}": tensor for name, tensor in content["generator"].items()}
    if version == 0:
        content["vocab"] = [(side, vocab(side)) for side in ("src", "tgt")]
        old = {"weight": "a_2", "bias": "b_2"}
        for name in [name for name in content["model"] if "layer_norm" in name]:
            stem, _, kind = name.rpartition(".")
            content["model"][f"{stem}.{old[kind]}"] = content["model"].pop(name)
    elif version == 1:
        content["vocab"] = {side: made(vocab=vocab(side)) for side in ("src", "tgt")}
    else:
        content["vocab"] = {
            side: made(fields=[(side, made(vocab=vocab(side)))]) for side in ("src", "tgt")
        }
    for option in ("add_qkvbias", "add_ffnbias"):
        delattr(content["opt"], option)
    torch.save(content, tmp_path / "model.pt", _use_new_zipfile_serialization=version > 0)
    monkeypatch.delitem(sys.modules, "torchtext")
    loaded = load(tmp_path / "model.pt")
    assert_same(loaded, expected)
    assert loaded.generation_config == expected.generation_config
    assert loaded.config["vocabularies"] == expected.config["vocabularies"]


def test_opennmt_without_biases(opennmt: tuple[Any, Any], tmp_path: Path) -> None:
    model, expected = opennmt
    content = toolkits.opennmt_content(model, add_qkvbias=False)
    for name in [name for name in content["model"] if name.endswith(".bias")]:
        if ".linear_" in name or ".final_linear" in name:
            del content["model"][name]
    torch.save(content, tmp_path / "model.pt")
    state = load(tmp_path).state
    for name, tensor in expected.state.items():
        if "attention" in name and name.endswith(("qkv.bias", "q.bias", "kv.bias", "out.bias")):
            assert not state[name].any() and tensor.any(), name
        else:
            assert torch.equal(state[name], tensor), name


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"decoder_type": "transformer_lm"}, "decoder_type='transformer_lm'"),
        ({"encoder_type": "brnn"}, "encoder_type='brnn'"),
        ({"max_relative_positions": 20}, "max_relative_positions=20"),
        ({"position_encoding": False}, "position_encoding=False"),
        ({"copy_attn": True}, "copy_attn=True"),
        ({"layer_norm": "rms"}, "layer_norm='rms'"),
        ({"self_attn_type": "average"}, "self_attn_type='average'"),
        ({"pos_ffn_activation_fn": "silu"}, "pos_ffn_activation_fn='silu'"),
        ({"heads": 3}, "heads=3 does not divide a width of 32"),
        ({"dec_layers": 1}, "unexpected tensors.*decoder.transformer_layers.1."),
        ({"add_qkvbias": False}, "unexpected tensors.*self_attn.linear_keys.bias"),
    ],
)
def test_refused_opennmt_options(
    opennmt: tuple[Any, Any], changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        load(write_opennmt(tmp_path / "model.pt", opennmt[0], **changed))


# What is found at a path


class Code:
    """Runs when an ordinary unpickler meets it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (self.path, "it ran"))


@pytest.mark.parametrize("zipped", [True, False])
def test_code_in_a_checkpoint_is_not_run(
    fairseq: tuple[Any, Any], zipped: bool, tmp_path: Path
) -> None:
    model, expected = fairseq
    trace = tmp_path / "trace"
    content = {
        "args": Namespace(**toolkits.fairseq_options(model)),
        "model": toolkits.fairseq_state(model),
        "optimizer_history": [Code(trace)],
    }
    path = tmp_path / "model.pt"
    torch.save(content, path, _use_new_zipfile_serialization=zipped)
    assert_same(load(path), expected)
    assert not trace.exists()
    torch.load(path, weights_only=False)
    assert trace.exists()  # the file would have


def test_a_directory_of_several_checkpoints(tmp_path: Path) -> None:
    for name in ("checkpoint_best.pt", "checkpoint_last.pt"):
        (tmp_path / name).touch()
    message = "several checkpoints, pass one of them: checkpoint_best.pt, checkpoint_last.pt"
    with pytest.raises(ValueError, match=message):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="expected one of model.safetensors"):
        load(tmp_path)  # Hugging Face's, whatever else is there


def test_refused_files(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    for content, message in [
        ({"weights": 1}, "is no checkpoint of fairseq, OpenNMT-py or llama2.c, it holds weights"),
        ({"model": {}, "args": None}, "holds no options: its args and its cfg are empty"),
        ([], "must hold a dictionary, got list"),
        (
            {"model": {}, "generator": {}, "opt": Namespace(), "vocab": {"src": 3}},
            "vocab is of no known layout",
        ),
        (
            {"model": {}, "generator": {}, "opt": Namespace(), "vocab": {"src": [], "tgt": []}},
            "the target's vocabulary has no '<s>'",
        ),
    ]:
        torch.save(content, path)
        with pytest.raises(ValueError, match=message):
            load(path)
    for damaged in (b"", b"no torch file", pickle.dumps({"model": 1})):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="model.pt cannot be read as a checkpoint"):
            load(path)
    path = tmp_path / "model.npz"
    for damaged in (b"", b"no archive"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="model.npz cannot be read as a Marian model"):
            load(path)
    np.savez(path, Wemb=np.zeros(2))
    with pytest.raises(ValueError, match="is no Marian model: it lacks special:model.yml"):
        load(path)
