"""The library under options of the interpreter: nothing depends on asserts, nothing warns."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.demo import DEMO

PROGRAM = f"""
import decoding, decoding.nn, decoding.reference
from decoding.cli.main import main
from decoding.text.translate import Translator
model = decoding.load({str(DEMO)!r}, device="cpu", threads=1)
[[best]] = Translator(model, num_beams=4).stream(["Guten Morgen!"])
print(best.text)
try:
    model.generate([[5, 6, 0]], num_beams=0)
except ValueError:
    print("refused")
main(["plan", "--model", {str(DEMO)!r}, "--batch", "2", "--source", "9", "--target", "9"])
"""


def test_the_library_works_without_asserts_and_docstrings_and_warns_of_nothing() -> None:
    run = subprocess.run(
        [sys.executable, "-OO", "-W", "error", "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[:2] == ["Good morning.", "refused"] and "total" in run.stdout
    assert run.stderr == ""


LEAVING = f"""
import itertools, decoding
from decoding.text.translate import Translator
model = decoding.load({str(DEMO)!r}, device="cpu", threads=2)
translator = Translator(model, num_beams=4, n_best=1, alignments=ALIGNMENTS)
stream = translator.stream(itertools.repeat("Guten Morgen!"))
print(next(stream)[0].text)
"""


@pytest.mark.parametrize("alignments", ["False", "True"])  # an engine computes it; a session does
def test_a_program_ends_amid_a_stream(alignments: str) -> None:
    program = LEAVING.replace("ALIGNMENTS", alignments)
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "Good morning.\n", "")


CALLING = f"""
import threading, time, decoding, torch  # with torch Python takes longer to end
model = decoding.load({str(DEMO)!r}, device="cpu", threads=1)
def call():
    while True:
        model.generate([[5, 6, 0]] * 16, num_beams=4, min_new_tokens=100, max_new_tokens=100)
threading.Thread(target=call, daemon=True).start()
time.sleep(0.3)
"""


def test_the_program_ends_while_other_threads_call() -> None:
    """Python ends threads that want its lock back, and must not end the process instead."""
    run = subprocess.run(
        [sys.executable, "-c", CALLING], capture_output=True, text=True, timeout=120
    )
    assert (run.returncode, run.stderr) == (0, "")
