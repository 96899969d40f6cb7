"""Whole programs that translate a file, and README's picture of them."""

from __future__ import annotations

import gzip
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

import decoding
from benchmarks import translate
from benchmarks.cases import forced
from benchmarks.cases.workloads import WORKLOADS, Workload
from benchmarks.gpu_watch import mean
from benchmarks.report import picture
from benchmarks.translate_ctranslate2 import grouped
from benchmarks.translate_transformers import batches
from decoding.text.prefixes import Line
from decoding.text.translate import Translator

ROOT = Path(__file__).parent.parent.parent


def words(svg: str) -> list[str]:
    """What a picture says: coordinates differ between versions of matplotlib."""
    return [text for part in ElementTree.fromstring(svg).itertext() if (text := part.strip())]


@pytest.mark.parametrize("theme", picture.THEMES)
def test_picture_is_what_the_rows_say(theme: str) -> None:
    groups = picture.read_groups(ROOT / "benchmarks/results")
    drawn = picture.picture(groups, theme)
    recorded = (ROOT / f"docs/translate-{theme}.svg").read_text("utf-8")
    assert words(recorded) == words(drawn), "run python -m benchmarks.report --picture"
    assert "var(" not in drawn
    said = [text for text in words(drawn) if text.endswith(" s")]
    assert len(said) == sum(len(group.seconds) for group in groups)


def test_picture_leaves_out_what_was_not_recorded(tmp_path: Path) -> None:
    name = "translate-cpu.csv"
    (tmp_path / name).write_bytes((ROOT / "benchmarks/results" / name).read_bytes())
    groups = picture.read_groups(tmp_path)
    assert {group.file for group in groups} == {name}
    assert [*groups[0].seconds] == list(picture.ENGINES)


def test_batches_hold_all_rows_in_similar_lengths() -> None:
    rows = [[0] * length for length in (3, 9, 1, 3, 2, 20, 3)]
    assert [*batches(rows, 9)] == [[5], [1], [0, 3, 6], [4, 2]]
    assert [*batches([], 9)] == []


def test_the_best_size_of_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each program and type, by a run that does not count."""
    seconds = {8: 3.0, 16: 2.0, 32: 4.0, 4: 9.0}

    def run(program: translate.Program) -> None:
        program.seconds.append(seconds[program.batch_tokens])

    monkeypatch.setattr(translate.Program, "run", run)
    sizes = [("ctranslate2", "int8", tokens) for tokens in (8, 16, 32)]
    given = [translate.Program(*one, 2, [], ROOT) for one in [("ours", "int8", 4), *sizes]]
    best = translate.fastest(given)
    assert best == [given[0], given[2]] and not best[1].seconds


def test_how_busy_a_gpu_is() -> None:
    assert mean("10\n30\n2") == pytest.approx(0.14) and math.isnan(mean("[N/A]\n"))


def test_translations_of_random_weights_have_the_lengths_of_references(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = Workload(
        layers=1, hidden=16, heads=2, feed_forward=32, vocabulary=8100, encoder_layers=1
    )
    monkeypatch.setitem(WORKLOADS, "tiny", tiny)
    forced.save_model("tiny", ROOT / "models/demo", tmp_path)
    limits = forced.limits(ROOT / "models/demo", ["A house.", "A dog is running across it."])
    model = decoding.load(tmp_path)
    lines = [Line("Das ist ein Haus.", "", limits[0]), Line("Ein Hund läuft.", "", limits[1])]
    translator = Translator(model, n_best=1, num_beams=2, suppress_tokens=[0])
    [found] = translator.groups([lines], apart=False)
    assert [best.tokens for [best] in found] == limits and limits[0] < limits[1]
    assert grouped([3, 5, 3]) == {3: [0, 2], 5: [1]}


@pytest.mark.slow
def test_programs_translate_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each in one size of batches: test_the_best_size_of_batches is about the choice of one."""
    monkeypatch.setattr(translate, "BATCH_TOKENS", {})
    sources = ["Das ist ein Haus.", "Ein Hund läuft über die Wiese.", "Guten Morgen!"]
    references = ["This is a house.", "A dog is running across the meadow.", "Good morning!"]
    for language, lines in {"de": sources, "en": references}.items():
        with gzip.open(tmp_path / f"text.{language}.gz", "wt", encoding="utf-8") as file:
            file.write("".join(line + "\n" for line in lines))
    options = ["--model", str(ROOT / "models/demo"), "--text", str(tmp_path / "text")]
    options += ["--dtype", "float32", "--repeats", "1"]
    rows = translate.measure(translate.parse(options))
    assert [row.provider for row in rows] == list(translate.MODULES)
    assert [row.equal for row in rows] == [3, 3, 3]
    assert all(row.ratio == row.p50 / rows[0].p50 for row in rows)
    assert all(0 < row.busy <= 1.1 for row in rows)
