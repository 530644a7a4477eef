"""`octavo-operator`: the controller as a process.

    octavo-operator (--all-namespaces | --namespace NS [--namespace NS ...]) --runtime-image IMAGE
                    [--workers 8] [--resync-seconds 600] [--metrics-port 8080] [--probes-port 8081]
                    [--log-level info] [--log-format text|json]

Credentials: the pod's service account, else $KUBECONFIG or ~/.kube/config. No other environment variable is read.
Ports: metrics on 8080 at `/metrics`; probes on 8081 at `/healthz` (liveness) and `/readyz` (readiness: caches primed).
SIGTERM ends it within seconds; a reconcile that is cut off is repeated after the next start. Needs no writable disk.

Permissions, in the namespaces that it serves:

    serving.octavo.dev  modeldeployments         get list watch
    serving.octavo.dev  modeldeployments/status  update
    apps                deployments              get list watch create patch delete
    (core)              services                 get list watch create patch
    (core)              serviceaccounts          get list watch create patch
    (core)              pods                     get list watch create delete
    events.k8s.io       events                   create

and, optionally, in the whole cluster: nodes list watch. Without it, GPU pools need spec.pools[].hardware.

One replica with `strategy: Recreate`: there is no leader election yet. Every write is idempotent, so the moment in
which two run during a node failure does no harm, but it is not meant to last.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import kopf
from prometheus_client import disable_created_metrics, start_http_server

from octavo_operator.cluster.client import KubeClient
from octavo_operator.cluster.errors import ApiError
from octavo_operator.cluster.events import EventRecorder
from octavo_operator.cluster.login import LoginError, find_credentials
from octavo_operator.cluster.queue import LoopClock, WorkQueue
from octavo_operator.cluster.store import Key, Store
from octavo_operator.controller import Controller, KindNotServed, find_scope, wait_for_api
from octavo_operator.feed import Feed
from octavo_operator.logs import configure_logs
from octavo_operator.probes import Health, serve_probes
from octavo_operator.reconcile import Reconciler, Settings
from octavo_operator.watches import watch_registry, watch_settings

PRIME_RETRY_SECONDS = 5.0

logger = logging.getLogger("octavo_operator")


@dataclass(frozen=True)
class Options:
    """The command line."""

    namespaces: tuple[str, ...] | None
    """None for all namespaces."""
    runtime_image: str
    workers: int
    resync_seconds: float
    metrics_port: int
    probes_port: int
    log_level: str
    log_format: str


def parse_options(argv: Sequence[str] | None = None) -> Options:
    """Read the command line; exits with a usage message where it is wrong."""
    parser = argparse.ArgumentParser(prog="octavo-operator", description="Octavo's Kubernetes operator.")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--all-namespaces", action="store_true", help="serve ModelDeployments of every namespace")
    where.add_argument("--namespace", action="append", metavar="NS", help="serve this namespace; may be repeated")
    parser.add_argument("--runtime-image", required=True, metavar="IMAGE", help="image of inspect and serving pods")
    parser.add_argument("--workers", type=int, default=8, help="reconciles that run at once (default: 8)")
    parser.add_argument("--resync-seconds", type=float, default=600, help="look at everything so often (default: 600)")
    parser.add_argument("--metrics-port", type=int, default=8080, help="port of /metrics (default: 8080)")
    parser.add_argument("--probes-port", type=int, default=8081, help="port of /healthz and /readyz (default: 8081)")
    parser.add_argument("--log-level", default="info", choices=["debug", "info", "warning", "error"])
    parser.add_argument("--log-format", default="text", choices=["text", "json"])
    args = parser.parse_args(argv)
    if args.workers < 1 or args.resync_seconds <= 0:
        parser.error("--workers must be at least 1 and --resync-seconds more than 0")
    return Options(
        namespaces=None if args.all_namespaces else tuple(dict.fromkeys(args.namespace)),
        runtime_image=args.runtime_image,
        workers=args.workers,
        resync_seconds=args.resync_seconds,
        metrics_port=args.metrics_port,
        probes_port=args.probes_port,
        log_level=args.log_level,
        log_format=args.log_format,
    )


async def operate(options: Options, health: Health) -> None:
    """Run until SIGTERM, SIGINT or cancellation. Raises when a part of it ends that should not."""
    settings = watch_settings()
    client = KubeClient(lambda: find_credentials(settings))
    try:
        await wait_for_api(client, health)
        scope = await find_scope(client, options.namespaces)
        store = Store()
        queue: WorkQueue[Key] = WorkQueue(LoopClock(asyncio.get_running_loop()))
        feed = Feed(store, queue)
        reconciler = Reconciler(
            api=client,
            store=store,
            recorder=EventRecorder(client, socket.gethostname(), time.monotonic),
            settings=Settings(runtime_image=options.runtime_image),
            now=lambda: datetime.now(UTC),
            nodes=feed.nodes,
        )
        controller = Controller(client, store, feed, queue, reconciler, health, scope, options.resync_seconds)
        await _prime(controller, health)
        health.set_ready(True)
        logger.info("caches primed", extra={"models": len(queue)})
        working = asyncio.create_task(controller.run(options.workers), name="controller")
        # kopf handles the signals from here on and returns on one.
        watching = asyncio.create_task(
            kopf.operator(
                registry=watch_registry(scope.kinds, feed, lambda: find_credentials(settings)),
                settings=settings,
                clusterwide=options.namespaces is None,
                namespaces=options.namespaces or (),
                standalone=True,
                # Left to itself, kopf asks for the user's name, which a numeric user of a container does not have.
                identity=socket.gethostname(),  # type: ignore[arg-type] # a NewType of str that kopf keeps private
            ),
            name="watches",
        )
        await _until_one_ends(working, watching)
    finally:
        health.set_ready(False)
        await client.close()


async def _prime(controller: Controller, health: Health) -> None:
    """The API server may go away between the first answer and the last LIST."""
    while True:
        health.beat()
        try:
            await controller.prime()
        except ApiError as error:
            logger.warning("caches not primed", extra={"problem": str(error), "retry_seconds": PRIME_RETRY_SECONDS})
            await asyncio.sleep(PRIME_RETRY_SECONDS)
        else:
            return


async def _until_one_ends(*tasks: asyncio.Task[None]) -> None:
    """Wait for the first task to end, end the others, and pass on what went wrong."""
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException) and not isinstance(result, asyncio.CancelledError):
            raise result


async def _operate_until_signal(options: Options, health: Health) -> None:
    """Before kopf installs its handlers a signal cancels us; process 1 of a container has none of its own."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    await operate(options, health)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the operator; 0 after a signal, 1 when it cannot go on."""
    options = parse_options(argv)
    configure_logs(options.log_level, options.log_format)
    disable_created_metrics()  # type: ignore[no-untyped-call]
    health = Health()
    try:
        serve_probes(health, options.probes_port)
        start_http_server(options.metrics_port)
    except OSError as error:
        print(
            f"octavo-operator: cannot listen on port {options.probes_port} or {options.metrics_port}: {error}",
            file=sys.stderr,
        )
        return 1
    try:
        asyncio.run(_operate_until_signal(options, health))
    except asyncio.CancelledError:
        pass
    except LoginError as error:
        logger.error("no credential", extra={"problem": str(error)})  # noqa: TRY400 (no traceback for a user's mistake)
        return 1
    except KindNotServed:
        logger.error("the CustomResourceDefinition of ModelDeployment was removed; starting over")  # noqa: TRY400
        return 1
    except Exception:
        logger.exception("the operator ends: a part of it failed")
        return 1
    logger.info("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
