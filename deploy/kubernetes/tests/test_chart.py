"""The chart for Kubernetes renders to objects that a cluster accepts, whatever its values are.

Rendered by the real helm, checked against the strict schemas of Kubernetes (`kubernetes-validate`): a field that does
not exist is an error. Objects of operators (Prometheus, KEDA, Gateway API) have no schemas there and are only parsed.
"""

from __future__ import annotations

import itertools
import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

CHART = Path(__file__).parents[1] / "text-generation"
VERSIONS = ("1.30", "1.37")
REQUIRED: dict[str, Any] = {"model": {"id": "org/model"}, "image": {"repository": "registry.example/server"}}
OWN = {"apps", "autoscaling", "networking.k8s.io", "policy", ""}
"""Groups of Kubernetes itself."""

MATRIX: dict[str, list[dict[str, Any]]] = {
    "devices": [
        {"gpus": 0, "resources": {"requests": {"cpu": "2"}, "limits": {"memory": "8Gi"}}},
        {"gpus": 4, "gpuResource": "amd.com/gpu", "runtimeClassName": "nvidia", "nodeSelector": {"pool": "gpu"}},
    ],
    "secrets": [
        {},
        {
            "apiKeySecret": "keys",
            "model": {"id": "org/model", "revision": "main", "servedNames": ["a", "b"], "tokenSecret": "hub"},
            "env": [{"name": "MAX_BATCH_SIZE", "value": "64"}],
            "args": ["--max-total-tokens", "8192"],
            "adapters": {"start": ["a=org/a"], "existingClaim": "adapters", "adminKeySecret": "admin", "pages": 8},
        },
    ],
    "cache": [{"cache": {"sizeLimit": "100Gi"}}, {"cache": {"existingClaim": "models"}}],
    "scaling": [
        {"replicas": 3, "podDisruptionBudget": {"enabled": True}},
        {"autoscaling": {"kind": "hpa"}},
        {"autoscaling": {"kind": "keda", "minReplicas": 2, "maxReplicas": 8}},
    ],
    "cluster": [
        {"service": {"type": "NodePort", "annotations": {"a": "b"}}},
        {
            "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
            "prometheusRule": {"enabled": True},
            "dashboard": {"enabled": True},
            "networkPolicy": {"enabled": True, "clients": [{"podSelector": {"matchLabels": {"app": "gateway"}}}]},
            "inferencePool": {"enabled": True, "endpointPicker": {"name": "picker", "port": 9002}},
            "podAnnotations": {"a": "b"},
            "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        },
    ],
}


def helm(*arguments: str, values: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    command = ["helm", *arguments, str(CHART), "--kube-version", "1.30", "--namespace", "models", "--values", "-"]
    return subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=False, timeout=60)


def rendered(**values: Any) -> dict[str, dict[str, Any]]:
    """The objects by kind, as helm renders them."""
    run = helm("template", "release", values=REQUIRED | values)
    assert run.returncode == 0, run.stderr
    return {each["kind"]: each for each in yaml.safe_load_all(run.stdout) if each}


def container(objects: dict[str, dict[str, Any]]) -> dict[str, Any]:
    (only,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    return only


@pytest.mark.parametrize("choices", list(itertools.product(*MATRIX.values())))
def test_every_combination_of_values_is_accepted(choices: tuple[dict[str, Any], ...]) -> None:
    values: dict[str, Any] = {}
    for choice in choices:
        values |= choice
    for one in rendered(**values).values():
        if one["apiVersion"].rpartition("/")[0] in OWN:
            for version in VERSIONS:
                kubernetes_validate.validate(one, version, strict=True)


def test_lint() -> None:
    run = helm("lint", "--strict", values=REQUIRED)
    assert run.returncode == 0, run.stdout + run.stderr


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({}, "model"),
        ({"model": {"id": ""}}, "/model/id"),
        ({"replica": 2}, "replica"),
        ({"gpus": -1}, "/gpus"),
        ({"drainDelay": "5s"}, "/drainDelay"),
        ({"service": {"type": "External"}}, "/service/type"),
        ({"adapters": {"start": ["a=org/a,b=org/b"]}}, "/adapters/start/0"),
        ({"autoscaling": {"kind": "vpa"}}, "/autoscaling/kind"),
        ({"autoscaling": {"kind": "hpa", "minReplicas": 5, "maxReplicas": 2}}, "minReplicas"),
        ({"inferencePool": {"enabled": True}}, "inferencePool.endpointPicker.name"),
    ],
)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], reason: str) -> None:
    run = helm("template", "release", values=(REQUIRED | values) if values else {})
    assert run.returncode != 0
    assert reason in run.stderr


