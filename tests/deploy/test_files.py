"""What docker/ holds fits the package, holds no secret and opens nothing to the world; the tools of
others: test_validators.py.
"""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

HOUSE = Path(__file__).resolve().parents[2]
DOCKER = HOUSE / "docker"
sys.path.append(str(DOCKER))
import check_steps  # noqa: E402 - a script, not a package

PROJECT: dict[str, Any] = tomllib.loads((HOUSE / "pyproject.toml").read_text())["project"]
CHART = DOCKER / "helm" / "es-queue"
#: Templates of the chart are YAML only once they are rendered.
YAML = sorted(
    path.relative_to(HOUSE) for path in DOCKER.rglob("*.yaml") if path.parent.name != "templates"
)
STAGES = check_steps.stages_of(check_steps.DOCKERFILE.read_text())
SERVICES = ("master", "worker", "redis", "classic")
#: What looks like a password, a key, a token or a digest of one.
SECRETS = re.compile(
    r"://[^/\s:@]+:[^/\s@]+@|AKIA[0-9A-Z]{16}|BEGIN [A-Z "
    r"]*PRIVATE|(?m:^\s*requirepass\s)|(?<![\w/.@-])(?=[\w-]*\d)(?=[\w-]*[A-Za-z])[\w-]{32,}(?![\w/.-])|#[0-9a-f]{64}"
)


class Loader(yaml.SafeLoader):
    """YAML with CloudFormation's own tags."""


def tagged(loader: Loader, suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        return {suffix: loader.construct_scalar(node)}
    return {
        suffix: loader.construct_sequence(node, deep=True)
        if isinstance(node, yaml.SequenceNode)
        else loader.construct_mapping(node, deep=True)
    }  # type: ignore[arg-type]


yaml.add_multi_constructor("!", tagged, Loader=Loader)


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.load_all((HOUSE / path).read_text(), Loader=Loader))


