"""`python -m e2e.cluster build|up|down|status|env`."""

import argparse
import os
import shlex
import sys
from pathlib import Path

from e2e.cluster import config as configuration
from e2e.cluster.config import ClusterConfig
from e2e.cluster.errors import ClusterError

LOCKS = Path("/run/lock")
LOCK_TIMEOUT_SECONDS = 1800.0
"""Whoever holds it may be building Kubernetes."""


def main() -> int:
    """Run one command; a ClusterError is a sentence on standard error and status 1."""
    arguments = _parser().parse_args()
    try:
        return _dispatch(arguments)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninterrupted; `up` continues where this stopped, `down` removes what is there", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description="A real Kubernetes on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build or fetch every program (minutes, once)")
    up = commands.add_parser("up", help="start the cluster, or what is missing of it")
    up.add_argument("--nodes", type=int, default=1, metavar="N", help="1 (default) or 2")
    down = commands.add_parser("down", help="remove every trace of the cluster; images and programs stay in the cache")
    down.add_argument("--purge", action="store_true", help="empty the cache too; the next start builds everything anew")
    commands.add_parser("status", help="what runs; status 0 only when all of it is healthy")
    commands.add_parser("env", help='shell lines for `eval "$(...)"`: KUBECONFIG, and the programs on PATH')
    return parser


def _dispatch(arguments: argparse.Namespace) -> int:
    if external := configuration.external_kubeconfig(os.environ):
        return _leave_alone(arguments.command, external)
    if arguments.command == "build":
        from e2e.cluster import build

        build.main()
        return 0
    if arguments.command in ("status", "env"):
        return _status() if arguments.command == "status" else _env()
    from e2e.cluster.locks import exclusive

    _require_root()
    config = configuration.current(getattr(arguments, "nodes", 1))
    lock = LOCKS / f"{config.name}-cluster.lock"
    with exclusive(lock, LOCK_TIMEOUT_SECONDS, lambda: print("waiting: another command works on the cluster")):
        return _up(config) if arguments.command == "up" else _down(config, arguments.purge)


def _leave_alone(command: str, kubeconfig: Path) -> int:
    if command == "env":
        print(f"export KUBECONFIG={shlex.quote(str(kubeconfig))}")
    else:
        print(f"OCTAVO_KUBECONFIG is set: your cluster in {kubeconfig} is used; nothing is built, started or removed")
    return 0


def _require_root() -> None:
    if os.geteuid() != 0:
        raise ClusterError(
            "network namespaces and containers need root: run as root, or name a cluster of yours in OCTAVO_KUBECONFIG"
        )


def _up(config: ClusterConfig) -> int:
    from e2e.cluster.up import up

    config = up(config)
    print(f"registry for images: {config.registry}")
    print(f"export KUBECONFIG={shlex.quote(str(config.kubeconfig))}")
    return 0


def _down(config: ClusterConfig, purge: bool) -> int:
    from e2e.cluster import down, record

    known = record.read(config.record)
    config = known.config() if known else configuration.current(configuration.MAX_NODES)
    if not down.leftovers(config):
        print("no cluster is up")
    else:
        down.remove(config, known)
        if left := down.leftovers(config, known):
            raise ClusterError(down.describe(left))
        print("the cluster is gone; no process, mount, namespace, link, route or cgroup of it is left")
    if purge:
        print(f"removed from {config.cache_dir}: {', '.join(down.purge(config)) or 'nothing was there'}")
    return 0


def _status() -> int:
    from e2e.cluster import down, record
    from e2e.cluster.status import report

    known = record.read(configuration.current().record)
    config = known.config() if known else configuration.current(configuration.MAX_NODES)
    if known is None:
        left = down.leftovers(config)
        print(f"remains of a cluster: {left[0]} (`down` removes them)" if left else "no cluster is up")
        return 1
    seen = report(config, known.programs)
    print(seen.text())
    return 0 if seen.healthy else 1


def _env() -> int:
    from e2e.cluster import record

    known = record.read(configuration.current().record)
    if known is None:
        raise ClusterError("no cluster is up: `make cluster-up` starts one")
    config = known.config()
    print(f"export KUBECONFIG={shlex.quote(str(config.kubeconfig))}")
    print(f"export PATH={shlex.quote(str(config.cache_dir / 'bin' / 'current'))}:$PATH")
    return 0


if __name__ == "__main__":
    sys.exit(main())
