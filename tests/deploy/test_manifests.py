"""The manifests agree with the program: options, ports, paths, times, users, metrics."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import fields

from app.__main__ import make_parser
from app.cli.graceful import HANG_UP_SECONDS
from app.cli.serve import GRACEFUL_SECONDS
from app.engine_options import EngineSettings, resolve_engine
from app.options import resolve
from app.remote_settings import DnsName
from app.settings import Settings
from engine.server import HANG_UP_SECONDS as ENGINE_HANG_UP_SECONDS
from tests.app.routes.test_http import make, ready
from tests.conftest import ROOT
from tests.deploy.manifests import (
    FOLDER,
    OVERLAYS,
    Document,
    container_of,
    find,
    image_words,
    pod_templates,
    read,
    render,
)
from tests.promql import Query, series_by_name

BASE = render("base")
ENGINES = find(BASE, "StatefulSet", "carousel-engine")
API = find(BASE, "Deployment", "carousel-api")
ENGINE, SERVER = (container_of(each["spec"]["template"]) for each in (ENGINES, API))
ALL_TEMPLATES = {
    **{f"{overlay}/{name}": template for overlay in OVERLAYS for name, template in pod_templates(render(overlay))},
    **{f"ray/{name}": template for name, template in pod_templates(read(FOLDER / "rayservice.yaml"))},
}


def default(settings: Any, name: str) -> float:
    """Return the default of an option."""
    return next(float(field.default) for field in fields(settings) if field.name == name)


def options_of(container: Document) -> dict[str, Any]:
    """Return the options of a container's command line, which the program's own parser accepts."""
    (entry_point,) = image_words("ENTRYPOINT")
    assert "command" not in container and entry_point == '["carousel"]'
    return vars(make_parser(container["args"]).parse_args(container["args"]))


def environment_of(container: Document) -> dict[str, str]:
    """Return the variables of a container, with a number for those that the cluster fills in."""
    return {each["name"]: each.get("value", "4") for each in container["env"]}


def port_of(container: Document, name: str) -> int:
    (port,) = (each["containerPort"] for each in container["ports"] if each["name"] == name)
    return port


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_engine_starts_with_these_options(overlay: str, tmp_path: Path):
    """Flags and variables, those of the GPU too, are accepted together."""
    container = container_of(dict(pod_templates(render(overlay)))["carousel-engine"])
    variables = {**environment_of(container), "CAROUSEL_MODEL": str(ROOT / "models/demo")}
    options = options_of(container)
    assert options["command"] == "engine"
    settings = resolve_engine(options, variables)
    assert settings.engine.threads == 4 and settings.listen.port == port_of(container, "engine")
    assert (settings.engine.device == "cuda") == (overlay == "gpu")


def test_a_server_starts_with_these_options():
    """Its engines are those of the headless Service, at their port."""
    options = options_of(SERVER)
    assert options["command"] == "serve" and options["host"] == "0.0.0.0"
    (service,) = (each for each in BASE if each["kind"] == "Service" and each["spec"].get("clusterIP") == "None")
    (port,) = service["spec"]["ports"]
    keys = {"CAROUSEL_API_KEY": "key-of-a-client", "CAROUSEL_METRICS_KEY": "key-for-metrics"}
    variables = {**environment_of(SERVER), **keys, "CAROUSEL_MODEL": str(ROOT / "models/demo")}
    settings = resolve(options, variables)
    assert settings.engines == DnsName(service["metadata"]["name"], port["port"])
    assert settings.port == port_of(SERVER, "http")
    names = {each["metadata"]["name"] for each in BASE if each["kind"] == "Service" and each is not service}
    assert settings.requires_keys and names <= set(settings.allowed_hosts)


def test_ports_are_those_of_the_containers():
    """Services, probes and the network policy name ports that exist, and Services select pods that exist."""
    for each in BASE:
        selector = each["spec"].get("selector", {}) if each["kind"] != "ConfigMap" else {}
        selector = selector.get("matchLabels", selector)
        if each["kind"] in ("Service", "PodDisruptionBudget"):
            (template,) = (
                template for _, template in pod_templates(BASE) if template["metadata"]["labels"] == selector
            )
            for port in each["spec"].get("ports", ()):
                assert port_of(container_of(template), port["targetPort"])
    (policy,) = (each for each in BASE if each["kind"] == "NetworkPolicy")
    assert policy["spec"]["podSelector"]["matchLabels"] == ENGINES["spec"]["template"]["metadata"]["labels"]
    (rule,) = policy["spec"]["ingress"]
    assert rule["from"][0]["podSelector"]["matchLabels"] == API["spec"]["template"]["metadata"]["labels"]
    assert [port_of(ENGINE, port["port"]) for port in rule["ports"]] == [port_of(ENGINE, "engine")]
    assert ENGINES["spec"]["serviceName"] == "carousel-engines"
    exposed = {int(port) for port in image_words("EXPOSE")[0].split()}
    assert exposed == {port_of(ENGINE, "engine"), port_of(SERVER, "http")}
    for name in ("startupProbe", "readinessProbe"):
        assert ENGINE[name]["tcpSocket"]["port"] == "engine"


def test_probes_of_the_server_ask_existing_paths():
    """A server that drains is not ready and stays alive; a Host that is none of its names is accepted there."""
    probes = {name: SERVER[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert {probe["port"] for probe in probes.values()} == {"http"}
    with make() as client:
        ready(client)

        def statuses() -> dict[str, int]:
            return {
                name: client.get(probe["path"], headers={"Host": "10.1.2.3"}).status_code
                for name, probe in probes.items()
            }

        assert set(statuses().values()) == {200}
        client.app.state.service.begin_drain()
        assert statuses() == {"startupProbe": 200, "livenessProbe": 200, "readinessProbe": 503}


def test_a_pod_is_not_killed_before_its_drain_is_over():
    """The time of grace begins with the hook before SIGTERM."""
    api = API["spec"]["template"]["spec"]
    sleep = SERVER["lifecycle"]["preStop"]["sleep"]["seconds"]
    ending = default(Settings, "drain_timeout") + HANG_UP_SECONDS + GRACEFUL_SECONDS
    assert api["terminationGracePeriodSeconds"] > sleep + ending
    readiness = SERVER["readinessProbe"]
    assert sleep > readiness["periodSeconds"] * readiness["failureThreshold"], "balancers have noticed by then"
    for name, template in ALL_TEMPLATES.items():
        if container_of(template)["name"] in ("engine", "ray-worker"):
            grace = template["spec"]["terminationGracePeriodSeconds"]
            assert grace > default(EngineSettings, "drain_seconds") + ENGINE_HANG_UP_SECONDS, name


@pytest.mark.parametrize("name", ALL_TEMPLATES)
def test_pods_have_no_rights(name: str):
    """They meet the restricted Pod Security Standard, as the user of the image, and see no variables of Services."""
    pod, container = ALL_TEMPLATES[name]["spec"], container_of(ALL_TEMPLATES[name])
    context, own = pod["securityContext"], container["securityContext"]
    assert context["runAsNonRoot"] is True and context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert [str(context["runAsUser"])] == image_words("USER") and context["fsGroup"] == context["runAsGroup"] > 0
    assert own["allowPrivilegeEscalation"] is False and own["capabilities"] == {"drop": ["ALL"]}
    assert pod["enableServiceLinks"] is False
    assert container["resources"].keys() == {"requests", "limits"}
    if not name.startswith("ray/"):  # Ray talks to the API of the cluster, and writes to its image
        assert own["readOnlyRootFilesystem"] is True and pod["automountServiceAccountToken"] is False


def test_files_of_the_image_can_be_written_where_the_program_does():
    """The model and the store are in the home of the image's user, which is a volume."""
    (environment,) = (words for words in image_words("ENV") if "HF_HOME" in words)
    (home,) = re.findall(r"--home-dir (\S+)", " ".join(image_words("RUN")))
    assert f"HF_HOME={home}" in environment
    for container in (ENGINE, SERVER):
        paths = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        assert {home, "/tmp"} <= paths.keys()
    gpu = container_of(dict(pod_templates(render("gpu")))["carousel-engine"])
    assert environment_of(gpu)["TRITON_CACHE_DIR"].startswith(f"{home}/")


