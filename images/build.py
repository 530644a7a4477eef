"""Build the product's images and push them to a registry, each only when its content changed."""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from e2e.cluster.debian import IMAGE_PACKAGES, ensure
from e2e.cluster.locks import exclusive
from e2e.cluster.progress import Durations, Progress
from images import base, indexes
from images.engines import BUILD_TIMEOUT_SECONDS, Build, Engine, choose
from images.errors import ImageError
from images.products import ROOT, Product
from images.reference import Reference
from images.registry import Registry
from images.retention import retain

LOCAL_BASE = "localhost/octavo-base"
ATTEMPTS = 3
"""To catch a moment in which nobody edits; after the first, only the layers with code are made."""


@dataclass(frozen=True)
class Settings:
    """Where images are made and where they go."""

    host: str
    """The registry, host:port."""
    cache_dir: Path
    engine: str
    """auto, buildah or docker."""
    environ: Mapping[str, str]
    own_registry: Path | None
    """The storage of the cluster's registry; None for somebody else's, in which nothing is ever deleted."""

    @property
    def folder(self) -> Path:
        """The engine's storage, the base system and logs."""
        return self.cache_dir / "images"

    @property
    def wanted_base(self) -> str:
        """The base asked for; part of an image's tag, since another base is another image."""
        return self.environ.get("OCTAVO_BASE_IMAGE") or base.DEFAULT_BASE


class Builder:
    """Makes images; remembers how long each step took."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._durations = Durations(settings.cache_dir / "durations.json")
        self._progress = Progress(self._durations)
        self._registry = Registry(settings.host)

    def reference(self, product: Product) -> Reference:
        """Under which the image of today's sources goes."""
        return product.reference(self._settings.host, self._settings.wanted_base)

    def build(self, products: Sequence[Product]) -> None:
        """Make every image that the engine does not have; needs no registry.

        Raises:
            ImageError: no engine, no base, or a failed build.
        """
        engine = self._engine()
        for product in products:
            with self._alone():
                self._ensure_built(engine, product)

    def push(self, products: Sequence[Product]) -> None:
        """See to it that the registry has every image of today's sources, building what is missing.

        Raises:
            ImageError: as for `build`, or a registry that cannot be reached or refuses.
        """
        for product in products:
            target = self.reference(product)
            if self._registry.digest(target) is None:
                engine = self._engine()
                with self._alone():
                    self._ensure_pushed(engine, product, self._ensure_built(engine, product))
            else:
                self._progress.skip(f"image {product.name}", f"already in the registry as {target}")

    def _ensure_built(self, engine: Engine, product: Product) -> Reference:
        """The image of the sources as they are, or as they have become while it was built."""
        mixed: list[Reference] = []
        try:
            for _ in range(ATTEMPTS):
                target = self.reference(product)
                if engine.has(str(target)):
                    self._progress.skip(f"image {product.name}", f"already built as {target}")
                    return target
                self._build(engine, product, str(target))
                if self.reference(product) == target:
                    return target
                mixed.append(target)
                self._progress.say(f"  the sources of {product.name} changed while it was built: once more")
        finally:
            # Only now: with the only image of its kind go its layers, which the next attempt starts from.
            for target in mixed:
                engine.forget(str(target))
        raise ImageError(f"the sources of the image {product.name} keep changing while it is built: try again later")

    def _ensure_pushed(self, engine: Engine, product: Product, target: Reference) -> None:
        if self._registry.digest(target) is not None:  # another process did, while this one waited
            return
        with self._progress.step(f"push {product.name}", f"push image {product.name}"):
            engine.push(str(target), self._registry.plain, self._log(f"push-{product.name}"))
        if self._settings.own_registry is not None:
            history = self._settings.folder / "pushed.json"
            retain(history, target, self._registry, engine, self._settings.own_registry)
        size = self._registry.compressed_bytes(target)
        self._progress.say(f"  {target}: {size / 1e6:.0f} MB compressed")

    def _engine(self) -> Engine:
        ensure(IMAGE_PACKAGES if self._settings.engine != "docker" else (), self._progress.say)
        storage, uv_cache = self._settings.folder / "buildah", indexes.uv_cache(self._settings.environ)
        return choose(self._settings.engine, storage, uv_cache)

    def _build(self, engine: Engine, product: Product, name: str) -> None:
        log = self._log(f"build-{product.name}")
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("")
        with tempfile.TemporaryDirectory(prefix="octavo-image-") as scratch:
            secrets = indexes.write(Path(scratch), self._settings.environ)
            lent = {str(indexes.CERTIFICATES): indexes.CERTIFICATES}
            base_image = self._settings.wanted_base
            if not self._base_can_be_pulled():
                base_image = self._own_base(engine)
                sources = Path(scratch) / "sources.list"
                sources.write_text(base.apt_source())
                lent["/etc/apt/sources.list"] = sources
            with self._progress.step(f"build image {product.name}", f"build image {product.name}") as step:
                build = Build(product.dockerfile, ROOT, name, {"BASE": base_image}, secrets, lent, log)
                engine.build(build, step.note)

    def _base_can_be_pulled(self) -> bool:
        return bool(self._settings.environ.get("OCTAVO_BASE_IMAGE")) or base.registry_reachable()

    def _own_base(self, engine: Engine) -> str:
        suite = base.this_suite()
        system, name = self._settings.folder / f"base-{suite}", f"{LOCAL_BASE}:{suite}"
        if not system.exists():
            self._progress.say(f"  {base.DEFAULT_BASE} cannot be pulled here: a base is made with debootstrap")
            with self._progress.step(f"bootstrap Debian {suite}", "bootstrap a base system"):
                base.bootstrap(system)
        if not engine.has(name):
            with self._progress.step("import the base system", "import the base system"):
                engine.import_base(system, name, self._log("base"))
        return name

    def _alone(self) -> AbstractContextManager[None]:
        """One process at a time builds and pushes: a second one then finds layers made, instead of making them too."""
        lock = self._settings.cache_dir / "locks" / "images.lock"
        return exclusive(
            lock, BUILD_TIMEOUT_SECONDS, lambda: self._progress.say("  another process builds images: waiting")
        )

    def _log(self, name: str) -> Path:
        return self._settings.cache_dir / "logs" / f"image-{name}.log"
