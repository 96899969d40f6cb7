"""RayWorker: alone, and in an actor pool of a local Ray, whose actors are killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from decoding.corpus import RayWorker, Task
from tests.corpus.local_ray import local_ray
from tests.corpus.tasks import Capitals

ROOT = Path(__file__).parent.parent.parent


def test_a_batch_comes_back_with_answers() -> None:
    worker = RayWorker(Capitals())
    batch = {"text": np.array(["a", "bad b", None, "d"], object), "id": np.arange(4)}
    found = worker(batch)
    assert list(found) == ["text", "id", "capitals", "length", "error"]
    assert found["capitals"] == ["A", None, None, "D"]
    assert found["error"][1:3] == ["'bad b' is too long", "'text' must be a string, got NoneType"]
    assert worker({"text": []})["capitals"] == []
    for name in ("length", "error"):
        with pytest.raises(ValueError, match=f"the rows have a column '{name}' already"):
            worker({**batch, name: np.arange(4)})
    with pytest.raises(ValueError, match="pass row_column"):
        RayWorker(Task("generate", "demo", options={"seed": 1}))


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """Two CPUs for actors, and some for reading. Its start takes 5 to 25 s."""
    with local_ray(cpus=4) as ray:
        pytest.importorskip("ray.data", reason="pip install 'ray[data]'")
        yield ray


@pytest.mark.slow
def test_an_actor_that_dies_loses_nothing(ray: Any, tmp_path: Path) -> None:
    """And the order is kept."""
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    mark = tmp_path / "mark"
    texts = [f"line {i}" for i in range(40)]
    texts[17] = f"die once {mark}"
    rows = ray.data.from_items([{"id": i, "text": text} for i, text in enumerate(texts)])
    pool = ray.data.ActorPoolStrategy(size=2)
    found = rows.repartition(8).map_batches(
        RayWorker, fn_constructor_args=[Capitals()], batch_size=5, compute=pool
    )
    answers = found.take_all()
    assert mark.exists()
    assert [each["id"] for each in answers] == list(range(40))
    assert [each["capitals"] for each in answers] == [text.upper() for text in texts]
    assert not any(each["error"] for each in answers)


@pytest.mark.slow
def test_the_example_goes_on_with_what_is_missing(ray: Any, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    from examples import ray_corpus

    for name, text in {"a.de": "Ja.\n\nGuten Morgen.\n", "a.nl": "Nein.\n"}.items():
        (tmp_path / name).write_text(text)
    output = tmp_path / "out"
    words = [str(tmp_path / "a.de"), str(tmp_path / "a.nl"), "--output", str(output)]
    (output / "a.nl").mkdir(parents=True)  # done before
    ray_corpus.main([*words, "--model", str(ROOT / "models/demo")])
    parts = sorted((output / "a.de").iterdir())
    rows = [row for part in parts for row in pq.read_table(part).to_pylist()]
    assert [row["translation"] for row in rows] == ["Yes.", "", "Good morning."], json.dumps(rows)
    assert not list((output / "a.nl").iterdir())


def test_the_example_refuses_inputs_of_one_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of them would be taken for done."""
    pytest.importorskip("ray.data", reason="pip install 'ray[data]'")
    from examples import ray_corpus

    with pytest.raises(SystemExit):
        ray_corpus.main(["de/news.txt", "fr/news.txt", "--output", str(tmp_path / "out")])
    assert "two inputs would become" in capsys.readouterr().err
