"""Plans an engine's memory: how long requests may be, and how many pages they share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from decoding import _C
from decoding.common.arrays import Array
from decoding.common.device import Device
from decoding.engine.allocation import empty
from decoding.engine.limits import EngineLimits, next_bucket
from decoding.engine.memory import (
    PAGE,
    MemoryPlan,
    OutOfMemoryError,
    available_memory,
    available_text,
    readable,
)
from decoding.engine.request import EngineRequest
from decoding.generation.call import Call
from decoding.models.spec import ModelSpec
from decoding.models.weights.dtypes import Stored

READ = {"cpu": 128, "cuda": 1024}  # tokens that are read at once, at most, or one source
ROWS = {"cpu": 64, "cuda": 1024}  # that step at once, where nobody says and memory is not short
FEWEST = {"cpu": 64, "cuda": 256}  # before requests become shorter instead
SHARE = {"cpu": 0.25, "cuda": 0.8}  # of the memory that is available, at most, where nobody says
UNKNOWN = 4 << 30  # bytes that are available, where the system does not say
USUAL = {"cpu": 256, "cuda": 1024}  # tokens for which each row has pages then, if they fit
SENTENCE = 64  # tokens for which an engine must have pages
TABLES = 0.25  # of the memory, at most, is for what is not pages
MANY = 1024  # pages, whose bytes are measured together: a plan rounds

BEAMS = 64  # rows of a request, at most: this and what follows costs little
EOS = 8  # ids that end a row
WORDS = 1 << 14  # of a request's lists
CLASSES = 8  # of rows for which tokens are chosen in one launch

# Of the engine that a model keeps for its own calls.
SOURCE = 128  # tokens, at least: to bind again for a longer line costs more than such lists
READ_AT_ONCE = {"cpu": 1024, "cuda": 4096}  # tokens: calls end as a whole
CALLS = 2  # classes: of calls that several threads make
AHEAD, LEAST_AHEAD = 4, 4  # csrc/engine/scheduler/admission.cc


def engine_limits(
    engine: _C.Engine, spec: ModelSpec, device: Device, memory: int | None, rows: int | None
) -> EngineLimits:
    """The limits of an engine that takes `memory` bytes at most.

    memory: None: on a GPU most of what is free, on a CPU enough for texts of a usual length. rows:
    that step at once; None: ROWS, or half of them and so on down to FEWEST, until what is not pages
    leaves room for these. Requests may be as long as the model allows, or half as long, a quarter
    and so on, until it does.

    Raises decoding.Error where not even one sentence fits.
    """
    available = available_memory(device)
    most = memory or int((available or UNKNOWN) * SHARE[device.type])

    limits = longest_limits(spec, device, rows or ROWS[device.type])
    fewest = rows or FEWEST[device.type]
    while size(engine, limits) > most * TABLES and limits.requests > fewest:
        limits = longest_limits(spec, device, limits.requests // 2)
    rows = limits.requests
    while size(engine, limits) > most * TABLES and halved(limits).target >= SENTENCE:
        limits = halved(limits)
    page, tables = page_and_tables(engine, limits)
    one = rows_with_pages(spec, 1)
    room, least = (most - tables) // page, pages_of(limits, SENTENCE, one)
    if room < least:
        needed = tables + least * page
        raise OutOfMemoryError(
            f"an engine of {rows} rows needs {needed} bytes ({readable(needed)}) on {device} to "
            f"write {SENTENCE} tokens for one sentence of {SENTENCE}, and may take {most} "
            f"({readable(most)}); {available_text(available)}: raise memory, or lower max_requests"
        )
    if memory is None:
        longest = pages_of(limits, limits.target, rows_with_pages(spec, limits.beams))
        room = min(room, max(longest, rows * pages_of(limits, USUAL[device.type], one)))
    return replace(limits, pages=room)


def planned(engine: _C.Engine, limits: EngineLimits) -> MemoryPlan:
    """The plan of an engine's block."""
    buffers, size = engine.plan(compiled(limits))
    return MemoryPlan(limits, tuple(buffers), size)