def committed() -> Iterator[Path]:
    """The files of docker/ as git has them, or would if they were added."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "docker"],
        cwd=HOUSE,
        capture_output=True,
        text=True,
        check=False,
    )
    found = listed.stdout.split() or [
        str(path.relative_to(HOUSE)) for path in DOCKER.rglob("*") if path.is_file()
    ]
    yield from (HOUSE / name for name in found)


def pins() -> dict[str, str]:
    lines = [
        line
        for line in (DOCKER / "constraints.txt").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    return {name.lower(): version for name, version in (line.split("==") for line in lines)}


def test_the_pinned_versions_are_within_the_ranges_of_pyproject() -> None:
    needed = [Requirement(text) for text in PROJECT["dependencies"]]
    optional = [
        one
        for texts in PROJECT["optional-dependencies"].values()
        for text in texts
        if (one := Requirement(text)).name.lower() in pins()
    ]
    assert len(needed) > 7 and len(optional) > 5
    assert [
        str(one)
        for one in (*needed, *optional)
        if pins().get(one.name.lower(), "none") not in one.specifier
    ] == []


def test_the_base_image_is_named_by_its_release_and_nothing_is_fetched_but_packages() -> None:
    text = check_steps.DOCKERFILE.read_text()
    assert re.search(r"^ARG BASE=debian:\d+\.\d+-slim$", text, re.MULTILINE)
    assert {stage.parent for stage in STAGES.values()} <= {*STAGES, check_steps.BASE}
    assert not re.search(r"https?://|curl|wget|^ADD", text, re.MULTILINE)


@pytest.mark.parametrize("target", SERVICES)
def test_every_image_has_a_user_of_its_own_a_health_check_and_a_first_process_that_reaps(
    target: str,
) -> None:
    settings = check_steps.settings_of(STAGES, target)
    assert settings.user == "10001:10001" and settings.entrypoint[:2] == ("tini", "--")
    assert "HEALTHCHECK" in {step.word for step in STAGES[target].steps}
    assert all(
        settings.environment[name] == "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    )


@pytest.mark.parametrize("target", ["worker", "classic", "models"])
def test_workers_in_images_run_no_job_of_rq(target: str) -> None:
    settings = check_steps.settings_of(STAGES, target)
    command = (*settings.entrypoint, *settings.command)
    assert command == ("tini", "--", "es-worker", "--workers", "1")


def test_no_file_of_the_deployment_holds_a_secret() -> None:
    texts = {
        path.name: re.sub(r"sha256:[0-9a-f]{64}", "", path.read_text()) for path in committed()
    }
    found = [
        (name, match[0][:20]) for name, text in texts.items() for match in SECRETS.finditer(text)
    ]
    assert found == []
    assert [path.name for path in committed() if path.suffix == ".password"] == []


# --- compose


COMPOSE = documents(Path("docker/compose.yaml"))[0]


def mounts(service: str) -> dict[str, tuple[str, str]]:
    """Of a service, by volume: where it is mounted, and how."""
    split = (volume.split(":") for volume in COMPOSE["services"][service]["volumes"])
    return {name: (place, *(mode or ["rw"])) for name, place, *mode in split}  # type: ignore[misc]


def test_no_compose_worker_can_write_what_the_master_reads() -> None:
    written = {name for name, (_, mode) in mounts("worker").items() if mode == "rw"}
    assert written and not written & mounts("master").keys()
    place, mode = mounts("worker")["master-cache"]
    environment = COMPOSE["services"]["worker"]["environment"]
    assert mode == "ro" and environment["ES_QUEUE_NOISE_DIR"] == f"{place}/noise"
    assert mounts("master")["master-cache"][0] == "/cache"


def test_compose_opens_the_page_to_this_host_and_nothing_else_and_lets_no_other_container_out() -> (
    None
):
    open_ports = {
        name: service["ports"]
        for name, service in COMPOSE["services"].items()
        if "ports" in service
    }
    assert open_ports == {"status": ["127.0.0.1:8080:8080"]}
    assert COMPOSE["networks"]["ring"] == {"internal": True}
    assert all(
        service.get("networks") == ["ring"] or service.get("network_mode") == "none"
        for name, service in COMPOSE["services"].items()
        if name != "status"
    )


def test_every_compose_service_is_sealed_and_sees_its_own_password_alone() -> None:
    for name, service in COMPOSE["services"].items():
        assert (
            service["read_only"]
            and service["cap_drop"] == ["ALL"]
            and "no-new-privileges:true" in service["security_opt"]
        ), name
        keys = [volume.split(":")[0] for volume in service["volumes"] if "-keys" in volume]
        assert len(keys) == (4 if name == "keys" else 1), name
        assert name == "keys" or keys == [f"{'viewer' if name == 'status' else name}-keys"], name


# --- Kubernetes


def kinds(kind: str) -> list[dict[str, Any]]:
    return [
        one
        for path in YAML
        if "kubernetes" in path.parts
        for one in documents(path)
        if one["kind"] == kind
    ]


def pods() -> list[dict[str, Any]]:
    return [
        one["spec"]["template"]["spec"]
        for kind in ("StatefulSet", "Job", "Deployment")
        for one in kinds(kind)
    ]


def test_every_pod_is_sealed_and_has_bounds() -> None:
    assert len(pods()) == 4
    for pod in pods():
        assert (
            pod["securityContext"]["runAsNonRoot"]
            and pod["securityContext"]["runAsUser"] == 10001
            and not pod["automountServiceAccountToken"]
        )
        for container in pod["containers"]:
            sealed = container["securityContext"]
            assert (
                sealed["readOnlyRootFilesystem"]
                and not sealed["allowPrivilegeEscalation"]
                and sealed["capabilities"] == {"drop": ["ALL"]}
            )
            assert (
                "memory" in container["resources"]["limits"]
                and "cpu" in container["resources"]["requests"]
            )


def test_what_nobody_allows_is_closed_and_only_pods_of_ours_reach_redis() -> None:
    policies = {one["metadata"]["name"]: one["spec"] for one in kinds("NetworkPolicy")}
    assert policies["nothing-else"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    assert all("ipBlock" not in str(policy) for policy in policies.values())
    assert kinds("Service")[0]["spec"]["clusterIP"] == "None"


@pytest.mark.parametrize("layer", ["base", "autoscale"])
def test_the_commands_that_a_kustomization_names_make_every_password_that_it_wants(
    layer: str, tmp_path: Path
) -> None:
    shutil.copytree(
        DOCKER / "kubernetes",
        tmp_path / "docker" / "kubernetes",
        ignore=shutil.ignore_patterns("keys"),
    )
    file = tmp_path / "docker" / "kubernetes" / layer / "kustomization.yaml"
    commands = [
        line.removeprefix("#   ")
        for line in file.read_text().splitlines()
        if line.startswith("#   ")
    ]
    assert commands[-1] == f"kubectl apply -k docker/kubernetes/{layer}"
    for command in commands[:-1]:
        words = [sys.executable if word == "python" else word for word in command.split()]
        subprocess.run(
            words,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(HOUSE)},
            check=True,
            capture_output=True,
            timeout=60,
        )
    wanted = [
        name
        for path in file.parent.parent.glob("*/kustomization.yaml")
        if path.parent.name in ("base", layer)
        for one in documents(path)[0]["secretGenerator"]
        for name in (path.parent / each for each in one["files"])
    ]
    assert wanted and [name for name in wanted if not name.is_file()] == []


# --- Redis' memory


def settings() -> dict[str, str]:
    """Of docker/redis.conf."""
    lines = [
        line
        for line in (DOCKER / "redis.conf").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    return {name: value for name, _, value in (line.partition(" ") for line in lines)}


def bytes_of(text: str) -> int:
    """Redis' 1gb, Compose's 2g and Kubernetes' 2Gi are powers of 1,024 alike."""
    number, unit = re.fullmatch(r"(\d+)([kmg])(?:b|i)?", text.lower()).groups()  # type: ignore[union-attr]
    return int(number) << {"k": 10, "m": 20, "g": 30}[unit]


