"""The steps of docs/three-hosts.md: every host a network namespace of its own, with its own folder.

The namespaces form a star: each has one cable, to the server's. So a site cannot reach another one, and the test also
shows that nothing but outgoing connections to the server is needed.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')

from fedweave.experiment.config import dumps
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import CHECKPOINT
from fedweave.sites.operation.processes import members
from tests.contract.federations import distance
from tests.sites.projects import SITES, experiment, simulated

pytestmark = pytest.mark.slow
COMMAND = (sys.executable, "-m", "fedweave")  # whether or not its folder is on the path
NAME, PORT = "fl.example.org", "8002"
HOSTS = {"server": ["server"], "admin": ["admin"], **{site: [site] for site in SITES}}  # and the folders that each has


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


class Network:
    """Namespaces named after this process, so that two runs of the tests do not meet."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.spaces = folder, {host: f"fw{os.getpid()}-{host}" for host in HOSTS}

    def build(self) -> None:
        for host, space in self.spaces.items():
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
            (self.folder / host).mkdir()
        server = self.spaces["server"]
        for at, (host, space) in enumerate(self.spaces.items()):
            address = f"198.18.{at}.1"
            (self.folder / host / "hosts").write_text(f"127.0.0.1 localhost\n{address} {NAME}\n")
            if host == "server":
                ip("-n", server, "address", "add", f"{address}/32", "dev", "lo")
                continue
            ip("link", "add", "eth0", "netns", space, "type", "veth", "peer", "name", f"to{at}", "netns", server)
            for end, cable, last in ((space, "eth0", 2), (server, f"to{at}", 1)):
                ip("-n", end, "address", "add", f"198.18.{at}.{last}/24", "dev", cable)
                ip("-n", end, "link", "set", cable, "up")

    def remove(self) -> None:
        for space in self.spaces.values():
            with suppress(subprocess.CalledProcessError):
                ip("netns", "del", space)

    def on(self, host: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the host's folder; it sees only that host's network, and the host's own /etc/hosts."""
        folder = self.folder / host
        inside = f'mount --bind {folder}/hosts /etc/hosts && exec "$@"'
        command = ["ip", "netns", "exec", self.spaces[host], "sh", "-c", inside, "sh", *words]
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)

    def fedweave(self, host: str, *words: str) -> str:
        done = self.on(host, *COMMAND, *words)
        assert done.returncode == 0, f"{host}: fedweave {' '.join(words)}: {done.stderr}"
        return done.stdout


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and the command `ip` (iproute2), to make network namespaces")
    made = Network(tmp_path_factory.mktemp("hosts"))
    try:
        try:
            made.build()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this machine does not let us make network namespaces: {error.stderr.strip()}")
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="module")
def federation(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Network]:
    """A project with digits split over three sites, handed out to the hosts and started, sites first."""
    operator = tmp_path_factory.mktemp("operator")
    (operator / "c.toml").write_text(dumps(experiment().plain()))
    words = ["init", "bank", "--sites", ",".join(SITES), "--host", NAME, "--port", PORT, "--split", "c.toml"]
    subprocess.run([*COMMAND, "sites", *words], cwd=operator, check=True, capture_output=True)
    for host, folders in HOSTS.items():
        (network.folder / host / "bank").mkdir()
        shutil.copy(operator / "bank/project.json", network.folder / host / "bank")
        for folder in folders:
            shutil.move(operator / "bank" / folder, network.folder / host / "bank" / folder)
    try:
        for host in (*SITES, "server"):
            network.fedweave(host, "sites", "start", "bank", "--only", host, "--threads", "1")
        yield network
    finally:
        for host in (*SITES, "server"):
            for member in members(network.folder / host / "bank"):
                member.stop()


@pytest.mark.parametrize("algorithm", ["fedavg", "dfedgnn"])
def test_hosts_that_reach_the_server_alone_give_the_simulations_numbers(federation: Network, algorithm: str) -> None:
    """dfedgnn: what sites send to each other is relayed, for there is no way from one to another."""
    config, admin = experiment(algorithm, rounds=2), federation.folder / "admin"
    (admin / f"{algorithm}.toml").write_text(dumps(config.plain()))
    assert "unreachable" in federation.on("bank-a", "ip", "route", "get", "198.18.3.2").stderr
    away = "its folder is not on this machine"
    wanted, said = {f"● server: answers; {away}", *(f"● {site}: connected; {away}" for site in SITES)}, set[str]()
    for _ in range(10):  # a site that has just started may not have answered the server yet
        said = set(federation.on("admin", *COMMAND, "sites", "status", "bank").stdout.splitlines())
        if wanted <= said:
            break
    assert wanted <= said
    federation.fedweave("admin", "sites", "run", f"{algorithm}.toml", "--sites", "bank", "--out", algorithm)
    reached, (expected, _) = Checkpoint.load(admin / algorithm / CHECKPOINT), simulated(config)
    assert distance(reached.state, expected.state) <= 1e-5
    assert reached.summary == pytest.approx(expected.summary, abs=1e-5)
