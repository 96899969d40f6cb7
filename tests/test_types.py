"""mypy and pyright know the options of generate() and the types of its results, and find nothing
wrong in the examples."""

from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

import decoding
from decoding.generation.config import OPTIONS
from decoding.generation.option_types import (
    CallOptions,
    FunctionOptions,
    SearchOptions,
    SharedOptions,
    SubmitOptions,
    TranslateOptions,
)
from decoding.generation.unsupported import ARGUMENTS
from decoding.text.translate import Translator

ROOT = Path(__file__).parent.parent
SNIPPET = """\
from typing import Any

from typing_extensions import assert_type

import decoding
from decoding.generation.outputs import GenerateOutput
from decoding.text.hypotheses import Hypothesis
from torch import Tensor

model = decoding.load("demo", dtype="int8")
assert_type(decoding.generate(model, [[5, 0]], num_beams=4), Tensor)
assert_type(decoding.generate("demo", "a", return_dict_in_generate=True), GenerateOutput)
decoding.generate(model, [[5, 0]], generation_config={"top_k": 5}, logits_processor=[])
assert_type(model, decoding.Model)
ids = [[5, 0]]

assert_type(model.generate(ids), Tensor)
assert_type(model.generate(ids, num_beams=4, eos_token_id=2, stop_strings="x"), Tensor)
assert_type(model.generate(ids, top_k=[5, 6], temperature=None, seed=1), Tensor)
assert_type(model.generate(ids, return_dict_in_generate=True), GenerateOutput)
assert_type(model.generate(ids, return_dict_in_generate=False), Tensor)
options: decoding.GenerateOptions = {"num_beams": 4, "early_stopping": "never"}
found = model.generate(ids, **options)
assert_type(found, Tensor | GenerateOutput)
untyped: dict[str, Any] = {"num_beams": 4}
model.generate(ids, **untyped)
for new in model.stream(ids, do_sample=True, max_new_tokens=[3]):
    assert_type(new, list[list[int]])
assert_type(model.translate("a", src_lang="de", cancel=None), str)
assert_type(model.translate(["a"], num_beams=4, progress=True), list[str])
assert_type(model.translate("a", n_best=2), list[Hypothesis])
assert_type(model.translate(["a"], n_best=2, alignments=True), list[list[Hypothesis]])
assert_type(model.complete("a", max_new_tokens=5), str)
assert_type(model.complete(["a"], do_sample=True), list[str])
assert_type(model.complete(["a"], n_best=2), list[list[Hypothesis]])
assert_type(model.complete(["a"], num_return_sequences=2), Any)
assert_type(list(model.stream_text("a", tgt_lang="en")), list[str])
model.chat("a", temperature=0.5)
config = decoding.GenerationConfig(eos_token_id=2, max_new_tokens=5)
assert_type(model.config.vocab_size, Any)
with decoding.Engine(model, memory=10**9, max_requests=8) as engine:
    assert_type(engine, decoding.Engine)
    request = engine.submit([5, 0], num_beams=4, priority=1, deadline=0.5, stream=True)
    assert_type(request, decoding.Request[Tensor])
    assert_type(request.result(timeout=3), Tensor)
    assert_type(engine.submit(ids, return_dict_in_generate=True).result(), GenerateOutput)
    assert_type(engine.submit(ids, **options).result(), Tensor | GenerateOutput)
    assert_type(list(request), list[list[list[int]]])
    anything: decoding.Request[Tensor | GenerateOutput] = request
    engine.submit(ids, logits_processor=[], stopping_criteria=None, cancel=None, progress=True)
    engine.generate(ids, prefix_allowed_tokens_fn=None, shortlist=None, output_logits=True)


async def wait() -> None:
    async with decoding.Engine(model) as engine:
        assert_type(await engine.submit([5, 0]), Tensor)
        async for new in engine.submit([5, 0], stream=True):
            assert_type(new, list[list[int]])


with model as same:
    assert_type(same.eval().to("cpu"), decoding.Model)

decoding.generate(model, ids, beam_size=4)  # wrong
decoding.generate(model, ids).sequences  # wrong
model.generate(ids, num_beam=4)  # wrong
model.generate(ids, num_beams="4")  # wrong
model.generate(ids, early_stopping="always")  # wrong
model.stream(ids, stop="x")  # wrong
decoding.GenerationConfig(beam_size=4)  # wrong
decoding.GenerationConfig(eos_token_id="a")  # wrong
model.translate(["a"], beam_size=4)  # wrong
model.translate(["a"], num_return_sequences=4)  # wrong
model.complete("a", max_tokens=4)  # wrong
model.chat("a", stop="x")  # wrong
model.stream_text("a", n_best=2)  # wrong
engine.submit(ids, num_beam=4)  # wrong
engine.submit(ids, priority="high")  # wrong
engine.generate(ids, logits_processors=[])  # wrong
engine.submit(ids).result().sequences  # wrong
bad: decoding.GenerateOptions = {"n": 3}  # wrong
model.generate(ids).sequences  # wrong
"""
WRONG = [i for i, line in enumerate(SNIPPET.splitlines(), 1) if line.endswith("# wrong")]


