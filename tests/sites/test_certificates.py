"""Certificates that were mixed up, and clocks that differ: who says so, where and with which remedy."""

import shutil
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')
from typer.testing import CliRunner

from fedweave.cli import app
from fedweave.errors import UserError
from fedweave.sites.flare.gatekeeper import load_revoked
from fedweave.sites.flare.provision import provision
from fedweave.sites.operation import running, status
from fedweave.sites.operation.project import Project, administer, greet, greet_patiently, read_project, rejection
from tests import commands
from tests.refusals import check_facts, refusal
from tests.sites.projects import SITES
from tests.sites.test_project import certificate

runner = CliRunner()
Answer = Callable[[socket.socket], None]


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second project of the same names."""
    provision(into := tmp_path_factory.mktemp("foreign") / "project", SITES, "localhost", 4711)
    return into


@contextmanager
def listening(project: Path, answer: Answer) -> Iterator[Project]:
    """The project, as whose server a thread gives this `answer` to every connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    plain, _ = server.accept()
                except OSError:
                    return
                with plain:
                    answer(plain)

        threading.Thread(target=serve, daemon=True).start()
        about = replace(read_project(project), host="localhost", port=server.getsockname()[1])
        about.save(project)
        yield about
        server.shutdown(socket.SHUT_RDWR)


def over_tls(pair: tuple[Path, Path], root: Path) -> Answer:
    """As NVFlare's server does, which has this certificate and key and trusts that authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    context.load_verify_locations(root)
    context.verify_mode = ssl.CERT_REQUIRED
    load_revoked(context, root.parent)

    def answer(plain: socket.socket) -> None:
        try:
            with context.wrap_socket(plain, server_side=True) as secure:
                secure.recv(100)
                secure.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        except (ssl.SSLError, OSError):
            return

    return answer


def as_server(kit: Path, root: Path | None = None) -> Answer:
    startup = kit / "server/startup"
    return over_tls((startup / "server.crt", startup / "server.key"), root or startup / "rootCA.pem")


def kit(project: Path, name: str = "bank-a") -> Path:
    return project / name / "startup/client.crt"


def mix(project: Path, name: str, other: Path) -> None:
    """Put another folder's `startup` in the place of a member's."""
    shutil.copytree(other / "startup", project / name / "startup", dirs_exist_ok=True)


def test_who_belongs_to_the_project_is_taken(project: Path) -> None:
    with listening(project, as_server(project)) as about:
        greet(kit(project), about)
        greet(kit(project, "admin"), about)
        assert rejection(project / "bank-b", about) == ""


def test_a_kit_of_another_project_is_named(project: Path, foreign: Path) -> None:
    with listening(project, as_server(project)) as about, pytest.raises(UserError) as error:
        greet(kit(foreign), about)
    check_facts(str(error.value), f"localhost:{about.port}", f"{kit(foreign).parent}")


def test_a_server_that_does_not_take_a_good_certificate_is_named(project: Path, foreign: Path) -> None:
    """Its clock is wrong, or its folder has another authority's certificate beside its own."""
    wrong = as_server(project, foreign / "server/startup/rootCA.pem")
    with listening(project, wrong) as about, refusal("certificate.refused", "server's"):
        greet(kit(project), about)


@pytest.mark.parametrize(("closes", "seconds", "refused"), [(2, 6.0, False), (99, 1.0, True)])
def test_a_server_that_is_starting_is_asked_again(project: Path, closes: int, seconds: float, refused: bool) -> None:
    """It listens, and ends connections for a moment; one that always does refuses the certificate."""
    ready, connections = as_server(project), list[int]()

    def answer(plain: socket.socket) -> None:
        connections.append(1)
        if len(connections) > closes:
            ready(plain)

    with listening(project, answer) as about:
        if refused:
            with refusal("certificate.refused", "started"):
                greet_patiently(kit(project), about, seconds)
            return
        greet_patiently(kit(project), about, seconds)
        assert len(connections) == closes + 1


