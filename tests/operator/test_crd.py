"""The generated CRD is what is committed, structural, and bounded."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from octavo_operator.api.crd import crd_path, crd_yaml, custom_resource_definition
from octavo_operator.api.spec import SOURCE_PATTERN

ROOT = Path(__file__).parents[2]
FORBIDDEN = {"$ref", "$defs", "title", "oneOf", "allOf", "not", "const", "exclusiveMinimum", "exclusiveMaximum"}


def schema() -> dict[str, Any]:
    version = custom_resource_definition()["spec"]["versions"][0]
    root: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return root


def walk(part: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema in a schema."""
    yield path, part
    for name, child in part.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(part.get(key), dict):
            yield from walk(part[key], f"{path}[]")


def test_the_committed_crd_is_the_generated_one() -> None:
    assert crd_path(ROOT).read_text(encoding="utf-8") == crd_yaml(), "run: make crds"


def test_the_charts_copy_is_the_same() -> None:
    (copy,) = (ROOT / "helm" / "octavo" / "files" / "crds").glob("*.yaml")
    assert copy.read_text(encoding="utf-8") == crd_yaml(), "run: make crds"


def test_the_generated_yaml_reads_back_as_the_definition() -> None:
    assert yaml.safe_load(crd_yaml()) == custom_resource_definition()


def test_the_schema_is_structural() -> None:
    for path, part in walk(schema()):
        assert not FORBIDDEN & part.keys(), path
        assert part.get("type") or part.get("x-kubernetes-int-or-string"), f"{path} has no type"
        if "anyOf" in part:
            assert part["x-kubernetes-int-or-string"], path


def test_every_string_list_and_map_is_bounded() -> None:
    for path, part in walk(schema()):
        if path.startswith((".metadata", ".apiVersion", ".kind")):
            continue
        if part.get("type") == "string" and "enum" not in part:
            bounded = (
                "maxLength" in part or part.get("pattern", "").count("*") + part.get("pattern", "").count("+") == 0
            )
            assert bounded, f"{path} is an unbounded string"
        if part.get("type") == "array":
            assert "maxItems" in part, f"{path} is an unbounded list"
        if "additionalProperties" in part:
            assert "maxProperties" in part, f"{path} is an unbounded map"


def test_map_lists_require_their_key() -> None:
    for path, part in walk(schema()):
        for key in part.get("x-kubernetes-list-map-keys", ()):
            assert key in part["items"]["required"], path


def test_the_only_default_is_the_one_that_the_scale_subresource_needs() -> None:
    defaults = {path for path, part in walk(schema()) if "default" in part}
    assert defaults == {".spec.replicas"}


@pytest.mark.parametrize(
    "source",
    [
        "hf://Qwen/Qwen3-30B-A3B",
        "hf://Qwen/Qwen3-30B-A3B@main",
        "hf://a/b.c_d@refs/pr/3",
        "oci://10.99.0.1:5000/octavo/tiny-moe:dev",
        "oci://ghcr.io/x/y@sha256:0123abcd",
        "pvc://models",
        "pvc://models/qwen3/30b",
    ],
)
def test_good_sources_match(source: str) -> None:
    assert re.fullmatch(SOURCE_PATTERN, source)


@pytest.mark.parametrize(
    "source", ["ftp://x/y", "hf://only-one", "oci://", "pvc://", "s3://b/c", "hf://a/b c", "pvc://Claim", "Qwen/Qwen3"]
)
def test_bad_sources_do_not_match(source: str) -> None:
    assert not re.fullmatch(SOURCE_PATTERN, source)
