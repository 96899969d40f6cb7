"""Serves models over HTTP: OpenAI's, LibreTranslate's and DeepL's clients work with it.

It stops at SIGINT and SIGTERM, after the requests that run. The logs go to standard error.
"""

from __future__ import annotations

import argparse
import logging
import os
import warnings
from typing import Any

from decoding.cli.arguments import add_number_arguments, positive, size
from decoding.cli.ranks.arguments import add_tensor_parallel_argument, is_follower

KEY = "DECODING_API_KEY"
EXTRA = "pip install decoding[serve]"
LEVELS = ("debug", "info", "warning", "error")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "-m",
        "--model",
        action="append",
        required=True,
        metavar="[NAME=]DIR",
        help="a model, and the name by which clients ask for it; may be given again",
    )
    add("--host", default="127.0.0.1", help="(default: 127.0.0.1, this machine alone)")
    add("--port", type=port, default=8000, help="(default: 8000); 0: one that is free")
    add("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: auto)")
    add("--dtype", default="auto", help="as in `decoding translate` (default: by the stored type)")
    add_number_arguments(parser)
    add("--threads", type=positive, metavar="N", help="CPU threads of each model's steps")
    add("--memory", type=size, metavar="BYTES", help="of each model's engine; 4G, 500M")
    add("--max-requests", type=positive, metavar="N", help="rows of each engine that step at once")
    add("--overcommit", action="store_true", help="see docs/how-to/serve.md")
    add("--download", action="store_true", help="fetch a model of the hub that is not here yet")
    add_tensor_parallel_argument(parser)
    limits = parser.add_argument_group(
        "limits; docs/how-to/http-server.md has their defaults"
    ).add_argument
    for name, kind, help in LIMITS:
        limits(f"--{name}", type=kind, metavar="N", help=help)
    access = parser.add_argument_group("access").add_argument
    access(
        "--api-key",
        action="append",
        metavar="KEY",
        help=f"that each request must show; may be given again (default: {KEY}, or none)",
    )
    access("--cors-origin", action="append", metavar="URL", help="whose pages may ask; * for all")
    access("--ssl-certfile", type=file, metavar="FILE", help="serve HTTPS with this certificate")
    access("--ssl-keyfile", type=file, metavar="FILE", help="and this key")
    access("--no-page", action="store_true", help="show no page at /")
    add(
        "--drain",
        type=positive,
        default=30,
        metavar="SECONDS",
        help="to end what runs (default: 30)",
    )
    add(
        "--keep-alive",
        type=positive,
        default=75,
        metavar="SECONDS",
        help="that a connection may wait for its next request (default: 75)",
    )
    add("--metrics-prefix", default="decoding", metavar="NAME", help="vllm for its dashboards")
    add("--log-level", choices=LEVELS, default="info", help="warning and above: no access log")


def port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be from 0 to 65535, got {text!r}")
    return int(text)


def file(text: str) -> str:
    if not os.path.isfile(text):
        raise argparse.ArgumentTypeError(f"there is no file {text!r}")
    return text


def seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"must be seconds above 0, got {text!r}")
    return value


LIMITS = (
    ("max-queue", positive, "requests of a model that wait; others get 429"),
    ("max-queue-seconds", seconds, "of waiting; then 503"),
    ("deadline", seconds, "seconds of a request in all; then 504"),
    ("max-new-tokens", positive, "of one result"),
    ("max-beams", positive, "of one request"),
    ("max-results", positive, "n and alternatives of one request"),
    ("max-texts", positive, "in one body"),
    ("body-bytes", size, "of a body; then 413"),
)


def run(args: argparse.Namespace) -> None:
    from decoding.cli.serve.models import follow, load_models

    try:
        from decoding.server.app import create_app
        from decoding.server.heaps import limit_heaps
        from decoding.server.run import check_address
        from decoding.server.run import run as serve
        from decoding.server.settings import Settings
    except ModuleNotFoundError as error:
        raise ValueError(f"decoding serve needs {error.name}: {EXTRA}") from None
    if args.ssl_keyfile and not args.ssl_certfile:
        raise ValueError("--ssl-keyfile needs the certificate: pass --ssl-certfile FILE, too")
    set_logging(args.log_level)
    names = [name.replace("-", "_") for name, *_ in LIMITS]
    limits: dict[str, Any] = {name: getattr(args, name) for name in names}
    limits = {name: value for name, value in limits.items() if value is not None}
    key = os.environ.get(KEY)
    settings = Settings(
        api_keys=tuple(args.api_key or ([key] if key else [])),
        cors_origins=tuple(args.cors_origin or ()),
        metrics_prefix=args.metrics_prefix,
        page=not args.no_page,
        **limits,
    )
    if not is_follower():
        try:
            check_address(args.host, args.port)  # before models take their time to load
        except OSError as error:
            said = f"--host {args.host} --port {args.port}: {error.strerror}"
            raise ValueError(said) from None
    limit_heaps()
    models = load_models(args)
    if is_follower():
        return follow(models)
    app = create_app(models, settings)
    warnings.simplefilter("ignore")  # from here on they are about clients' requests
    serve(
        app,
        drain=args.drain,
        host=args.host,
        port=args.port,
        timeout_keep_alive=args.keep_alive,
        ssl_certfile=args.ssl_certfile,
        ssl_keyfile=args.ssl_keyfile,
    )


def set_logging(level: str) -> None:
    """One line for each record, on standard error; the access log's are JSON alone."""
    logging.basicConfig(level=level.upper(), format="%(levelname)s: %(name)s: %(message)s")
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of clients that have gone
    access = logging.getLogger("decoding.server.access")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(message)s"))
    access.addHandler(handler)
    access.propagate = False
