"""What load() takes: names, paths, models in memory; and a loaded model's other methods."""

from __future__ import annotations

import copy
import io
import logging
import multiprocessing
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import decoding
from decoding import sources
from tests.corpus.local_ray import local_ray
from tests.support.random_models import NAMES, ours, reference

DEMO = Path("models/demo")


@pytest.fixture(scope="module")
def demo() -> decoding.Model:
    return decoding.load("demo", device="cpu", dtype="float32")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the Hugging Face hub."""
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    return tmp_path


def cached(hub: Path, name: str, files: list[Path]) -> Path:
    """Puts files into the cache as the hub's own program does: a snapshot of links to blobs."""
    folder = hub / f"models--{name.replace('/', '--')}"
    snapshot = folder / "snapshots" / ("a" * 40)
    for each in (snapshot, folder / "blobs", folder / "refs"):
        each.mkdir(parents=True)
    (folder / "refs" / "main").write_text("a" * 40)
    for number, file in enumerate(files):
        blob = folder / "blobs" / f"{number:040x}"
        blob.write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)
    return snapshot


@pytest.mark.parametrize(
    ("name", "meant"),
    [("thread", "threads"), ("torch_dtype", "dtype"), ("intra-threads", "threads"), ("x", None)],
)
def test_unknown_arguments_of_load(name: str, meant: str | None) -> None:
    options: dict[str, Any] = {name: 2}
    expected = f"load() has no argument {name!r}"
    expected += f"; did you mean {meant!r}?" if meant else ""
    with pytest.raises(TypeError) as error:
        decoding.load("demo", **options)
    assert str(error.value) == expected
    assert "source: " in (decoding.load.__doc__ or "")


def test_a_name_of_the_hub_is_found_in_its_cache(hub: Path) -> None:
    files = [path for path in DEMO.iterdir() if path.is_file()]
    snapshot = cached(hub, "org/name", files)
    model = decoding.load("org/name", device="cpu")
    assert model.directory == snapshot
    assert model.translate(["Guten Morgen!"]) == ["Good morning."]


@pytest.mark.parametrize("there", [[], [DEMO / "tokenizer_config.json"]])
def test_a_name_that_is_not_in_the_cache(there: list[Path], hub: Path) -> None:
    if there:
        cached(hub, "org/name", there)
    expected = (
        "org/name is no directory here and not in the local Hugging Face cache: run "
        r"`hf download org/name`, or pass download=True \(--download\)"
    )
    with pytest.raises(FileNotFoundError, match=expected):
        decoding.load("org/name")


def test_a_download_is_for_those_who_ask(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    asked: list[Any] = []

    def snapshot_download(name: str, **options: Any) -> str:
        if options.get("local_files_only"):
            return real(name, **options)
        asked.append(options["ignore_patterns"])
        return str(DEMO)

    real = huggingface_hub.snapshot_download
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    files = ["model.safetensors", "pytorch_model.bin"]
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda self, name: files)
    assert sources.find_source("org/name", download=True) == DEMO
    assert {"*.bin", "*.h5"} <= set(asked[0])
    files[0] = "model.safetensors.index.json"
    sources.find_source("org/name", download=True)
    assert "*.bin" in asked[1]
    files[0] = "2_Dense/model.safetensors"  # of another module than the model
    sources.find_source("org/name", download=True)
    assert "*.bin" not in asked[2] and "*.h5" in asked[2]

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for answer, fetches in (("y\n", True), ("n\n", False), ("", False)):
        monkeypatch.setattr(sys, "stdin", Terminal(answer))
        monkeypatch.setattr(sys, "stderr", said := Terminal())
        if fetches:
            assert sources.find_source("org/name") == DEMO
        else:
            with pytest.raises(FileNotFoundError, match="hf download org/name"):
                sources.find_source("org/name")
        assert "Download it from huggingface.co? [y/N]" in said.getvalue()
    assert len(asked) == 4


def test_without_huggingface_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="run `pip install huggingface_hub`, or pass a dir"):
        decoding.load("org/name")


