r"""Goes on with texts, or answers in a chat: prompts from arguments, files or standard input.

A line is a prompt, in which \n is a newline and \\ a backslash; the answer's line is written in the
same way. --raw and a single --prompt know no such signs, and JSON lines need none.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing

from decoding.cli.arguments import add_batch_arguments, add_model_arguments, load_model
from decoding.cli.corpus.arguments import add_job_arguments
from decoding.cli.ranks.arguments import add_tensor_parallel_argument
from decoding.cli.reading import Input, add_reading_arguments, open_input, read_template
from decoding.cli.records import Record, kept
from decoding.cli.report import Report
from decoding.cli.results import Layout, add_result_arguments, write_results
from decoding.cli.search import add_search_arguments, search_options
from decoding.cli.writing import add_writing_arguments, opened
from decoding.common.phases import Phases
from decoding.common.signs import read_back

JOB_OPTIONS = ("unique", "batch_tokens", "chat", "system", "raw")  # of the same name in a task


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    add_tensor_parallel_argument(parser)
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
    add_job_arguments(parser)
    add_search_arguments(parser)


def run_job(args: argparse.Namespace) -> int:
    from decoding.cli.corpus.running import kind_of, run_job

    check(args)
    options = {
        **search_options(args),
        "own_options": kind_of(args) == "json",
        "n_best": args.n_best if args.scores or args.n_best > 1 else None,
        "chat_template": args.chat_template and read_template(args.chat_template),
        **{name: getattr(args, name) for name in JOB_OPTIONS},
    }
    return run_job(args, "generate", options)


def run(args: argparse.Namespace) -> None:
    from decoding.cli.generating import answers, stream

    check(args)
    key = "messages" if args.chat else "prompt"
    records = open_input(args, key, (str, list) if args.chat else (str,))
    model = load_model(args)
    if model.spec.encoder is not None:
        raise ValueError("this model has an encoder and rewrites texts: use `decoding translate`")
    given = [given_prompts(args.prompt, key)] if args.prompt else unescaped(records, args)
    raw = args.raw or (args.prompt is not None and len(args.prompt) == 1)
    layout = Layout.of(args, "completion", "raw" if raw else "signs")
    phases, ready = Phases(), (lambda: True) if args.prompt else records.ready
    total = records.total() if args.progress and not args.prompt else None
    # Opened last: what was wrong so far must not cost an older output.
    with opened(args.output, [] if args.prompt else records.names) as sink:
        with Report(model, args, phases, total) as report:
            if args.stream:
                stream(model, given, args, sink, layout, report)
            else:
                pending: deque[Record] = deque()
                with closing(answers(model, kept(given, pending), args, ready, phases)) as found:
                    write_results(found, pending, sink, layout, report)
        report.say()


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


def given_prompts(prompts: Iterable[str], key: str) -> list[Record]:
    return [
        Record(f"--prompt {number}", text, [text], {key: text})
        for number, text in enumerate(prompts, 1)
    ]


def unescaped(lists: Input, args: argparse.Namespace) -> Iterator[list[Record]]:
    """The records, with what the signs of plain lines and columns stand for."""
    as_given = args.raw or args.input_format == "json"
    key = str(int(lists.field)) if args.input_format == "tsv" else lists.key
    for records in lists:
        yield records if as_given else [without_signs(record, key) for record in records]


def without_signs(record: Record, key: str) -> Record:
    """key: of the text among the fields."""
    text = read_back(record.text)
    return record._replace(text=text, fields={**record.fields, key: text})