def test_redis_refuses_writes_before_its_container_is_out_of_memory() -> None:
    limit = bytes_of(settings()["maxmemory"])
    (redis_pod,) = [pod for pod in pods() if pod["containers"][0]["name"] == "redis"]
    compose = COMPOSE["services"]["redis"]["mem_limit"]
    kubernetes = redis_pod["containers"][0]["resources"]["limits"]["memory"]
    # Rewriting the append-only file may copy what changes meanwhile.
    assert 2 * limit <= bytes_of(compose) and 2 * limit <= bytes_of(kubernetes)
    assert settings()["maxmemory-policy"] == "noeviction"
    value, clients = (
        bytes_of(settings()[name]) for name in ("proto-max-bulk-len", "maxmemory-clients")
    )
    assert value < clients < limit
    name, reply, *soft = settings()["client-output-buffer-limit"].split()
    assert name == "normal" and soft == ["0", "0"]
    assert bytes_of(reply) >= clients, "the master reads past any entry that a worker could send"
    assert limit + clients + bytes_of(reply) < min(bytes_of(compose), bytes_of(kubernetes))


# --- Helm and SkyPilot


def test_the_chart_has_the_version_of_the_package_and_the_bounds_of_the_manifests() -> None:
    chart, values = (
        documents(path.relative_to(HOUSE))[0]
        for path in (CHART / "Chart.yaml", CHART / "values.yaml")
    )
    assert chart["version"] == chart["appVersion"] == PROJECT["version"]
    limits = {
        pod["containers"][0]["name"]: pod["containers"][0]["resources"]
        for pod in pods()
        if pod["containers"][0]["name"] != "status"
    }
    named = {"redis": "redis", "master": "master", "workers": "worker"}
    assert {part: values[part]["resources"] for part in named} == {
        part: limits[name] for part, name in named.items()
    }


# --- AWS and systemd


def test_no_security_group_lets_the_world_in() -> None:
    resources = documents(Path("docker/aws/template.yaml"))[0]["Resources"]
    groups = {
        name: one["Properties"]
        for name, one in resources.items()
        if one["Type"] == "AWS::EC2::SecurityGroup"
    }
    ingress = [rule for group in groups.values() for rule in group.get("SecurityGroupIngress", [])]
    assert len(groups) == 2 and len(ingress) == 1 and "SourceSecurityGroupId" in ingress[0]


def test_the_aws_template_launches_redis_a_master_and_a_group_of_workers_that_find_it() -> None:
    resources = documents(Path("docker/aws/template.yaml"))[0]["Resources"]
    master, group = resources["Master"]["Properties"], resources["SpotWorkers"]["Properties"]
    start = master["UserData"]["Fn::Base64"]["Sub"]
    assert "ExecStart=/usr/bin/valkey-server /etc/es-queue/redis.conf\n" in start
    assert "-m master.cli.supervised --run ${AWS::StackName} --env ${Environment} " in start
    assert "systemctl enable --now es-redis es-master" in start
    assert master["NetworkInterfaces"][0]["NetworkInterfaceId"] == {"Ref": "MasterInterface"}
    assert group["DesiredCapacity"] == {"Ref": "Workers"}
    launched = group["MixedInstancesPolicy"]["LaunchTemplate"]["LaunchTemplateSpecification"]
    assert launched["LaunchTemplateId"] == {"Ref": "WorkerTemplate"}
    data = resources["WorkerTemplate"]["Properties"]["LaunchTemplateData"]
    begin = data["UserData"]["Fn::Base64"]["Sub"]
    assert "RQ_REDIS_URL=redis://worker@${MasterInterface.PrimaryPrivateIpAddress}\n" in begin
    assert "ExecStart=/opt/es-queue/bin/es-worker\n" in begin
    assert "systemctl enable --now es-worker" in begin


UNITS = {"master": "es-master@.service", "worker": "es-worker.service"}


def service_of(name: str) -> dict[str, str]:
    unit = configparser.RawConfigParser(strict=False, comment_prefixes="#")
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(DOCKER / "systemd" / name)
    return dict(unit["Service"])


def test_master_and_workers_have_an_account_each_and_share_no_folder() -> None:
    accounts = re.findall(
        r"^u (\S+) - ", (DOCKER / "systemd" / "es-queue.conf").read_text(), re.MULTILINE
    )
    services = {part: service_of(name) for part, name in UNITS.items()}
    assert accounts == [f"es-queue-{part}" for part in UNITS]
    for part, service in services.items():
        assert service["User"] == service["StateDirectory"] == f"es-queue-{part}"
        assert (
            service["WorkingDirectory"] == f"/var/lib/es-queue-{part}"
            and "ReadWritePaths" not in service
        )
        assert (service["UMask"], service["StateDirectoryMode"]) == ("0077", "0700")


@pytest.mark.parametrize("name", UNITS.values())
def test_units_have_no_capability_and_a_list_of_system_calls(name: str) -> None:
    service = service_of(name)
    assert service["CapabilityBoundingSet"] == "" and service["NoNewPrivileges"] == "yes"
    assert "SystemCallFilter=@system-service\n" in (DOCKER / "systemd" / name).read_text()
    assert "ProcSubset" not in service, (
        "without /proc/cpuinfo the arithmetic, and so the digest, is another"
    )