def test_the_types_have_every_option_and_no_other() -> None:
    hints = get_type_hints(decoding.GenerateOptions)
    assert set(hints) == set(OPTIONS)
    assert not decoding.GenerateOptions.__required_keys__
    own = set(inspect.signature(Translator.__init__).parameters)
    own |= {"progress", "target_prefix", "generation_config"}
    own -= {"self", "model", "options", "n_best"}
    assert set(get_type_hints(TranslateOptions)) - set(get_type_hints(SharedOptions)) == own
    by_name = {name for name in ARGUMENTS if name in get_type_hints(CallOptions)}
    assert set(get_type_hints(CallOptions)) == set(get_type_hints(SearchOptions)) | by_name
    submit = set(inspect.signature(decoding.Engine.submit).parameters) | set(ARGUMENTS)
    submit -= {"self", "input_ids", "attention_mask", "generation_config", "options"}
    assert set(get_type_hints(SubmitOptions)) - set(get_type_hints(SearchOptions)) == submit
    processors = set(get_type_hints(FunctionOptions)) - set(get_type_hints(CallOptions))
    assert set(ARGUMENTS) - by_name == {"input_ids", "generation_config"} | processors


@pytest.fixture(scope="module")
def snippet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("types") / "snippet.py"
    path.write_text(SNIPPET)
    return path


def test_mypy(snippet: Path) -> None:
    """With the project's options, and so with what `make lint` has found and kept."""
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", str(snippet), "examples"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    errors = re.findall(r"^(.*):(\d+): error", run.stdout, re.MULTILINE)
    found = {(Path(name).name, int(line)) for name, line in errors}
    assert sorted(found) == [(snippet.name, line) for line in WRONG], run.stdout


def test_pyright(snippet: Path) -> None:
    pytest.importorskip("pyright")
    if shutil.which("node") is None:
        pytest.skip("pyright needs node")
    settings: dict[str, object] = {"extraPaths": [str(ROOT)], "pythonVersion": "3.11"}
    settings["typeCheckingMode"] = "strict"
    folders = (snippet, ROOT / "examples")  # pyright ignores absolute paths
    settings["include"] = [os.path.relpath(path, snippet.parent) for path in folders]
    # Reading the types of transformers' pipelines takes longer than all else; mypy checks this one.
    settings["exclude"] = [os.path.relpath(ROOT / "examples/fast_pipeline.py", snippet.parent)]
    settings |= {f"reportUnknown{what}": "none" for what in UNKNOWN}
    config = snippet.parent / "pyrightconfig.json"
    config.write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    run = subprocess.run(
        [*command, "--project", str(config)], cwd=ROOT, capture_output=True, text=True
    )
    if not run.stdout.startswith("{"):
        pytest.skip(f"pyright does not start: {run.stderr[-200:]}")
    said = json.loads(run.stdout)["generalDiagnostics"]
    errors = [each for each in said if each["severity"] == "error"]
    found = {(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in errors}
    expected = [(snippet.name, line) for line in WRONG]
    assert sorted(found) == expected, json.dumps(errors, indent=1)


UNKNOWN = ("MemberType", "VariableType", "ArgumentType", "ParameterType", "LambdaType")
