"""TLS with an authority of one's own: whole runs, client certificates, and one clear sentence for
each way to get it wrong.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from es_queue.errors import RedisError
from es_queue.protocol.connection import (
    client_from_url,
    redacted_url,
    validate_server,
)
from master.status.snapshot import RedisReader
from tests.abuse.servers import SYSTEM, WHEEL, needs_system_server, serving
from tests.integration.processes import BIN, CARTPOLE, Processes, Seen, flags, quiet_digest
from tests.leaks import simple_password

trustme = pytest.importorskip("trustme")
pytestmark = needs_system_server

VALUES = {**CARTPOLE, "generations": 4}


@dataclass
class Papers:
    """An authority, another one, and what they have signed."""

    folder: Path

    def __getitem__(self, name: str) -> Path:
        return self.folder / name

    def url(
        self, port: int, authority: str = "ca.pem", own: str = "", who: str = "127.0.0.1"
    ) -> str:
        mine = f"&ssl_certfile={self[own + '.pem']}&ssl_keyfile={self[own + '.key']}" if own else ""
        return f"rediss://{who}:{port}?ssl_ca_certs={self[authority]}{mine}"

    def settings(
        self, port: int, server: str = "server", clients: str = "no"
    ) -> tuple[object, ...]:
        return (
            "--tls-port",
            port,
            "--tls-ca-cert-file",
            self["ca.pem"],
            "--tls-cert-file",
            self[f"{server}.pem"],
            "--tls-key-file",
            self[f"{server}.key"],
            "--tls-auth-clients",
            clients,
        )


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    found = Papers(tmp_path_factory.mktemp("papers"))
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(found["ca.pem"])
    other.cert_pem.write_to_path(found["other.pem"])
    issued = {
        "server": authority.issue_cert("127.0.0.1", "localhost"),
        "elsewhere": authority.issue_cert("elsewhere.example"),
        "client": authority.issue_cert("client@example.com"),
        "stranger": other.issue_cert("client@example.com"),
    }
    for name, one in issued.items():
        one.private_key_pem.write_to_path(found[f"{name}.key"])
        found[f"{name}.pem"].write_bytes(b"".join(part.bytes() for part in one.cert_chain_pems))
    return found


@pytest.fixture
def tls(papers: Papers, tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Starts servers that speak TLS alone; gives the port."""
    from contextlib import ExitStack

    from tests.faults.servers import free_port

    with ExitStack() as stack:

        def start(*more: object, **about: str) -> int:
            folder = tmp_path / f"server-{free_port()}"
            return stack.enter_context(
                serving(SYSTEM, folder, *papers.settings(free_port(), **about), *more, port=0)
            )

        yield start


@pytest.mark.parametrize("command", ["rq worker", "es-worker"])
def test_a_whole_run_goes_over_tls_with_a_password_and_a_clients_certificate(
    command: str, tls: Callable[..., int], papers: Papers, processes: Processes
) -> None:
    password = simple_password("tls")
    url = papers.url(tls(clients="yes"), own="client")
    with client_from_url(url) as client:
        client.config_set("requirepass", password)
    secret = url.replace("rediss://", f"rediss://:{password}@")
    program, *words = command.split()
    worker = processes.start(BIN / program, *words, RQ_REDIS_URL=secret)
    master = processes.start(
        BIN / "es-master",
        *flags(VALUES),
        "--run",
        "tls",
        "--json",
        RQ_REDIS_URL=url,
        ES_QUEUE_REDIS_PASSWORD=password,
    )
    assert master.wait() == 0, master.said()
    assert master.events("summary")[-1]["digest"] == quiet_digest(VALUES)
    assert master.events("note") == [] and password not in master.said()
    for words in (("tls",), ("--doctor",), ("tls", "--keys")):
        status = processes.start(
            BIN / "es-status", *words, RQ_REDIS_URL=url, ES_QUEUE_REDIS_PASSWORD=password
        )
        assert status.wait() in (0, 10), status.said()
        assert password not in status.said()
    with client_from_url(secret) as client:
        assert Seen(client, "tls").failed_jobs() == []
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0 and password not in worker.said()


ADVICE = "use rediss:// for a port with TLS and redis:// for one without"


def refused(url: str) -> str:
    """The sentence with which es-master and es-status refuse a server; both must say the same."""
    with client_from_url(url) as client, pytest.raises(RedisError) as unfit:
        validate_server(client, redacted_url(url))
    server = RedisReader(url, "")
    with pytest.raises(RedisError) as unread:
        server.list_runs()
    server.close()
    assert str(unfit.value) == str(unread.value)
    return str(unfit.value)


def test_each_wrong_way_to_a_tls_server_is_one_sentence_that_says_what_to_change(
    tls: Callable[..., int], papers: Papers
) -> None:
    port, strict, elsewhere = tls(), tls(clients="yes"), tls(server="elsewhere")
    papers_of = f"rediss://127.0.0.1:{port}?ssl_ca_certs={papers['ca.pem']}&ssl_certfile="
    for url in (
        papers.url(port, "other.pem"),
        f"rediss://127.0.0.1:{port}",
        f"redis://127.0.0.1:{port}",
        papers.url(elsewhere),
        papers.url(strict),
        papers.url(strict, own="stranger"),
        f"{papers_of}{papers['client.pem']}&ssl_keyfile={papers['stranger.key']}",
        papers.url(port, "client.key"),
    ):
        assert ADVICE in refused(url), url


def test_tls_to_a_port_that_speaks_none_is_one_sentence(papers: Papers, tmp_path: Path) -> None:
    with serving(WHEEL, tmp_path / "server") as port:
        assert ADVICE in refused(papers.url(port))


def test_a_certificate_that_is_not_looked_at_is_warned_of(
    tls: Callable[..., int], papers: Papers, processes: Processes
) -> None:
    values = {**VALUES, "generations": 1}
    url = f"rediss://127.0.0.1:{tls()}?ssl_cert_reqs=none"
    processes.worker(url)
    for more, count in (((), 1), (("--insecure",), 0)):
        master = processes.start(
            BIN / "es-master",
            *flags(values),
            "--run",
            f"tls{count}",
            "--json",
            *more,
            RQ_REDIS_URL=url,
        )
        assert master.wait() == 0, master.said()
        assert master.err.read_text().count("is not verified") == count
        assert (
            len([one for one in master.events("note") if "is not verified" in one["text"]]) == count
        )