def test_the_demo(demo: decoding.Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert demo.directory == DEMO.absolute()
    monkeypatch.setattr(sources, "__file__", str(tmp_path / "decoding" / "sources.py"))
    with pytest.raises(FileNotFoundError, match=r"not installed: run `pip install ./models/demo`"):
        sources.find_source("demo")
    (tmp_path / "decoding_demo.py").write_text((DEMO / "decoding_demo.py").read_text())
    monkeypatch.syspath_prepend(tmp_path)
    assert sources.find_source("demo") == tmp_path


@pytest.mark.parametrize("name", ["no/such/dir", "model.safetensors", "./org/name", "a b"])
def test_a_path_that_is_none(name: str) -> None:
    with pytest.raises(FileNotFoundError, match="is neither a file nor a directory"):
        decoding.load(name)


def test_what_is_something_else(tmp_path: Path) -> None:
    weights = DEMO / "model.safetensors"
    with pytest.raises(ValueError, match=f"model's weights alone: pass its directory, {DEMO}$"):
        decoding.load(weights)
    alone = tmp_path / "model.safetensors"
    alone.write_bytes(b"")
    with pytest.raises(ValueError, match="config.json must lie beside it"):
        decoding.load(alone)
    gguf = tmp_path / "gguf" / "model.gguf"
    gguf.parent.mkdir()
    gguf.write_bytes(b"GGUF\3")
    with pytest.raises(ValueError, match="model.gguf is a GGUF file.*pass the Hugging Face direc"):
        decoding.load(gguf)
    with pytest.raises(ValueError, match="holds GGUF files.*pass the Hugging Face directory"):
        decoding.load(gguf.parent)
    ct2 = tmp_path / "ct2"
    ct2.mkdir()
    for name in ("model.bin", "shared_vocabulary.json", "config.json"):
        (ct2 / name).write_text("{}")
    with pytest.raises(ValueError, match="is a CTranslate2 model.*that it was converted from"):
        decoding.load(ct2)
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"PEFT adapter and no model.*merge_and_unload\(\)"):
        decoding.load(adapter)


def test_a_model_in_memory_with_its_tokenizer(demo: decoding.Model, tmp_path: Path) -> None:
    theirs = transformers.MarianMTModel.from_pretrained(DEMO)
    tokenizer = transformers.AutoTokenizer.from_pretrained(DEMO)
    texts = ["Guten Morgen, hast du gut geschlafen?", "Ich weiß es nicht."]
    for given in (tokenizer, DEMO, str(DEMO)):
        model = decoding.load(theirs, device="cpu", tokenizer=given)
        assert model.translate(texts) == demo.translate(texts)
    model.save(tmp_path / "saved")
    assert decoding.load(tmp_path / "saved").translate(texts) == demo.translate(texts)
    bare = decoding.load(theirs, device="cpu")
    with pytest.raises(ValueError, match=r"no tokenizer: pass decoding.load\(model, tokenizer="):
        bare.translate(texts)
    with pytest.raises(TypeError, match="a tokenizer of transformers or a directory.*got int"):
        decoding.load(theirs, tokenizer=3)
    with pytest.raises(FileNotFoundError, match="tokenizer='nowhere' is no directory"):
        decoding.load(theirs, tokenizer="nowhere")


def test_closed() -> None:
    with decoding.load("demo", device="cpu") as model:
        assert model.translate(["Ja."])
    calls: list[Callable[[], Any]] = [
        lambda: model.generate([[3]]),
        lambda: model.translate(["Ja."]),
        lambda: model.memory_plan(),
        lambda: model.threads,
    ]
    for call in calls:
        with pytest.raises(ValueError, match="the model is closed: load it again"):
            call()
    model.close()


def test_copies_load_the_same_path_with_the_same_arguments(demo: decoding.Model) -> None:
    first = decoding.load("demo", device="cpu", dtype="int8", threads=1)
    for model in (pickle.loads(pickle.dumps(first)), copy.deepcopy(first)):
        assert (model.dtype, model.threads, model.directory) == (torch.int8, 1, first.directory)
        assert model.translate(["Guten Morgen!"]) == first.translate(["Guten Morgen!"])
    assert len(pickle.dumps(first)) < 1000
    first.generation_config["num_beams"] = 7
    assert pickle.loads(pickle.dumps(first)).generation_config == first.generation_config
    plan = first.memory_plan()
    assert pickle.loads(pickle.dumps(plan)).table() == plan.table()
    with pytest.raises(TypeError, match="loaded from memory cannot be copied or pickled"):
        pickle.dumps(ours("gpt2"))


def translated(model: decoding.Model) -> list[str]:
    return model.translate(["Guten Morgen!"])


def test_a_spawned_process_gets_the_model() -> None:
    model = decoding.load("demo", device="cpu", threads=1)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(translated, (model,)) == ["Good morning."]


