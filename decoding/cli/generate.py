r"""Goes on with texts, or answers in a chat: prompts from arguments, files or standard input.

A line is a prompt, in which \n is a newline and \\ a backslash; the answer's line is written in the
same way. --raw and a single --prompt know no such signs, and JSON lines need none.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import decoding
from decoding.cli.arguments import add_batch_arguments, add_model_arguments, load_model
from decoding.cli.messages import say_speed
from decoding.cli.reading import add_reading_arguments, open_input
from decoding.cli.records import Record, batches, kept
from decoding.cli.results import (
    EMPTY,
    SIGNS,
    WRITINGS,
    Layout,
    Result,
    add_result_arguments,
    as_result,
    without_repeats,
    write_results,
)
from decoding.cli.search import add_search_arguments, search_options
from decoding.cli.writing import Sink, add_writing_arguments, opened

if TYPE_CHECKING:
    from decoding.text.complete import Prompt


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add = parser.add_argument
    add("-p", "--prompt", action="append", metavar="TEXT", help="a prompt; may be given again")
    add_reading_arguments(parser, "a prompt", "prompt, with --chat messages")
    add_writing_arguments(parser)
    add_result_arguments(parser)
    add("--raw", action="store_true", help="take and write newlines and backslashes as they are")
    add("--stream", action="store_true", help="write each answer as it comes, prompt after prompt")
    chat = parser.add_argument_group("chat").add_argument
    chat(
        "--chat",
        action="store_true",
        help="a prompt is a user's message, or a JSON line's list of messages; the model's chat "
        "template is applied",
    )
    chat("--system", metavar="TEXT", help="the system's message before a user's")
    chat("--chat-template", metavar="FILE", help="a template in place of the model's own")
    add_batch_arguments(parser, "prompts' and new")
    add_search_arguments(parser)


def run(args: argparse.Namespace) -> None:
    check(args)
    key = "messages" if args.chat else "prompt"
    records = open_input(args, key, (str, list) if args.chat else (str,))
    model = load_model(args)
    if model.spec.encoder is not None:
        raise ValueError("this model has an encoder and rewrites texts: use `decoding translate`")
    given = given_prompts(args.prompt, key) if args.prompt else unescaped(records, args)
    raw = args.raw or (args.prompt is not None and len(args.prompt) == 1)
    layout = Layout.of(args, "completion", "raw" if raw else "signs")
    pending: deque[Record] = deque()
    prompts = prompts_of(model, kept(given, pending), args)
    # Opened last: what was wrong so far must not cost an older output.
    with opened(args.output, [] if args.prompt else records.names) as sink:
        start = time.perf_counter()
        if args.stream:
            lines, tokens = stream(model, prompts, sink, layout, search_options(args))
        else:
            ready = (lambda: True) if args.prompt else records.ready
            found = answers(model, prompts, args, ready)
            total = records.total() if args.progress and not args.prompt else None
            lines, tokens = write_results(found, pending, sink, layout, total, args.progress)
        if not args.quiet:
            say_speed(model, lines, tokens, time.perf_counter() - start)


def check(args: argparse.Namespace) -> None:
    """Raises ValueError for arguments that do not go together."""
    if args.prompt and (args.files or args.input):
        raise ValueError("--prompt and files do not go together: leave one out")
    for name in ("system", "chat_template"):
        if getattr(args, name) is not None and not args.chat:
            raise ValueError(f"--{name.replace('_', '-')} is for chats: add --chat")
    form = args.output_format or args.input_format
    if args.stream and (args.n_best > 1 or args.scores or form != "lines"):
        raise ValueError(
            "--stream writes one answer as it comes: leave --n-best, --scores and other formats "
            "than lines out"
        )


def given_prompts(prompts: Iterable[str], key: str) -> Iterator[Record]:
    for number, text in enumerate(prompts, 1):
        yield Record(f"--prompt {number}", text, [text], {key: text})


def unescaped(records: Iterable[Record], args: argparse.Namespace) -> Iterator[Record]:
    """The records, with what the signs of plain lines and columns stand for."""
    read = {str(sign): text for text, sign in SIGNS.items()}
    for record in records:
        if args.raw or args.input_format == "json":
            yield record
        else:
            text = re.sub(r"\\[\\tnr]", lambda sign: read[sign[0]], record.text)
            yield replace(record, text=text, fields=dict.fromkeys(record.fields, text))


def prompts_of(
    model: decoding.Model, records: Iterable[Record], args: argparse.Namespace
) -> Iterator[Prompt | None]:
    """The ids of each record; None for an empty line, which is no prompt."""
    from decoding.text.complete import read_chats, read_texts

    template: dict[str, Any] = {"continue_final_message": False}
    if args.chat_template is not None:
        template["chat_template"] = read_template(args.chat_template)
    for record in records:
        text: Any = record.text
        if text == "" and not record.where.startswith("--prompt"):
            yield None
            continue
        if args.chat:
            if isinstance(text, str):
                text = [{"role": "user", "content": text}]
                if args.system is not None:
                    text.insert(0, {"role": "system", "content": args.system})
            [prompt], _ = read_chats(model, text, template)
        else:
            [prompt] = read_texts(model, text)
        yield replace(prompt, name=record.where)


def read_template(path: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no chat template: {error.reason}, as UTF-8") from None


def answers(
    model: decoding.Model,
    prompts: Iterable[Prompt | None],
    args: argparse.Namespace,
    ready: Callable[[], bool],
) -> Iterator[list[Result]]:
    from decoding.text.ahead import started_ahead
    from decoding.text.complete import DEFAULT_NEW, Answers

    new = args.max_new_tokens or DEFAULT_NEW
    n_best = args.n_best if args.scores or args.n_best > 1 else None
    options, most = search_options(args), 1 if args.line_buffered else args.batch_tokens
    read: deque[list[Prompt | None]] = deque()  # batches with their empty lines

    def size(prompt: Prompt | None) -> int:
        return new + len(prompt.ids) if prompt else 1

    def started() -> Iterator[Answers]:
        done = 0
        for batch in batches(prompts, size, most, ready):
            rows = [done + i for i, prompt in enumerate(batch) if prompt]
            if args.seed is not None:  # one for each row makes its samples the same in any batch
                options["seed"] = [(args.seed + row) % 2**64 for row in rows]
            read.append(batch)
            done += len(batch)
            many = not args.line_buffered and sum(map(size, batch)) >= most
            asked = [prompt for prompt in batch if prompt]
            yield Answers(model, asked, n_best, options, many)

    for batch in started_ahead(started(), model.device.type, ready):
        found = iter(batch.result())
        for prompt in read.popleft():
            own = [as_result(one) for one in next(found)] if prompt else [EMPTY]
            yield without_repeats(own) if args.unique else own


def stream(
    model: decoding.Model,
    prompts: Iterable[Prompt | None],
    sink: Sink,
    layout: Layout,
    options: dict[str, Any],
) -> tuple[int, int]:
    """Writes each answer as it comes; returns how many there were, and their tokens."""
    from decoding.text.complete import new_tokens, resolved
    from decoding.text.stream_text import pieces

    given, config = resolved(model, options)
    write, seed = WRITINGS[layout.writing], options.get("seed")
    lines, tokens = 0, list[int]()
    for lines, prompt in enumerate(prompts, 1):
        if prompt:
            given["max_new_tokens"] = new_tokens(model.spec, config, [prompt])
            if seed is not None:
                given["seed"] = [(seed + lines - 1) % 2**64]
            steps = model.stream([prompt.ids], **given)
            for piece in pieces(model.tokenizer, prompt.shown, counted(steps, tokens)):
                sink.write(write(piece))
        sink.write("\n")
    return lines, sum(tokens)


def counted(steps: Iterable[list[list[int]]], tokens: list[int]) -> Iterator[list[list[int]]]:
    """The steps of one row; appends to `tokens` how many each has."""
    for step in steps:
        tokens.append(len(step[0]))
        yield step
