"""Converted models: what is written, what is mapped, and what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import decoding
from decoding.cli.main import main
from decoding.engine import devices
from decoding.models.weights.converted import BLOCK, INDEX
from tests.support.demo import DEMO
from tests.support.random_models import reference

DTYPES = ["float32", "bfloat16", "int8"]
TEXTS = ["Das ist ein Haus.", "Ich gehe jetzt mit meiner Mutter ins Kino."]
LINUX = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs /proc")


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model in int8; tests leave it as it is."""
    directory = tmp_path_factory.mktemp("models") / "new" / "demo"
    decoding.load(DEMO, "cpu", "int8", threads=1).save(directory)
    return directory


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["marian", "marian-two-tables", "gpt2-tied"])
def test_a_model_that_was_in_memory_comes_back(tmp_path: Path, name: str, dtype: str) -> None:
    model = decoding.load(reference(name), "cpu", dtype, threads=1)
    model.save(tmp_path)
    again = decoding.load(tmp_path, threads=1)
    assert again.dtype == model.dtype and again.spec == model.spec
    assert again.generation_config == model.generation_config
    options: dict[str, Any] = {"num_beams": 3, "max_new_tokens": 12, "output_scores": True}
    options["return_dict_in_generate"] = True
    found, expected = (m.generate([[5, 6, 9], [7, 8]], **options) for m in (again, model))
    assert torch.equal(found.sequences, expected.sequences)
    assert torch.equal(found.sequences_scores, expected.sequences_scores)


def test_a_directory_comes_with_its_text(converted: Path, tmp_path: Path) -> None:
    model = decoding.load(DEMO, "cpu", "int8", threads=1)
    again = decoding.load(converted, threads=1)
    assert again.translate(TEXTS) == model.translate(TEXTS)
    assert (again.dtype, again.config) == (torch.int8, model.config)
    again.save(tmp_path)  # and once more
    assert (tmp_path / BLOCK).read_bytes() == (converted / BLOCK).read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {path.name for path in converted.iterdir()}


PROGRAM = """
import sys
import decoding
from decoding.engine import devices

model = decoding.load(sys.argv[1], threads=1)
model.generate([[5, 6, 0]], max_new_tokens=4)
area, found = False, {}
for line in open("/proc/self/smaps"):
    if "-" in line.split()[0]:
        area = line.endswith("decoding.bin\\n")
    elif area:
        found[line.split(":")[0]] = int(line.split()[1]) if line.split()[1].isdigit() else 0
shared = found["Shared_Clean"] + found["Shared_Dirty"]  # dirty: not yet written to the disk
print(found["Anonymous"] + found["Private_Dirty"], shared, flush=True)
input()
"""


@LINUX
def test_processes_share_the_pages(converted: Path) -> None:
    """All of the block is in memory, none of it is a process's own: kB of /proc/self/smaps."""
    size = (converted / BLOCK).stat().st_size // 1024
    command = [sys.executable, "-c", PROGRAM, str(converted)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as first:  # type: ignore[call-overload]
        assert first.stdout.readline()
        with subprocess.Popen(command, **pipes) as second:  # type: ignore[call-overload]
            own, shared = map(int, second.stdout.readline().split())
            second.communicate("\n")
        first.communicate("\n")
    assert own == 0 and shared >= size


def test_a_model_in_use_outlives_its_replacement(converted: Path, tmp_path: Path) -> None:
    directory = tmp_path / "model"
    shutil.copytree(converted, directory)
    model = decoding.load(directory, threads=1)
    expected = model.translate(TEXTS)
    decoding.load(DEMO, "cpu", "float32", threads=1).save(directory)
    assert model.translate(TEXTS) == expected
    assert decoding.load(directory, threads=1).dtype == torch.float32
    assert not [
        path for path in directory.iterdir() if path.suffix not in (".json", ".bin", ".spm")
    ]


def changed_index(directory: Path, **values: Any) -> None:
    index = json.loads((directory / INDEX).read_text())
    (directory / INDEX).write_text(json.dumps(index | values))


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda d: changed_index(d, layout=99), "its layout is 99, this version reads 2"),
        (lambda d: changed_index(d, tensors={"x": {}}), "dtype must be one of"),
        (lambda d: changed_index(d, spec={}), "the fields of EncoderSpec are not"),
        (lambda d: (d / INDEX).write_text("{"), "decoding.json is not valid JSON"),
        (lambda d: (d / BLOCK).unlink(), "decoding.bin is missing"),
        (lambda d: (d / BLOCK).write_bytes((d / BLOCK).read_bytes()[:-256]), "bytes, not"),
        (lambda d: (d / BLOCK).write_bytes(b""), "empty"),
        (lambda d: flip_a_bit(d / BLOCK), "checksum"),
    ],
)
def test_what_cannot_be_read_says_what_to_do(
    converted: Path, tmp_path: Path, damage: Any, words: str
) -> None:
    directory = tmp_path / "model"
    shutil.copytree(converted, directory)
    damage(directory)
    with pytest.raises(ValueError, match=f"{words}.*convert the checkpoint again"):
        decoding.load(directory)


def test_what_a_converted_model_is_not_for(converted: Path) -> None:
    with pytest.raises(
        ValueError, match='converted to int8: pass dtype="auto", or convert .* to f'
    ):
        decoding.load(converted, dtype="float32")
    with pytest.raises(ValueError, match='for the CPU: load the checkpoint on cuda:0, .*"cpu"'):
        devices.choose_packed("cuda:0", "auto", "bfloat16")


def test_a_checkpoint_is_not_hidden(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="holds a checkpoint: name another directory"):
        decoding.load(reference("gpt2"), "cpu", threads=1).save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.gpu
def test_a_model_on_a_gpu_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(NotImplementedError, match='only a model on the CPU .*"cpu"'):
        decoding.load(reference("gpt2"), "cuda").save(tmp_path)


def test_the_program_converts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = str(tmp_path / "int8")
    place = ["convert", "--model", str(DEMO), "--output", output, "--dtype"]
    assert main([*place, "int8"]) == 0
    assert capsys.readouterr().err.startswith(f"{output}: 12.8 MB of weights in int8")
    source, target = tmp_path / "de", tmp_path / "en"
    source.write_text("\n".join(TEXTS) + "\n")
    files = ["--input", str(source), "--output", str(target)]
    assert main(["translate", "--model", output, "--threads", "1", *files]) == 0
    assert len(target.read_text().splitlines()) == len(TEXTS)
    assert main([*place, "float16"]) == 2
    assert 'dtype="float16" is not supported on cpu' in capsys.readouterr().err
