"""Ports for servers of tests."""

import random
import socket


def free_port() -> int:
    """Below those that connections get by themselves: such a one may be taken before it is used."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