def test_secrets_are_those_that_the_manual_creates():
    """All keys, and the file of the token is where the options expect it."""
    used = set()
    for template in (ENGINES["spec"]["template"], API["spec"]["template"]):
        container = container_of(template)
        for variable in container["env"]:
            reference = variable.get("valueFrom", {}).get("secretKeyRef")
            if reference:
                used.add((reference["name"], reference["key"]))
        (volume,) = (each for each in template["spec"]["volumes"] if "secret" in each)
        (mount,) = (each for each in container["volumeMounts"] if each["name"] == volume["name"])
        (item,) = volume["secret"]["items"]
        used.add((volume["secret"]["secretName"], item["key"]))
        assert options_of(container)["token_file"] == f"{mount['mountPath']}/{item['path']}"
        assert volume["secret"]["defaultMode"] == 0o440
    text = (ROOT / "docs/kubernetes.md").read_text()
    (created,) = re.findall(r"create secret generic (\w+)((?: \\\n|.)*)", text)
    assert {(created[0], key) for key in re.findall(r"--from-literal=([\w-]+)=", created[1])} == used


def test_the_autoscaler_reads_an_existing_metric_as_a_number_of_engines():
    """Of the workload that exists, whose number of replicas no manifest sets beside it."""
    objects = render("keda")
    (scaled,) = (each for each in objects if each["kind"] == "ScaledObject")
    target = scaled["spec"]["scaleTargetRef"]
    assert "replicas" not in find(objects, target["kind"], target["name"])["spec"]
    (trigger,) = scaled["spec"]["triggers"]
    assert (trigger["metricType"], trigger["metadata"]["threshold"]) == ("AverageValue", "1")
    with make() as client:
        exposed = series_by_name(ready(client).get("/metrics").text)
    query = Query(trigger["metadata"]["query"], exposed)
    assert query.names == {"carousel:replicas_wanted"} and not query.labels


def test_a_changed_model_replaces_all_pods():
    """Both read it from the generated map, whose name kustomize changes with its content."""
    (generated,) = (each for each in BASE if each["kind"] == "ConfigMap")
    for container in (ENGINE, SERVER):
        (variable,) = (each for each in container["env"] if each["name"] == "CAROUSEL_MODEL")
        reference = variable["valueFrom"]["configMapKeyRef"]
        assert reference["name"] == generated["metadata"]["name"] and reference["key"] in generated["data"]
