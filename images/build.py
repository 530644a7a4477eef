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
from images.products import ROOT, Product
from images.registry import Registry

LOCAL_BASE = "localhost/octavo-base"


@dataclass(frozen=True)
class Settings:
    """Where images are made and where they go."""

    host: str
    """The registry, host:port."""
    cache_dir: Path
    engine: str
    """auto, buildah or docker."""
    environ: Mapping[str, str]

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

    def reference(self, product: Product) -> str:
        """Under which the image of today's sources goes."""
        return str(product.reference(self._settings.host, self._settings.wanted_base))

    def build(self, products: Sequence[Product]) -> None:
        """Make every image that the engine does not have; needs no registry.

        Raises:
            ImageError: no engine, no base, or a failed build.
        """
        engine = self._engine()
        for product in products:
            name = self.reference(product)
            if engine.has(name):
                self._progress.skip(f"image {product.name}", f"already built as {name}")
                continue
            with self._one_builder():
                self._build(engine, product, name)

    def push(self, products: Sequence[Product]) -> None:
        """See to it that the registry has every image of today's sources, building what is missing.

        Raises:
            ImageError: as for `build`, or a registry that cannot be reached or refuses.
        """
        for product in products:
            target = product.reference(self._settings.host, self._settings.wanted_base)
            if self._registry.digest(target) is not None:
                self._progress.skip(f"image {product.name}", f"already in the registry as {target}")
                continue
            self.build([product])
            engine = self._engine()
            with self._progress.step(f"push {product.name}", f"push image {product.name}"):
                engine.push(str(target), self._registry.plain, self._log(f"push-{product.name}"))
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

    def _one_builder(self) -> AbstractContextManager[None]:
        lock = self._settings.cache_dir / "locks" / "images.lock"
        return exclusive(
            lock, BUILD_TIMEOUT_SECONDS, lambda: self._progress.say("  another process builds images: waiting")
        )

    def _log(self, name: str) -> Path:
        return self._settings.cache_dir / "logs" / f"image-{name}.log"
