"""Each manifest is one that the cluster accepts: by the published schemas of Kubernetes and KEDA, and the fields of
KubeRay."""

from __future__ import annotations

import copy
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from cloudcoil.models.keda import v1alpha1 as keda

from tests.deploy.kuberay import RAY_SERVICE, SERVE_APPLICATION
from tests.deploy.manifests import FOLDER, OVERLAYS, Document, find, pod_templates, read, render

VERSIONS = ("1.30.0", "1.37.0")  # of Kubernetes: the oldest supported one, and a recent one
RAY_FILE = FOLDER / "rayservice.yaml"


def check(document: Document, version: str = VERSIONS[-1]) -> None:
    """Raise an error for an object that a cluster would refuse, or of which it would ignore a field."""
    if document["kind"] == "ScaledObject":
        found = keda.ScaledObject.model_validate(document).model_dump(by_alias=True, exclude_unset=True, mode="json")
        assert found == document, "the model drops fields that it does not know"
    elif document["kind"] == "RayService":
        jsonschema.validate(document, RAY_SERVICE)
        for name, template in pod_templates([document]):
            template = {"metadata": {"name": name}, **template}
            kubernetes_validate.validate({"apiVersion": "v1", "kind": "Pod", **template}, version, strict=True)
    else:
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_cluster_accepts_every_object(overlay: str, version: str):
    """Unknown fields are errors too, and no two objects have the same name."""
    objects = render(overlay)
    for document in objects:
        check(document, version)
    names = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(set(names)) == len(names) >= 8


@pytest.mark.parametrize("version", VERSIONS)
def test_kuberay_accepts_the_ray_cluster(version: str):
    """Its pods, and the application in the text of the configuration."""
    (document,) = read(RAY_FILE)
    check(document, version)
    config = yaml.safe_load(document["spec"]["serveConfigV2"])
    for application in config["applications"]:
        jsonschema.validate(application, SERVE_APPLICATION)
    limits = [group["maxReplicas"] for group in document["spec"]["rayClusterConfig"]["workerGroupSpecs"]]
    assert sum(limits) >= config["applications"][0]["args"]["engines"]["max"]


def test_every_file_belongs_to_a_rendered_folder_or_to_ray():
    """A file that no kustomization names would never be applied."""
    used = {RAY_FILE}
    for overlay in OVERLAYS:
        used.add(FOLDER / overlay / "kustomization.yaml")
        (kustomization,) = read(FOLDER / overlay / "kustomization.yaml")
        patches = [patch["path"] for patch in kustomization.get("patches", ()) if "path" in patch]
        used |= {FOLDER / overlay / name for name in (*kustomization["resources"], *patches) if name.endswith(".yaml")}
    assert used == set(FOLDER.rglob("*.yaml"))


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("StatefulSet", ("spec", "replica"), 2),
        ("StatefulSet", ("spec", "template", "spec", "containers", 0, "readinessProbe", "tcpSocket"), {"prt": 1}),
        ("Deployment", ("spec", "template", "spec", "securityContext", "runAsUser"), "root"),
        ("ScaledObject", ("spec", "maxReplicas"), 8),
        ("ScaledObject", ("spec", "advanced", "horizontalPodAutoscalerConfig", "behavior", "scaledown"), {}),
        ("ScaledObject", ("spec", "maxReplicaCount"), "many"),
        ("RayService", ("spec", "rayClusterConfig", "workerGroupSpec"), []),
        ("RayService", ("spec", "rayClusterConfig", "headGroupSpec", "template", "spec", "container"), []),
        ("RayService", ("spec", "upgradeStrategy", "type"), "Never"),
    ],
)
def test_a_wrong_field_is_found(kind: str, path: tuple[Any, ...], value: object):
    """A misspelt field, or a value of another type, wherever it is."""
    objects = copy.deepcopy([*render("keda"), *read(RAY_FILE)])
    document = find(objects, kind, next(each["metadata"]["name"] for each in objects if each["kind"] == kind))
    place = document
    for part in path[:-1]:
        place = place[part]
    place[path[-1]] = value
    with pytest.raises((AssertionError, ValueError, jsonschema.ValidationError)):
        check(document)
