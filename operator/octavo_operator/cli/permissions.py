"""`python -m octavo_operator.cli.permissions`: may this account do what the operator needs? Run by `helm test`.

Prints a line for each missing permission and exits with 1 when there is one, or when the CRD is not served.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import sys
from collections.abc import Sequence

from octavo_operator.cluster.client import KubeClient
from octavo_operator.cluster.errors import ApiError
from octavo_operator.cluster.kinds import (
    DEPLOYMENTS,
    EVENTS,
    MODEL_DEPLOYMENTS,
    NODES,
    PODS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Kind,
)
from octavo_operator.cluster.login import LoginError, find_credentials
from octavo_operator.watches import watch_settings

STATUS = dataclasses.replace(MODEL_DEPLOYMENTS, plural=f"{MODEL_DEPLOYMENTS.plural}/status")

REQUIRED: tuple[tuple[Kind, tuple[str, ...]], ...] = (
    (MODEL_DEPLOYMENTS, ("get", "list", "watch")),
    (STATUS, ("update",)),
    (DEPLOYMENTS, ("get", "list", "watch", "create", "patch", "delete")),
    (SERVICES, ("get", "list", "watch", "create", "patch")),
    (SERVICE_ACCOUNTS, ("get", "list", "watch", "create", "patch")),
    (PODS, ("get", "list", "watch", "create", "delete")),
    (EVENTS, ("create",)),
)
"""In each namespace that is served. The chart's roles grant exactly these; a test compares."""

OPTIONAL: tuple[tuple[Kind, tuple[str, ...]], ...] = ((NODES, ("list", "watch")),)
"""In the whole cluster: without them GPU pools need spec.pools[].hardware."""


async def missing(client: KubeClient, namespaces: Sequence[str | None]) -> list[str]:
    """`VERB RESOURCE in NAMESPACE` for every required permission that is not granted."""
    lacking: list[str] = []
    for namespace in namespaces:
        for kind, verbs in REQUIRED:
            for verb in verbs:
                if not await client.allowed(verb, kind, namespace):
                    lacking.append(f"{verb} {kind.plural} in {namespace or 'all namespaces'}")
    return lacking


async def report(namespaces: Sequence[str | None]) -> int:
    """Print what is missing; the exit code."""
    settings = watch_settings()
    client = KubeClient(lambda: find_credentials(settings))
    try:
        if not await client.served(MODEL_DEPLOYMENTS):
            print("missing: the CustomResourceDefinition of ModelDeployment; install the chart with crds.enabled=true")
            return 1
        lacking = await missing(client, namespaces)
        for line in lacking:
            print(f"missing: {line}")
        for kind, verbs in OPTIONAL:
            for verb in verbs:
                if not await client.allowed(verb, kind):
                    print(f"not granted: {verb} {kind.plural}; GPU pools need spec.pools[].hardware")
    except (ApiError, LoginError) as error:
        print(f"cannot ask the API server: {error}")
        return 1
    finally:
        await client.close()
    if not lacking:
        print("the CRD is served and every required permission is granted")
    return 1 if lacking else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Read the command line and report."""
    parser = argparse.ArgumentParser(prog="python -m octavo_operator.cli.permissions", description=__doc__)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--all-namespaces", action="store_true", help="as the operator's flag")
    where.add_argument("--namespace", action="append", metavar="NS", help="as the operator's flag")
    args = parser.parse_args(argv)
    return asyncio.run(report([None] if args.all_namespaces else args.namespace))


if __name__ == "__main__":
    sys.exit(main())