@pytest.mark.slow
def test_ray() -> None:
    """A task, an actor, the object store and a closure each have the model."""
    model = decoding.load("demo", device="cpu", threads=1)
    model.generation_config = {**model.generation_config, "num_beams": 2}
    with local_ray(cpus=2) as ray:
        text, expected = "Guten Morgen!", (2, "Good morning.")

        def call(worker: decoding.Model | None) -> tuple[int, str]:
            own = model if worker is None else worker
            return own.generation_config.num_beams, own.translate(text)

        class Actor:
            def __init__(self, own: decoding.Model) -> None:
                self.own = own

            def call(self) -> tuple[int, str]:
                return call(self.own)

        task, actor = ray.remote(call), ray.remote(Actor).remote(model)
        calls = [task.remote(each) for each in (model, ray.put(model), None)]
        assert ray.get([*calls, actor.call.remote()]) == [expected] * 4
        answers = ray.remote(lambda: (model.score(text, "Hi"), model.memory_plan()))
        scores, plan = ray.get(answers.remote())
        assert scores.sums.equal(model.score(text, "Hi").sums)
        assert plan.table() == model.memory_plan().table()


def test_what_scripts_for_transformers_ask(demo: decoding.Model) -> None:
    assert demo.eval() is demo and not demo.training
    assert demo.to("cpu") is demo and demo.to(torch.device("cpu"), torch.float32) is demo
    with pytest.raises(ValueError, match=r'load it with decoding.load\(..., device="cuda"\)'):
        demo.to("cuda")
    with pytest.raises(ValueError, match=r'load it with decoding.load\(..., dtype="float16"\)'):
        demo.to(torch.float16)
    assert demo.can_generate()
    assert demo.config.vocab_size == demo.config["vocab_size"] == demo.spec.decoder.vocab
    assert demo.generation_config.num_beams == 4 and demo.generation_config.top_p is None
    assert demo.config.to_dict() == dict(demo.config)
    with pytest.raises(AttributeError, match="has no 'no_such'"):
        _ = demo.config.no_such
    assert (demo.device, demo.dtype) == (torch.device("cpu"), torch.float32)


@pytest.mark.parametrize("name", NAMES)
def test_number_of_parameters(name: str) -> None:
    assert ours(name).num_parameters() == reference(name).num_parameters()


def test_the_models_own_options_can_be_changed(demo: decoding.Model) -> None:
    model = copy.copy(demo)
    ids = [demo.tokenizer.encode("Guten Morgen!")]
    model.generation_config.max_length = 3
    assert model.generate(ids).shape == (1, 3)
    model.generation_config = transformers.GenerationConfig(
        max_length=4, eos_token_id=0, decoder_start_token_id=demo.config.decoder_start_token_id
    )
    assert model.generate(ids).shape == (1, 4)


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DECODING_DTYPE", "int8")
    monkeypatch.setenv("DECODING_DEVICE", "cpu")
    monkeypatch.setenv("DECODING_THREADS", "1")
    model = decoding.load("demo")
    assert (model.dtype, model.device.type, model.threads) == (torch.int8, "cpu", 1)
    model = decoding.load("demo", dtype="float32", threads=2)
    assert (model.dtype, model.threads) == (torch.float32, 2)
    isas = decoding._C.isas()
    monkeypatch.setenv("DECODING_ISA", isas[-1])
    assert decoding.load("demo").isa == isas[-1]
    monkeypatch.setenv("DECODING_ISA", "mmx")
    with pytest.raises(ValueError, match="DECODING_ISA must be one of .* got 'mmx'"):
        decoding.load("demo")
    monkeypatch.delenv("DECODING_ISA")
    for value in ("0", "many"):
        monkeypatch.setenv("DECODING_THREADS", value)
        with pytest.raises(ValueError, match=f"DECODING_THREADS must be .* got '{value}'"):
            decoding.load("demo")
    monkeypatch.setenv("DECODING_LOG_LEVEL", "loud")
    with pytest.raises(ValueError, match="DECODING_LOG_LEVEL must be one of DEBUG, INFO"):
        decoding.load("demo")


def test_loading_is_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger = logging.getLogger("decoding")
    monkeypatch.setattr(logger, "handlers", [])
    with caplog.at_level(logging.INFO, "decoding"):
        decoding.load("demo", device="cpu", dtype="float32", threads=1)
    [record] = caplog.records
    assert record.getMessage().startswith(
        "loaded Model(marian, 8.17 M weights, float32, cpu, 1 thr"
    )
    monkeypatch.setenv("DECODING_LOG_LEVEL", "info")
    decoding.load("demo", device="cpu")
    assert len(logger.handlers) == 1
    logger.setLevel(logging.NOTSET)
