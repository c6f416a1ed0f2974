"""`gapless up`: run a broker in the foreground until it is told to stop."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

EPILOG = """\
examples:
  gapless up                                  a broker on 127.0.0.1:9092, data in ./gapless-data
  gapless up --port 0 --ready-file addr.txt   any free port; its address is in addr.txt once it serves
  gapless up --config broker.properties       Kafka's names: num.partitions=4, log.retention.hours=24 ...
  gapless up --host 0.0.0.0 --advertise db1   reachable from other machines under the name db1

stop it with Ctrl-C or SIGTERM. Kafka clients of any language connect to the address that is printed.
"""


def main(argv: list[str]) -> int:
    """Parse, run, and return the exit code."""
    arguments = _parse(argv)
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
    )
    from gapless.broker.server import Options, run
    from gapless.broker.settings_file import read_settings

    settings = {} if arguments.config is None else read_settings(arguments.config)
    settings.setdefault("node.id", "1")
    options = Options(
        data_dir=arguments.data,
        node_id=int(settings["node.id"]),
        host=arguments.host,
        port=arguments.port,
        advertise=arguments.advertise,
        ready_file=arguments.ready_file,
        metrics_port=arguments.metrics_port,
        settings=settings,
    )
    run(options, announce=lambda address: print(f"ready: {address}", flush=True))  # noqa: T201
    return 0


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port number (0 to 65535; 0 picks a free one)")
    return int(text)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="gapless up",
        description="Run a broker in the foreground.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--port", type=_port, default=9092, metavar="PORT", help="port to listen on (0: any free one)"
    )
    parser.add_argument("--host", default="127.0.0.1", metavar="HOST", help="address to listen on")
    parser.add_argument(
        "--advertise", metavar="HOST", help="the name that clients connect to, if it is not --host"
    )
    parser.add_argument(
        "--data", type=Path, default=Path("gapless-data"), metavar="DIR", help="folder for logs and metadata"
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings, as in Kafka's server.properties"
    )
    parser.add_argument(
        "--ready-file", type=Path, metavar="FILE", help="gets the bootstrap address when clients can connect"
    )
    parser.add_argument(
        "--metrics-port", type=_port, metavar="PORT", help="serve Prometheus metrics on this port"
    )
    return parser.parse_args(argv)