def call_limits(call: Call, rows: int) -> EngineLimits:
    """Limits for a call, rounded up, with pages for as many sentences such as its longest as
    there are in `rows` that step at once, and for those that are read ahead."""
    spec = call.session.spec
    requests = [sub.request for sub in call.sub_batches]

    def most(name: str, least: int = 0, positions: int = 1 << 30) -> int:
        found = max(getattr(request.limits, name) for request in requests)
        return min(next_bucket(max(found, least)), positions)

    beams, source = most("beams"), 0
    if spec.encoder is not None:
        source = most("source", SOURCE, spec.encoder.positions)
    together = (rows + max(LEAST_AHEAD, rows // AHEAD)) // max(beams, most("finished"))
    each = np.concatenate([pages_of_each(spec, request) for request in requests])
    pages = -np.sort(-each)[:together]
    return EngineLimits(
        requests=rows,
        beams=beams,
        source=source,
        prompt=most("prompt", positions=spec.decoder.positions),
        target=most("target", SENTENCE, spec.decoder.positions),
        pages=next_bucket(int(pages.mean() * together)),
        tokens=max(source, READ_AT_ONCE[call.session.device.type]),
        candidates=most("candidates"),
        words=next_bucket(max(request.options.most_words for request in requests)),
        classes=CALLS,
    )


def pages_of_each(spec: ModelSpec, request: EngineRequest) -> Array:
    """int64 [B], pages of each sentence."""
    prompts, target = np.diff(request.prompt.offsets), np.array(request.options.max_new)
    shared = prompts - 1
    if request.source is not None:
        shared, target = np.diff(request.source.offsets), target + prompts - 1
    rows = rows_with_pages(spec, request.rows_per_sentence)
    found: Array = -(-shared // PAGE) + -(-rows * target // PAGE)
    return found.astype(np.int64)


def rows_with_pages(spec: ModelSpec, rows: int) -> int:
    """How many of a request's rows have pages of their own: none whose decoder is made of
    convolutions, which keep their inputs outside the pages."""
    return rows if spec.decoder.convolution is None else 0


def with_pages(engine: _C.Engine, limits: EngineLimits, most: int) -> EngineLimits | None:
    """The limits with as many of their pages as `most` bytes have room for; None: not half."""
    page, tables = page_and_tables(engine, limits)
    room = min(limits.pages, (most - tables) // page)
    return replace(limits, pages=room) if 2 * room >= limits.pages else None


def size(engine: _C.Engine, limits: EngineLimits) -> int:
    """Bytes of the plan."""
    return engine.plan(compiled(limits))[1]


def page_and_tables(engine: _C.Engine, limits: EngineLimits) -> tuple[int, int]:
    """Bytes of a page, and of all that is no page."""
    many = size(engine, replace(limits, pages=1 + MANY))
    one = size(engine, replace(limits, pages=1))
    page = -(-(many - one) // MANY)
    return page, one - page


def longest_limits(spec: ModelSpec, device: Device, rows: int) -> EngineLimits:
    """For requests as long as the model allows, with one page."""
    beams = min(rows, BEAMS)
    source = 0 if spec.encoder is None else spec.encoder.positions
    return EngineLimits(
        requests=rows,
        beams=beams,
        source=source,
        prompt=spec.decoder.positions,
        target=spec.decoder.positions,
        pages=1,
        tokens=max(source, READ[device.type]),
        candidates=(1 + EOS) * beams,
        words=WORDS,
        classes=CLASSES,
    )


def compiled(limits: EngineLimits) -> _C.EngineLimits:
    return _C.EngineLimits(**vars(limits))


def halved(limits: EngineLimits) -> EngineLimits:
    """For requests half as long."""
    lengths = {name: (getattr(limits, name) + 1) // 2 for name in ("source", "prompt", "target")}
    return replace(limits, **lengths)


def pages_of(limits: EngineLimits, tokens: int, rows: int) -> int:
    """Pages of a request with so many tokens in its source, or else in its prompt, and in each of
    its rows with pages, if it may have so many."""
    prompt = min(limits.prompt, 1 if limits.source else tokens)
    lists = (min(limits.source, tokens), prompt, rows * min(limits.target, tokens))
    return sum(-(-cells // PAGE) for cells in lists)


def allocated(size: int, device: Device) -> Stored:
    """The block of a plan, uint8 [size]. Raises decoding.Error where there is no memory for it."""
    available = available_memory(device)
    try:
        return empty(size, device)
    except MemoryError as error:
        raise OutOfMemoryError(
            f"the engine needs {size} bytes ({readable(size)}) on {device}; "
            f"{available_text(available)}: lower memory"
        ) from error
