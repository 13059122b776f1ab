"""Fields of a RayService that the manifest may use, with their types, after KubeRay's published API reference.

KubeRay's schema has 800 KB, of which all but these fields describe pods. Pods are checked by the schema of Kubernetes.
Source: https://docs.ray.io/en/master/cluster/kubernetes/references/api.html (KubeRay 1.6).
"""

from __future__ import annotations

from typing import Any

POD_TEMPLATE = {"type": "object", "x-pod-template": True}
START_PARAMETERS = {"type": "object", "additionalProperties": {"type": "string"}}


def _object(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": list(required), "properties": properties, "additionalProperties": False}


HEAD_GROUP = _object(
    ("rayStartParams", "template"),
    serviceType={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
    enableIngress={"type": "boolean"},
    rayStartParams=START_PARAMETERS,
    template=POD_TEMPLATE,
)
WORKER_GROUP = _object(
    ("groupName", "maxReplicas", "minReplicas", "rayStartParams", "template"),
    groupName={"type": "string"},
    replicas={"type": "integer", "minimum": 0},
    minReplicas={"type": "integer", "minimum": 0},
    maxReplicas={"type": "integer", "minimum": 0},
    numOfHosts={"type": "integer", "minimum": 1},
    idleTimeoutSeconds={"type": "integer"},
    suspend={"type": "boolean"},
    rayStartParams=START_PARAMETERS,
    template=POD_TEMPLATE,
)
RAY_CLUSTER = _object(
    ("headGroupSpec",),
    rayVersion={"type": "string", "pattern": r"^\d+\.\d+\.\d+$"},
    enableInTreeAutoscaling={"type": "boolean"},
    headGroupSpec=HEAD_GROUP,
    workerGroupSpecs={"type": "array", "items": WORKER_GROUP},
)
RAY_SERVICE = _object(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "ray.io/v1"},
    kind={"const": "RayService"},
    metadata=_object(("name",), name={"type": "string"}),
    spec=_object(
        ("rayClusterConfig",),
        serveConfigV2={"type": "string"},
        upgradeStrategy=_object((), type={"enum": ["NewCluster", "None"]}),
        excludeHeadPodFromServeSvc={"type": "boolean"},
        rayClusterConfig=RAY_CLUSTER,
    ),
)
# Fields of an application in `serveConfigV2`, and its deployments are left to the application.
SERVE_APPLICATION = _object(
    ("name", "import_path"),
    name={"type": "string"},
    import_path={"type": "string", "pattern": r"^[\w.]+:\w+$"},
    route_prefix={"type": "string", "pattern": "^/"},
    args={"type": "object"},
)
