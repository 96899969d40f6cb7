"""The program `decoding`; `python -m decoding` is the same.

Ctrl-C ends it at once and without a word, as it ends programs in C: while modules are imported,
which may swallow a KeyboardInterrupt, and behind the last line of output. Only what runs in between
is told of it (decoding/cli/main.py).
"""

import signal
import sys


def main() -> int:
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is to be ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from decoding.cli.main import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
