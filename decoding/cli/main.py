"""The program: parses arguments, runs a command, reports errors.

Exit codes: 0, 2 for mistakes of the user (one line on standard error says which), 130 after Ctrl-C
and 141 where nobody reads the output any more, as a shell has it for SIGINT and SIGPIPE.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import decoding
from decoding.cli import compare, convert, plan, score, shortlist, translate


class Parser(argparse.ArgumentParser):
    """Reports wrong arguments in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the program with `argv`, by default the process's own; returns its exit code."""
    parser = Parser(prog="decoding", description=decoding.__doc__)
    parser.add_argument("--version", action="version", version=decoding.__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    named = {
        "translate": translate,
        "score": score,
        "convert": convert,
        "shortlist": shortlist,
        "plan": plan,
        "compare": compare,
    }
    for name, command in named.items():
        title = (command.__doc__ or "").partition("\n")[0]  # python -OO has none
        arguments = commands.add_parser(name, help=title, description=title)
        command.add_arguments(arguments)
        arguments.set_defaults(run=command.run)
    args = parser.parse_args(argv)
    try:
        args.run(args)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # What is left in the buffer has nowhere to go, also not when Python flushes it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, OSError, NotImplementedError, decoding.Error) as error:
        print(f"decoding: error: {described(error)}", file=sys.stderr)
        return 2
    return 0


def described(error: Exception) -> str:
    """An error's message in one line."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())
