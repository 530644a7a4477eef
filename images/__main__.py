"""`python -m images build|push|ref|pack-model`."""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from e2e.cluster import config as configuration
from e2e.cluster.errors import ClusterError
from images.build import Builder, Settings
from images.errors import ImageError
from images.oci import Settings as PackSettings
from images.oci import files_of, pack
from images.products import PRODUCTS
from images.reference import parse
from images.registry import Registry


def main() -> int:
    """Run one command; a user's mistake is a sentence on standard error and status 1."""
    arguments = _parser().parse_args()
    try:
        if arguments.command == "pack-model":
            print(pack_model(arguments.folder, arguments.reference, dict(arguments.annotation)))
            return 0
        config = configuration.current()
        host = os.environ.get("OCTAVO_REGISTRY") or config.registry
        own = config.registry_dir if host == config.registry else None
        builder = Builder(Settings(host, config.cache_dir, arguments.engine, os.environ, own))
        products = [PRODUCTS[name] for name in arguments.images or PRODUCTS]
        if arguments.command == "build":
            builder.build(products)
        elif arguments.command == "push":
            builder.push(products)
        else:
            print("\n".join(str(builder.reference(product)) for product in products))
    except (ImageError, ClusterError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def pack_model(folder: Path, reference: str, annotations: dict[str, str]) -> str:
    """Push a checkpoint's folder as an image for image volumes; its reference by digest.

    Raises:
        ImageError: no such folder, an odd reference, or a registry that refuses.
    """
    target = parse(reference)
    with tempfile.TemporaryDirectory(prefix="octavo-pack-") as scratch:
        image = pack(files_of(folder), PackSettings(annotations=annotations), Path(scratch))
        return target.at(Registry(target.host).push(image, target))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m images", description="Octavo's container images.")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("build", "build the images of today's sources; no registry is needed"),
        ("push", "build what is missing and push it to the cluster's registry (or OCTAVO_REGISTRY)"),
        ("ref", "print the references of today's images, one a line"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("images", nargs="*", metavar="IMAGE", choices=[[], *PRODUCTS], help="operator or runtime")
        command.add_argument("--engine", choices=("auto", "buildah", "docker"), default="auto")
    packing = commands.add_parser("pack-model", help="push a checkpoint's folder as an image for image volumes")
    packing.add_argument("folder", type=Path)
    packing.add_argument("reference", help="HOST[:PORT]/REPOSITORY[:TAG]")
    packing.add_argument("--annotation", type=_pair, action="append", default=[], metavar="KEY=VALUE")
    return parser


def _pair(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


if __name__ == "__main__":
    sys.exit(main())
