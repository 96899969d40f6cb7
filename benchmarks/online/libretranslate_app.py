"""LibreTranslate's own server, as a program of the environment that it is installed in.

    PYTHON libretranslate_app.py HOME DEVICE DTYPE THREADS PORT

HOME has its packages, in argos-translate/packages. Each line is a sentence: the model that its own
splitter needs would have to be downloaded, and would take time of its own.
"""

from __future__ import annotations

import logging
import os
import sys
from functools import partial

CONNECTIONS = 10_000


class Whole:
    """In place of the splitter."""

    def __init__(self, package: object) -> None:
        pass

    def split_sentences(self, text: str) -> list[str]:
        return [text]


def main() -> None:
    home, device, dtype, threads, port = sys.argv[1:]
    os.environ |= dict.fromkeys(("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"), home)
    os.environ |= {"ARGOS_DEVICE_TYPE": device, "ARGOS_COMPUTE_TYPE": dtype}
    # A request is a sentence of its own: threads that share it serve fewer.
    os.environ |= {"ARGOS_INTER_THREADS": threads, "ARGOS_INTRA_THREADS": "1"}

    import argostranslate.translate
    import waitress
    from libretranslate.main import main

    logging.disable(logging.INFO)  # ten lines of each request
    # By itself it serves 100 connections, which clients keep while others wait for one.
    waitress.serve = partial(waitress.serve, connection_limit=CONNECTIONS)
    argostranslate.translate.MiniSBDSentencizer = Whole
    sys.argv[1:] = ["--host", "127.0.0.1", "--port", port, "--disable-files-translation"]
    main()


if __name__ == "__main__":
    main()
