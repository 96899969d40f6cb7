"""All that is written to a connection in one turn of the loop is written at once."""

from __future__ import annotations

import asyncio
from typing import Any

from decoding.server.writing import HEAD, MOMENT, Gathered


class Written:
    """A transport. emitted: what was written, and None for its end."""

    def __init__(self) -> None:
        self.emitted = list[bytes | None]()

    def write(self, data: bytes) -> None:
        assert not self.is_closing()
        self.emitted.append(data)

    def close(self) -> None:
        self.emitted.append(None)

    def is_closing(self) -> bool:
        return None in self.emitted

    def get_extra_info(self, name: str) -> str:
        return name


def test_one_write_for_a_head_and_its_body() -> None:
    async def main() -> list[bytes | None]:
        written: Any = Written()
        transport = Gathered(written, asyncio.get_running_loop())
        for data in (HEAD, b"body", HEAD, b"the next"):
            transport.write(data)
        return list(written.emitted)

    assert asyncio.run(main()) == [HEAD + b"body", HEAD + b"the next"]


def test_one_write_for_what_a_turn_of_the_loop_has_written() -> None:
    async def main() -> list[bytes | None]:
        written: Any = Written()
        transport = Gathered(written, asyncio.get_running_loop())
        transport.write(b"one ")
        transport.write(b"two")
        assert written.emitted == []
        await asyncio.sleep(0)
        transport.write(b"the next")
        await asyncio.sleep(0)
        return list(written.emitted)

    assert asyncio.run(main()) == [b"one two", b"the next"]


def test_a_head_without_a_body_is_written() -> None:
    async def main() -> list[bytes | None]:
        written: Any = Written()
        transport = Gathered(written, asyncio.get_running_loop())
        transport.write(HEAD)
        await asyncio.sleep(0)
        assert written.emitted == []
        await asyncio.sleep(10 * MOMENT)
        return list(written.emitted)

    assert asyncio.run(main()) == [HEAD]


def test_what_was_written_comes_before_the_end() -> None:
    async def main() -> list[bytes | None]:
        written: Any = Written()
        transport = Gathered(written, asyncio.get_running_loop())
        assert transport.get_extra_info("peername") == "peername"
        transport.write(b"last")
        transport.close()
        await asyncio.sleep(0)
        return list(written.emitted)

    assert asyncio.run(main()) == [b"last", None]


def test_nothing_is_written_to_a_connection_that_is_lost() -> None:
    async def main() -> list[bytes | None]:
        written: Any = Written()
        transport = Gathered(written, asyncio.get_running_loop())
        transport.write(b"too late")
        written.close()  # by the system, meanwhile
        await asyncio.sleep(0)
        return list(written.emitted)

    assert asyncio.run(main()) == [None]