def test_the_grace_period_follows_from_the_flags() -> None:
    pod = rendered(drainDelay=20, terminationTimeout=300)["Deployment"]["spec"]["template"]["spec"]
    flags = shlex.join(pod["containers"][0]["args"])
    assert "--drain-delay 20 --graceful-termination-timeout 300" in flags
    assert pod["terminationGracePeriodSeconds"] >= 20 + 300 + 10


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_start_may_take_as_long_for_the_server_as_for_the_cluster(nodes: int) -> None:
    objects = rendered(nodes=nodes, startTimeout=3600)
    pod = (
        objects["Deployment"]["spec"]["template"]
        if nodes == 1
        else objects["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    )
    (server,) = pod["spec"]["containers"]
    assert shlex.join(server["args"]).count("--shard-startup-timeout 3600") == 1
    probe = server["startupProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] == 3600


@pytest.mark.parametrize("secret", ["", "keys"])
@pytest.mark.parametrize("picked", [False, True])
def test_an_endpoint_picker_reads_metrics_without_a_key(picked: bool, secret: str) -> None:
    pool = {"enabled": picked, "endpointPicker": {"name": "picker", "port": 9002}}
    flags = container(rendered(apiKeySecret=secret, inferencePool=pool))["args"]
    assert ("--open-metrics" in flags) == (picked and bool(secret))


def test_adapters_have_flags_a_folder_and_a_key() -> None:
    assert "lora" not in shlex.join(container(rendered())["args"])
    values = {"start": ["a=org/a", "org/b@v2"], "existingClaim": "claim", "adminKeySecret": "admin", "hostMib": 1024}
    objects = rendered(adapters=values)
    server = container(objects)
    flags = shlex.join(server["args"])
    (mount,) = [each for each in server["volumeMounts"] if each["name"] == "adapters"]
    assert mount["readOnly"]
    assert f"--lora-adapters a=org/a,org/b@v2 --lora-dir {mount['mountPath']} --allow-adapter-loading" in flags
    assert "--adapter-host-mib 1024" in flags
    assert "--adapter-pages" not in flags
    key = {"secretKeyRef": {"name": "admin", "key": "admin-api-key"}}
    assert {"name": "ADMIN_API_KEY", "valueFrom": key} in server["env"]
    volumes = objects["Deployment"]["spec"]["template"]["spec"]["volumes"]
    assert {"claimName": "claim", "readOnly": True} in [each.get("persistentVolumeClaim") for each in volumes]


def test_devices_are_as_many_as_shards() -> None:
    server = container(rendered(gpus=4))
    assert server["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert server["args"][server["args"].index("--num-shard") + 1] == "4"


@pytest.mark.parametrize("secret", ["", "certificates"])
def test_several_nodes_are_a_group_of_which_the_first_takes_requests(secret: str) -> None:
    objects = rendered(
        nodes=2,
        nodesSecret=secret,
        gpus=8,
        autoscaling={"kind": "hpa"},
        networkPolicy={"enabled": True},
        podDisruptionBudget={"enabled": True},
    )
    assert "Deployment" not in objects
    group = objects["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
    assert (group["size"], group["restartPolicy"]) == (2, "RecreateGroupOnPodRestart")
    pod = group["workerTemplate"]
    for version in VERSIONS:
        as_deployment = {"selector": {"matchLabels": pod["metadata"]["labels"]}, "template": pod}
        kubernetes_validate.validate(
            {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}, "spec": as_deployment},
            version,
            strict=True,
        )
    (server,) = pod["spec"]["containers"]
    flags = shlex.join(server["args"])
    assert "--nnodes 2 --node-rank '$(LWS_WORKER_INDEX)' --master-addr '$(LWS_LEADER_ADDRESS)'" in flags
    assert ("--cluster-insecure" in flags) is not bool(secret)
    if secret:
        (mount,) = [each for each in server["volumeMounts"] if each["name"] == "nodes"]
        assert f"--cluster-cert {mount['mountPath']}/tls.crt" in flags
    assert {"name": "LOCAL_ADDR", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}} in server["env"]
    assert objects["Service"]["spec"]["selector"]["leaderworkerset.sigs.k8s.io/worker-index"] == "0"
    # Whichever pod is evicted, its whole group ends.
    assert objects["PodDisruptionBudget"]["spec"]["selector"] == objects["NetworkPolicy"]["spec"]["podSelector"]
    assert objects["HorizontalPodAutoscaler"]["spec"]["scaleTargetRef"]["kind"] == "LeaderWorkerSet"
    among = {"from": [{"podSelector": {"matchLabels": objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]}}]}
    assert among in objects["NetworkPolicy"]["spec"]["ingress"]


def test_ports_of_probes_and_services_are_those_of_the_server() -> None:
    objects = rendered(ports={"http": 8080, "management": 8081})
    server = container(objects)
    ports = {port["name"]: port["containerPort"] for port in server["ports"]}
    assert ports == {"http": 8080, "management": 8081}
    for flag, port in (("--port", "8080"), ("--prometheus-port", "8081")):
        assert server["args"][server["args"].index(flag) + 1] == port
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert server[probe]["httpGet"]["port"] == "management"
    assert objects["Service"]["spec"]["ports"][0]["targetPort"] == "http"


def test_rules_are_those_that_are_tested_beside_the_server() -> None:
    rules = yaml.safe_load((CHART.parents[1] / "prometheus" / "alerts.yaml").read_text())
    assert rendered(prometheusRule={"enabled": True})["PrometheusRule"]["spec"] == rules


def test_the_pod_is_not_root_and_its_root_is_read_only() -> None:
    objects = rendered()
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["automountServiceAccountToken"] is False
    assert container(objects)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    writable = {mount["mountPath"] for mount in container(objects)["volumeMounts"] if not mount.get("readOnly")}
    assert writable == {"/data", "/tmp", "/dev/shm"}


def test_selectors_find_the_pods() -> None:
    objects = rendered(podMonitor={"enabled": True}, podLabels={"team": "a"}, networkPolicy={"enabled": True})
    labels = objects["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
    for selector in (
        objects["Service"]["spec"]["selector"],
        objects["Deployment"]["spec"]["selector"]["matchLabels"],
        objects["PodMonitor"]["spec"]["selector"]["matchLabels"],
        objects["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels


def test_the_version_of_the_chart_is_that_of_the_server() -> None:
    manifest = (CHART.parents[2] / "launcher" / "Cargo.toml").read_text() + (
        CHART.parents[2] / "Cargo.toml"
    ).read_text()
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]
    assert re.search(rf'^version = "{re.escape(version)}"', manifest, re.MULTILINE)
