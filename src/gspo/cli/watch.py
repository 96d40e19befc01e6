"""`gspo watch`: the report of a run in the browser, while it goes on."""

from __future__ import annotations

import argparse
import logging
from contextlib import suppress

from gspo.cli.arguments import Command, path, port

logger = logging.getLogger(__name__)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=path, metavar="RUN_DIR", help="run folder")
    parser.add_argument("--port", type=port, default=0, help="port on this machine (default: a free one)")


def _run(arguments: argparse.Namespace, fields: dict[str, str]) -> int:
    from gspo.report.live import LivePage

    try:
        server = LivePage(arguments.run, arguments.port)
    except OSError as error:
        what = f"--port {arguments.port}: {error.strerror}"
        raise ValueError(f"{what}; give another, or leave it out to get a free one") from None
    with server, suppress(KeyboardInterrupt):
        print(server.url, flush=True)
        logger.info("open this address in a browser of this machine; Ctrl-C ends")
        server.serve_forever()
    return 0


WATCH = Command(
    "watch", "show the report of a run in the browser while it goes on", _add_arguments, _run, takes_fields=False
)
