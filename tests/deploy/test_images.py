"""The images of docker/Dockerfile, whose steps ``docker/check_steps.py build`` has carried out in
the folder that ES_QUEUE_IMAGES names.

As root on Linux: ES_QUEUE_IMAGES=/tmp/images pytest tests/deploy/test_images.py
"""

from __future__ import annotations

import os
import urllib.request
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.containers import Cluster, Container
from tests.faults.servers import free_port
from tests.integration.processes import WALKER, flags, wait_for

IMAGES = Path(os.environ.get("ES_QUEUE_IMAGES", "/nowhere"))
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (IMAGES / "worker").is_dir(),
        reason="ES_QUEUE_IMAGES names no folder that docker/check_steps.py has built",
    ),
]
VALUES: dict[str, Any] = {**WALKER, "generations": 40}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    own = Cluster(IMAGES, tmp_path)
    yield own
    own.end()


@cache
def quiet(folder: Path) -> str:
    """The digest of the run in one container that nothing befalls, with its private server and one
    worker.
    """
    own = Cluster(IMAGES, folder)
    volumes = [f"{folder}/runs:/runs", f"{folder}/cache:/cache"]
    alone = own.start(
        "master",
        volumes,
        "--run",
        "quiet",
        "--workers",
        1,
        "--json",
        *flags(VALUES),
        ES_QUEUE_REDIS_PASSWORD_FILE="",
    )
    assert alone.process.wait(250) == 0, alone.said()[-2000:]
    own.end()
    return str(alone.events("summary")[-1]["digest"])


@pytest.fixture
def quiet_digest(tmp_path_factory: pytest.TempPathFactory) -> str:
    return quiet(tmp_path_factory.getbasetemp() / "quiet")


def trained(cluster: Cluster) -> Container:
    return cluster.master("--run", "walk", "--json", *flags(VALUES))


def advanced(cluster: Cluster, generations: int = 3) -> None:
    """Wait until so many more generations were published."""
    seen = cluster.seen("walk")
    first = seen.generation()
    wait_for(
        lambda: seen.generation() >= first + generations,
        f"generation {first + generations}; {[one.said()[-600:] for one in cluster.started]}",
        60,
    )


def digest_of(master: Container) -> str:
    assert master.process.wait(200) == 0, master.said()[-2000:]
    return str(master.events("summary")[-1]["digest"])


def kill_worker(cluster: Cluster, _: Container, worker: Container, master: Container) -> Container:
    worker.kill()
    advanced(cluster)
    cluster.worker()
    return master


def kill_master(cluster: Cluster, _: Container, worker: Container, master: Container) -> Container:
    master.kill()
    return trained(cluster)


def stop_master(cluster: Cluster, _: Container, worker: Container, master: Container) -> Container:
    assert master.stop() == 130, "it was told to end by the supervisor, which is to start it again"
    return trained(cluster)


def kill_redis(
    cluster: Cluster, server: Container, worker: Container, master: Container
) -> Container:
    server.kill()
    cluster.redis()
    return master


@pytest.mark.parametrize("befall", [kill_worker, kill_master, stop_master, kill_redis])
def test_whatever_container_is_killed_the_parameters_are_those_of_a_quiet_run(
    cluster: Cluster,
    quiet_digest: str,
    befall: Callable[[Cluster, Container, Container, Container], Container],
) -> None:
    server = cluster.redis()
    workers = [cluster.worker(), cluster.worker()]
    master = trained(cluster)
    advanced(cluster)
    master = befall(cluster, server, workers[0], master)
    advanced(cluster)
    assert digest_of(master) == quiet_digest


def test_the_packages_of_old_train_to_the_same_parameters(
    cluster: Cluster, quiet_digest: str
) -> None:
    if not (IMAGES / "classic").is_dir():
        pytest.skip("the target classic has not been built")
    cluster.redis()
    cluster.worker("classic")
    cluster.worker("classic")
    assert digest_of(trained(cluster)) == quiet_digest


def test_no_password_stands_in_an_image_or_in_what_containers_print(cluster: Cluster) -> None:
    server, worker, master = cluster.redis(), cluster.worker(), trained(cluster)
    advanced(cluster)
    for one in (server, worker, master):
        assert not any(
            cluster.password(user) in one.said() for user in ("master", "worker", "viewer")
        )
    assert not [
        path
        for name in ("master", "worker", "redis")
        for path in (IMAGES / name).rglob("*.password")
    ]


@pytest.mark.parametrize(("part", "code"), [("worker", 0), ("master", 0)])
def test_health_checks_say_who_is_well(cluster: Cluster, part: str, code: int) -> None:
    server = cluster.redis()
    cluster.worker()
    trained(cluster)
    advanced(cluster)
    check = "python3 /usr/local/lib/es-queue/healthy.py"
    words = ("--run", "walk")
    volumes = [f"{cluster.folder}/keys/{part}:/keys"]

    def checked() -> int:
        # The check reads the run from the first process of its container, which is the check itself
        # here.
        found = cluster.start(
            part,
            volumes,
            part,
            *words,
            entrypoint=check,
            RQ_REDIS_URL=f"redis://{part}@127.0.0.1:{cluster.port}",
        )
        return found.process.wait(60)

    assert checked() == code, cluster.started[-1].said()
    server.kill()
    assert checked() == 1
    assert "Redis" in cluster.started[-1].said()


def test_the_page_is_served_by_the_user_who_may_only_look(cluster: Cluster) -> None:
    cluster.redis()
    cluster.worker()
    trained(cluster)
    advanced(cluster)
    address = f"127.0.0.1:{free_port()}"
    volumes = [f"{cluster.folder}/keys/viewer:/keys"]
    url = f"redis://viewer@127.0.0.1:{cluster.port}"
    cluster.start(
        "master",
        volumes,
        "--web",
        address,
        entrypoint="tini -- es-status",
        RQ_REDIS_URL=url,
        ES_QUEUE_REDIS_PASSWORD_FILE="/keys/viewer.password",
        ES_QUEUE_WEB_TOKEN_FILE="/keys/web.token",
    )
    token = (cluster.folder / "keys/viewer/web.token").read_text().strip()
    scrape = urllib.request.Request(
        f"http://{address}/metrics", headers={"Authorization": f"Bearer {token}"}
    )

    def told() -> str:
        try:
            with urllib.request.urlopen(scrape, timeout=5) as reply:
                return str(reply.read().decode())
        except OSError:
            return ""

    wait_for(lambda: 'run="walk"' in told(), "the page knows the run")
