"""The CustomResourceDefinition, generated from the pydantic models: `python -m octavo_operator.api.crd --write`.

A CRD takes a *structural* schema: no `$ref`, no `anyOf` with null, no `title`, no `additionalProperties: false`. What
pydantic writes is rewritten here; everything else (bounds, enums, patterns, descriptions) passes through.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

from octavo_operator.api import labels
from octavo_operator.api.spec import ModelDeploymentSpec, rules
from octavo_operator.api.status import ModelDeploymentStatus

JsonObject = dict[str, Any]

NAME_RULES = (
    ("self.metadata.name.size() <= 40", "metadata.name may have at most 40 characters: children append to it"),
    (
        "self.metadata.name.matches(r'^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        "metadata.name must be a DNS label that starts with a letter: a-z, 0-9 and -, no dots",
    ),
)
DROPPED_KEYS = frozenset({"title", "$defs", "default", "discriminator"})
INT32_MAX = 2**31 - 1


def structural(schema: JsonObject, definitions: JsonObject) -> JsonObject:
    """`schema` as a CRD takes it: references inlined, optional fields unwrapped, `title` and `default` gone."""
    if "$ref" in schema:
        inlined = structural(definitions[schema["$ref"].rsplit("/", 1)[1]], definitions)
        return {**inlined, **structural({k: v for k, v in schema.items() if k != "$ref"}, definitions)}
    result = {key: value for key, value in schema.items() if key not in DROPPED_KEYS}
    options = [option for option in result.get("anyOf", []) if option != {"type": "null"}]
    if len(options) == 1 and "x-kubernetes-int-or-string" not in result:
        del result["anyOf"]
        result = {**structural(options[0], definitions), **result}
    if "properties" in result:
        result["properties"] = {name: structural(part, definitions) for name, part in result["properties"].items()}
        result.pop("additionalProperties", None)
    elif isinstance(result.get("additionalProperties"), dict):
        result["additionalProperties"] = structural(result["additionalProperties"], definitions)
    result.pop("propertyNames", None)
    if "items" in result:
        result["items"] = structural(result["items"], definitions)
    if result.get("type") == "integer" and result.get("maximum", INT32_MAX + 1) > INT32_MAX:
        result["format"] = "int64"
    return result


def schema_of(model: type[ModelDeploymentSpec | ModelDeploymentStatus]) -> JsonObject:
    """Structural schema of one half of the object."""
    schema = model.model_json_schema(by_alias=True, mode="validation")
    return structural(schema, schema.get("$defs", {}))


def column(name: str, path: str, description: str, *, kind: str = "string", wide: bool = False) -> JsonObject:
    """One column of `kubectl get mdep`; wide ones appear with `-o wide`."""
    return {
        "name": name,
        "type": kind,
        "jsonPath": path,
        "description": description,
        "priority": 1 if wide else 0,
    }


def columns() -> list[JsonObject]:
    """The columns, by condition type rather than by index."""
    ready = '.status.conditions[?(@.type=="Ready")]'
    pool = ".status.plan.pools[0]"
    return [
        column("Ready", f"{ready}.status", "Whether pods of this generation answer."),
        column("Reason", f"{ready}.reason", "Why, in one word; the message of the condition says more."),
        column("Precision", f"{pool}.precision.summary", "Format of expert weights and of the KV cache."),
        column("GPU", f"{pool}.accelerators", "GPUs per replica x compute capability."),
        column("Replicas", ".status.replicaSummary", "Ready pods / wanted pods."),
        column("Age", ".metadata.creationTimestamp", "Time since the object was made.", kind="date"),
        column("Context", f"{pool}.maxModelLen", "Longest request in tokens.", kind="integer", wide=True),
        column("KV-Tokens", f"{pool}.kvTokens", "Tokens in one replica's KV cache.", kind="integer", wide=True),
        column("Model", ".spec.model.source", "Where the checkpoint comes from.", wide=True),
        column("URL", ".status.url", "Address of the OpenAI API inside the cluster.", wide=True),
    ]


def custom_resource_definition() -> JsonObject:
    """The whole CRD."""
    spec = schema_of(ModelDeploymentSpec)
    # GET on the scale subresource answers 500 while the path is absent, so this one default is written.
    spec["properties"]["replicas"]["default"] = 1
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{labels.PLURAL}.{labels.GROUP}"},
        "spec": {
            "group": labels.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": labels.KIND,
                "listKind": f"{labels.KIND}List",
                "plural": labels.PLURAL,
                "singular": labels.KIND.lower(),
                "shortNames": ["mdep"],
                "categories": ["octavo"],
            },
            "versions": [
                {
                    "name": labels.VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "description": "A mixture-of-experts model that Octavo plans and serves.",
                            "required": ["spec"],
                            "properties": {
                                "apiVersion": {"type": "string"},
                                "kind": {"type": "string"},
                                "metadata": {"type": "object"},
                                "spec": spec,
                                "status": schema_of(ModelDeploymentStatus),
                            },
                            **rules(*NAME_RULES),
                        }
                    },
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": columns(),
                }
            ],
        },
    }


def crd_yaml() -> str:
    """The CRD as it is committed under crds/."""
    header = "# Generated from octavo_operator.api by `python -m octavo_operator.api.crd --write`; do not edit.\n"
    return header + yaml.safe_dump(custom_resource_definition(), sort_keys=False, width=120, allow_unicode=True)


def crd_path(root: Path) -> Path:
    """Where the CRD lies under the repository's root."""
    return root / "crds" / f"{labels.GROUP}_{labels.PLURAL}.yaml"


def main() -> int:
    """Print the CRD, or write it into crds/ of the current directory."""
    parser = argparse.ArgumentParser(description="Generate the ModelDeployment CRD.")
    parser.add_argument("--write", action="store_true", help="write into ./crds instead of printing")
    if not parser.parse_args().write:
        sys.stdout.write(crd_yaml())
        return 0
    path = crd_path(Path.cwd())
    if not path.parent.is_dir():
        print(f"{path.parent} does not exist: run this in the repository's root", file=sys.stderr)
        return 1
    path.write_text(crd_yaml(), encoding="utf-8")
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
