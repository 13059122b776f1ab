"""The manifests of deploy/kubernetes as kustomize renders them, as far as they use it."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.conftest import ROOT

FOLDER = ROOT / "deploy/kubernetes"
OVERLAYS = ("base", "gpu", "keda")
KNOWN_FIELDS = {"apiVersion", "kind", "resources", "images", "configMapGenerator", "labels", "patches"}

Document = dict[str, Any]


def read(file: Path) -> list[Document]:
    """Return the documents of a file."""
    return list(yaml.safe_load_all(file.read_text()))


def render(overlay: str) -> list[Document]:
    """Return the objects of a folder with a kustomization, with the patches applied."""
    return _render(FOLDER / overlay)


def _render(folder: Path) -> list[Document]:
    (kustomization,) = read(folder / "kustomization.yaml")
    assert kustomization.keys() <= KNOWN_FIELDS, "kustomize does more than this module"
    objects: list[Document] = []
    for name in kustomization["resources"]:
        path = folder / name
        objects += copy.deepcopy(_render(path) if path.is_dir() else read(path))
    for generator in kustomization.get("configMapGenerator", ()):
        data = dict(literal.split("=", 1) for literal in generator["literals"])
        objects.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generator["name"]}, "data": data})
    for patch in kustomization.get("patches", ()):
        if "path" in patch:
            (change,) = read(folder / patch["path"])
            merge(find(objects, change["kind"], change["metadata"]["name"]), change)
        else:
            target = find(objects, patch["target"]["kind"], patch["target"]["name"])
            for operation in yaml.safe_load(patch["patch"]):
                remove(target, **operation)
    return objects


def find(objects: list[Document], kind: str, name: str) -> Document:
    """Return the only object of a kind and a name."""
    (found,) = (each for each in objects if each["kind"] == kind and each["metadata"]["name"] == name)
    return found


def merge(target: Document, change: Document) -> None:
    """Apply a strategic merge patch: entries of named lists are merged by name, other lists are replaced."""
    for key, value in change.items():
        present = target.get(key)
        if isinstance(value, dict) and isinstance(present, dict):
            merge(present, value)
        elif isinstance(value, list) and isinstance(present, list) and all("name" in each for each in value):
            by_name = {each["name"]: each for each in present}
            for each in value:
                if each["name"] in by_name:
                    merge(by_name[each["name"]], each)
                else:
                    present.append(each)
        else:
            target[key] = value


def remove(target: Document, op: str, path: str) -> None:
    """Apply the operation `remove` of a JSON patch."""
    assert op == "remove"
    *parents, last = path.strip("/").split("/")
    for parent in parents:
        target = target[parent]
    del target[last]


def pod_templates(objects: list[Document]) -> Iterator[tuple[str, Document]]:
    """Yield the name and the pod template of each workload, those of a Ray cluster too."""
    for each in objects:
        spec = each.get("spec", {})
        if each["kind"] in ("StatefulSet", "Deployment"):
            yield each["metadata"]["name"], spec["template"]
        elif each["kind"] == "RayService":
            yield "ray-head", spec["rayClusterConfig"]["headGroupSpec"]["template"]
            for group in spec["rayClusterConfig"]["workerGroupSpecs"]:
                yield group["groupName"], group["template"]


def container_of(template: Document) -> Document:
    """Return the only container of a pod template."""
    (container,) = template["spec"]["containers"]
    return container


def image_words(word: str) -> list[str]:
    """Return the arguments of an instruction of the image."""
    return re.findall(rf"^{word} (.*)$", (ROOT / "deploy/Containerfile").read_text(), flags=re.M)
