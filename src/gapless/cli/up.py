"""`gapless up`: run a broker, or several, in the foreground until told to stop."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import NoReturn

from gapless.errors import UsageError

EPILOG = """\
examples:
  gapless up                                  a broker on 127.0.0.1:9092, data in ./gapless-data
  gapless up --port 0 --ready-file addr.txt   any free port; its address is in addr.txt once it serves
  gapless up --config broker.properties       Kafka's names: num.partitions=4, log.retention.hours=24 ...
  gapless up --host 0.0.0.0 --advertise db1   reachable from other machines under the name db1
  gapless up --brokers 3 --restart            three brokers on 9092, 9093, 9094; a dead one is brought back
  gapless up --join gapless-data --port 9095  one more broker for the cluster whose data is there

brokers of several machines agree through ZooKeeper (pip install 'gapless[zookeeper]'), each with a folder
of its own for its logs:
  gapless up --coordination zookeeper://zk1:2181,zk2:2181/gapless --host 0.0.0.0 --advertise db1
  gapless up --join zookeeper://zk1:2181,zk2:2181/gapless --node-id 2 --host 0.0.0.0 --advertise db2
give all of them the same --config, for three brokers with default.replication.factor=3 and
min.insync.replicas=2. A broker that ZooKeeper has not heard from for 10 s ends, because others take its
place: start it again. While ZooKeeper itself is away, brokers serve on, but no new leader can be elected.

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
    coordination = _coordination(arguments)
    if arguments.join is not None and coordination is None and arguments.cluster_size is None:
        _refuse_folder_without_cluster(Path(arguments.join))
    options = Options(
        data_dir=Path(arguments.join or arguments.data) if coordination is None else arguments.data,
        coordination=coordination,
        node_id=_node_id(arguments, settings),
        host=arguments.host,
        port=arguments.port,
        advertise=arguments.advertise,
        ready_file=arguments.ready_file,
        metrics_port=arguments.metrics_port,
        settings=settings,
        cluster_size=arguments.cluster_size if arguments.join or coordination else 1,
    )
    if arguments.brokers > 1:
        from gapless.broker import supervisor

        options_of_all = supervisor.spread(options, arguments.brokers)
        supervisor.run(options_of_all, restart=arguments.restart, announce=_say_ready)
    else:
        run(options, announce=lambda address, _: _say_ready(address))
    return 0


def _say_ready(addresses: str) -> None:
    print(f"ready: {addresses}", flush=True)  # noqa: T201


def _coordination(arguments: argparse.Namespace) -> str | None:
    """Where brokers agree, if not in the data folder."""
    url: str | None = arguments.coordination
    if arguments.join is not None and "://" in arguments.join:
        if url is not None:
            raise UsageError("--join says where the cluster is: give it no --coordination")
        url = arguments.join
    elif arguments.join is not None and url is not None:
        raise UsageError("a cluster that agrees through ZooKeeper is joined with: --join zookeeper://...")
    if url is not None:
        try:
            from gapless.broker.coordination.zookeeper_session import parse_url
        except ModuleNotFoundError as missing:
            raise UsageError(
                f"{url} needs the package kazoo: run: pip install 'gapless[zookeeper]'"
            ) from missing
        parse_url(url)
    return url


def _refuse_folder_without_cluster(folder: Path) -> None:
    """A mistyped one would become a cluster of its own, and nobody would notice that its broker is alone."""
    if not (folder / "metadata.sqlite").exists():
        raise UsageError(
            f"there is no cluster in {folder}: start one with: gapless up --brokers 3 --data {folder}"
        )


def _node_id(arguments: argparse.Namespace, settings: dict[str, str]) -> int | None:
    """Which broker of its cluster it is; None for one that still has to get a number."""
    if arguments.brokers > 1:
        if arguments.join is not None or arguments.node_id is not None or "node.id" in settings:
            raise UsageError("--brokers numbers its brokers from 1: give it no --join, --node-id or node.id")
        return None
    if arguments.restart:
        raise UsageError("--restart is for --brokers: a single broker has nobody who could bring it back")
    if arguments.node_id is not None:
        if settings.get("node.id", str(arguments.node_id)) != str(arguments.node_id):
            raise UsageError(f"--node-id {arguments.node_id} contradicts node.id={settings['node.id']}")
        return int(arguments.node_id)
    if "node.id" in settings:
        return int(settings["node.id"])
    return None if arguments.join is not None else 1


def _port(text: str) -> int:
    if not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port number (0 to 65535; 0 picks a free one)")
    return int(text)


def _number(text: str) -> int:
    if not text.isdigit() or not 0 < int(text) < 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 999")
    return int(text)


def _node(text: str) -> int:
    if not text.isdigit() or int(text) > 2**31 - 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a broker's number")
    return int(text)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as the other commands do."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (try: gapless up --help)")


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = _Parser(
        prog="gapless up",
        description="Run a broker, or a cluster of brokers on this machine, in the foreground.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--port", type=_port, default=9092, metavar="PORT", help="port to listen on (0: any free one)")
    add("--host", default="127.0.0.1", metavar="HOST", help="address to listen on")
    add("--advertise", metavar="HOST[:PORT]", help="where clients connect to, if it is not --host and --port")
    add("--data", type=Path, default=Path("gapless-data"), metavar="DIR", help="folder for logs and metadata")
    add("--config", type=Path, metavar="FILE", help="settings, as in Kafka's server.properties")
    add("--ready-file", type=Path, metavar="FILE", help="gets the bootstrap address when clients can connect")
    add("--metrics-port", type=_port, metavar="PORT", help="serve Prometheus metrics on this port")
    cluster = parser.add_argument_group("several brokers").add_argument
    cluster(
        "--brokers",
        type=_number,
        default=1,
        metavar="N",
        help="run N brokers, a process each, on PORT, PORT+1, ...; topics are replicated to three of them",
    )
    cluster("--restart", action="store_true", help="with --brokers: bring back a broker that has died")
    cluster(
        "--join",
        metavar="DIR|URL",
        help="run one more broker of the cluster whose --data is DIR, or whose --coordination is URL",
    )
    cluster(
        "--coordination",
        metavar="zookeeper://HOST:PORT/PATH",
        help="agree through ZooKeeper instead of a file in --data: brokers may be on several machines",
    )
    cluster(
        "--node-id",
        type=_node,
        metavar="N",
        help="with --join: which broker (default: the first free number)",
    )
    # For whoever starts the brokers of a cluster one by one: as many as there will be, for the defaults.
    cluster("--cluster-size", type=_number, help=argparse.SUPPRESS)
    return parser.parse_args(argv)
