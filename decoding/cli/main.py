"""The program: finds the command, runs it, reports errors.

Exit codes: 0, 2 for mistakes of the user (one line on standard error says which), 3 for a job some
of whose rows have failed, 130 after Ctrl-C and 141 where nobody reads the output any more, as a
shell has it for SIGINT and SIGPIPE.

Commands import the library when they run: help, the version and mistakes in arguments come at once.
"""

from __future__ import annotations

import _weakrefset
import contextlib
import math
import os
import signal
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from importlib import import_module
from types import FrameType
from typing import NoReturn

import decoding
from decoding.cli.corpus.arguments import is_job
from decoding.cli.messages import described, warnings_in_one_line
from decoding.cli.parser import Parser, did_you_mean
from decoding.cli.ranks.arguments import become_rank, check_split, is_rank, is_split
from decoding.common import starting

SAME = 1.0  # seconds from a Ctrl-C to one that is another
LATER = 0.02  # seconds to the next look whether an exception would get through
# Files whose frames would lose an exception; the first is that of imports.
UNINTERRUPTIBLE = (
    "<frozen importlib._bootstrap>",
    weakref.__file__,
    _weakrefset.__file__,
    starting.__file__,
)
# Each is a module of decoding.cli with add_arguments() and run().
COMMANDS = {
    "translate": "translate text line by line",
    "generate": "go on with texts, or answer in a chat",
    "score": "score text: log-probabilities of lines, and the perplexity",
    "embed": "make sentence embeddings",
    "convert": "convert a checkpoint for the CPU, to a directory that loads at once",
    "shortlist": "make a shortlist from parallel text, for translate --shortlist",
    "serve": "serve models over HTTP, to clients of OpenAI, LibreTranslate and DeepL",
    "plan": "print the memory that a model needs for given sizes",
    "compare": "compare engines on the same model and text",
}
ON_GPUS = ("translate", "generate", "score", "embed", "serve")  # load a model in this process
# What other programs call them.
OTHER_COMMANDS = {
    "translator": "translate",
    "complete": "generate",
    "chat": "generate",
    "perplexity": "score",
    "encode": "embed",
    "server": "serve",
    "quantize": "convert",
    "lexicon": "shortlist",
    "help": "--help",
    "version": "--version",
    "bench": "compare",
    "benchmark": "compare",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program with `argv`, by default the process's own; returns its exit code."""
    name, *words = list(sys.argv[1:] if argv is None else argv) or [""]
    if name not in COMMANDS:
        refuse(name)
    try:
        command = import_module(f"decoding.cli.{name}")
        parser = Parser(f"decoding {name}", (command.__doc__ or "").partition("\n\n")[0])
        parser.usage = f"decoding {name} [OPTIONS] [FILE ...]"
        command.add_arguments(parser)
        args = parser.parse(words)
        job = is_job(args)
        if name in ON_GPUS:  # threads of numpy's products would only wait, beside the engine's
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        if is_split(args):
            check_split(args, job)
            if not is_rank():
                from decoding.cli.ranks.launch import launch

                with interruptible():
                    return launch([name, *words], args)
            become_rank(args)
        if not job:  # whose processes import the library, and not this one
            args.input_format = getattr(args, "input_format", None) or "lines"
            if name in ON_GPUS and not is_split(args):  # a rank has a GPU of its own
                import_module("decoding.engine.opening").open_gpu(args.device)
            import_module("decoding.loading")
        with warnings_in_one_line(quiet=getattr(args, "quiet", False)), interruptible():
            status = command.run_job(args) if job else command.run(args)
        flush()
    except SystemExit:  # of help and of mistakes; the last clause here would import the engine
        raise
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        discard_output()
        return 141
    except (ValueError, OSError, MemoryError, NotImplementedError, decoding.Error) as error:
        print(f"decoding: error: {described(error)}", file=sys.stderr)
        discard_output()
        return 2
    return status or 0


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt where it would end the process, so that what is open is ended
    in order. More of them within a second are the same one: timeout(1) sends two."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:
        yield  # whoever has called main() has said what to do, or it is to be ignored
        return
    heard, due = -math.inf, False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        before, heard = heard, time.monotonic()
        if heard - before > SAME:
            end(number, frame)

    def end(number: int, frame: FrameType | None) -> None:
        nonlocal due
        due = is_uninterruptible(frame)
        if not due:
            raise KeyboardInterrupt
        signal.setitimer(signal.ITIMER_REAL, LATER)

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGALRM, end)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if due:
        raise KeyboardInterrupt


def is_uninterruptible(frame: FrameType | None) -> bool:
    """Whether an exception would be lost, or worse: finalizers print it and go on, a module that is
    being imported may swallow it, or end the process (torch's, where C++ imports them), and nobody
    would know of a process that is being started."""
    while frame is not None and frame.f_code is not main.__code__:
        code = frame.f_code
        if code.co_filename in UNINTERRUPTIBLE or code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def flush() -> None:
    """Writes what has been printed. Raises OSError, with a name, where that is not possible."""
    if sys.stdout is None:  # closed by who started the program
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


def discard_output() -> None:
    """What is left in the buffer has nowhere to go, also not when Python flushes it at its end."""
    try:
        flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def refuse(name: str) -> NoReturn:
    """Ends the program where its first word is no command: with help, the version or an error."""
    parser = Parser("decoding", decoding.__doc__ or "")
    parser.usage = "decoding COMMAND [OPTIONS] [FILE ...]"
    parser.add_argument("--version", action="version", version=decoding.__version__)
    commands = parser.add_argument_group("commands", "`decoding COMMAND --help` has their options")
    for command, does in COMMANDS.items():
        commands.add_argument(command, nargs="?", help=does)
    if name in ("-h", "--help", "--version"):
        parser.parse([name])
    if name.startswith("-"):
        parser.error(f"the command comes before its options, not {name}")
    if not name:
        parser.error(f"say what to do: one of {', '.join(COMMANDS)}")
    known = [*COMMANDS, "--help", "--version"]
    parser.error(
        f"there is no command {name!r}{did_you_mean(OTHER_COMMANDS.get(name, name), known)}"
    )