@pytest.mark.parametrize(("first", "last"), [(-9, -1), (1, 9)])
def test_a_servers_certificate_that_is_not_valid_by_the_clock_here_is_named(
    project: Path, tmp_path: Path, first: int, last: int
) -> None:
    now = datetime.now(UTC)
    pair = certificate(project / "authority", "server", now + timedelta(first), now + timedelta(last), tmp_path)
    answer = over_tls(pair, project / "server/startup/rootCA.pem")
    with listening(project, answer) as about, refusal("certificate.not-valid", "machine's clock, 20"):
        greet(kit(project), about)


def test_what_is_no_server_is_named_and_one_that_says_nothing_is_not(project: Path) -> None:
    with (
        listening(project, lambda plain: plain.sendall(b"220 mail\r\n")) as about,
        pytest.raises(UserError, match=f"localhost:{about.port} is not a server of a project"),
    ):
        greet(kit(project), about)
    over = threading.Event()
    with listening(project, lambda plain: over.wait(5) and None) as about:
        greet(kit(project), about, 0.2)
        over.set()
    with refusal("host.no-connection", "takes no connection"):
        greet(kit(project), about)
    with refusal("host.no-name", "project.json: 'no.invalid'"):
        greet(kit(project), replace(about, host="no.invalid"))


def _foreign(project: Path, foreign: Path) -> str:
    mix(project, "admin", foreign / "admin")
    return "is of another project than"


def _expired(project: Path, foreign: Path) -> str:
    now = datetime.now(UTC)
    made = certificate(project / "authority", "admin", now - timedelta(9), now - timedelta(1), project)
    for path in made:
        path.rename(project / "admin/startup" / f"client{path.suffix}")
    return "admin/startup/client.crt is valid from"


def _anothers(project: Path, foreign: Path) -> str:
    mix(project, "admin", project / "bank-a")
    return "is the certificate of bank-a, but must be the certificate of admin@fedweave.org"


@pytest.mark.parametrize("spoil", [_foreign, _expired, _anothers])
def test_an_administrator_who_is_barred_hears_why_at_once_with_exit_code_2(
    project: Path, foreign: Path, tmp_path: Path, spoil: Callable[[Path, Path], str]
) -> None:
    """Each was "the server does not answer: start it", after 15 seconds."""
    said = spoil(project, foreign)
    config = tmp_path / "c.toml"
    config.write_text('[data]\nname = "digits"\n')
    commands = (["run", str(config), "--sites", str(project), "--out", str(tmp_path / "out")], ["status", str(project)])
    with listening(project, as_server(project)):
        for words in commands:
            done = runner.invoke(app, ["sites", *words])
            assert done.exit_code == 2
            assert said in " ".join(done.stderr.split())
    assert running.administer is administer  # which `predict` has, too
    check_facts(done.stdout, "bank-a:")


def test_a_server_that_was_not_started_is_missed_at_once_with_the_command_for_it(project: Path) -> None:
    with refusal("host.no-connection", "machine:", "--only") as error:
        administer(project).__enter__()
    assert not isinstance(error.value, UserError)


def test_a_site_of_another_project_is_not_started_and_found_by_check(project: Path, foreign: Path) -> None:
    for name in ("admin", "authority", *SITES[1:]):
        shutil.rmtree(project / name)
    server = shutil.move(project / "server", project.with_name("elsewhere") / "server")
    mix(project, "bank-a", foreign / "bank-a")
    with listening(project, as_server(Path(server).parent)):
        for command in ("check", "start"):
            done = commands.run("sites", command, project, code=2)
            check_facts(done, "another project", "bank-a")
    assert not (project / "bank-a/process.pid").exists()


def test_a_site_with_anothers_certificate_is_not_started_and_found_by_check_and_status(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVFlare has it log in again and again, until its process ends."""
    mix(project, "bank-b", project / "bank-a")
    said = "is the certificate of bank-a, but must be the certificate of bank-b"
    monkeypatch.setattr(status, "ask", lambda *about: status.Lights(set(), set()))
    for command, code in (("check", 2), ("start", 2), ("status", 1)):
        done = runner.invoke(app, ["sites", command, str(project)])
        assert done.exit_code == code
        check_facts(done.output, said)
    assert not list(project.glob("*/process.pid"))
