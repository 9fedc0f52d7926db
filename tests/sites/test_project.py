"""Provisioning, certificates, site files and what the commands refuse."""

import json
import shutil
import socket
import ssl
import subprocess
import sys
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

pytest.importorskip("nvflare", reason='needs NVFlare: pip install "fedweave[flare]"')
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from nvflare.apis.app_validation import AppValidationKey
from nvflare.collab.runtime.controller import CollabController
from nvflare.fuel.f3.cellnet.credential_manager import CredentialManager
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.endpoint import Endpoint
from nvflare.fuel.sec.authz import AuthorizationService
from nvflare.private.fed.utils.app_authz import AppAuthzService
from nvflare.security.security import FLAuthorizer

from fedweave.errors import UserError
from fedweave.experiment.config import dumps
from fedweave.sites.flare.admin import write_job
from fedweave.sites.flare.provision import USER, check_names, provision
from fedweave.sites.flare.requests import digest_of
from fedweave.sites.flare.sitefile import read_site_file
from fedweave.sites.operation import running as running_module
from fedweave.sites.operation.certificates import certificate as read_certificate
from fedweave.sites.operation.certificates import check_certificate
from fedweave.sites.operation.experiments import for_sites
from fedweave.sites.operation.processes import SiteProcess, members
from fedweave.sites.operation.project import Project, administer, read_project
from fedweave.sites.operation.running import run, sites_of
from tests import commands
from tests.refusals import check_facts, refusal
from tests.sites.projects import SITES, Ran, Refused, experiment, make_project, processes, simulated, until


def certificate(authority: Path, name: str, first: datetime, last: datetime, into: Path) -> tuple[Path, Path]:
    """A client's certificate and key, signed by the project's own authority, valid from `first` to `last`."""
    told = json.loads((authority / "cert.json").read_text())
    root = x509.load_pem_x509_certificate(told["root_cert"].encode())
    signer = serialization.load_pem_private_key(told["root_pri_key"].encode(), None)
    key = rsa.generate_private_key(65537, 2048)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(root.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(first)
        .not_valid_after(last)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(root.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    paths = into / f"{name}.crt", into / f"{name}.key"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, plain)
    )
    return paths


def accepted(project: Path, pair: tuple[Path, Path] | None) -> bool:
    """Whether the server goes on after the TLS handshake of a client with this certificate."""
    about = read_project(project)
    context = ssl.create_default_context(cafile=str(project / "bank-a/startup/rootCA.pem"))
    if pair is not None:
        context.load_cert_chain(*map(str, pair))
    try:
        with (
            socket.create_connection(("127.0.0.1", about.port), timeout=5) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secure,
        ):
            secure.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            return secure.recv(1) != b""
    except (ssl.SSLError, ConnectionError):
        return False


def test_only_the_projects_own_valid_certificates_pass(running: Path, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    own = running / "bank-a/startup/client.crt", running / "bank-a/startup/client.key"
    expired = certificate(running / "authority", "bank-x", now - timedelta(9), now - timedelta(1), tmp_path)
    fresh = certificate(running / "authority", "bank-y", now - timedelta(1), now + timedelta(1), tmp_path)
    provision(tmp_path / "other", ["bank-a"], "localhost", 1)
    foreign = tmp_path / "other/bank-a/startup/client.crt", tmp_path / "other/bank-a/startup/client.key"
    assert [accepted(running, pair) for pair in (own, fresh, expired, foreign, None)] == [True, True] + [False] * 3
    with refusal("certificate.not-valid", "bank-x.crt", "now:", "project's"):
        check_certificate(expired[0])
    check_certificate(fresh[0])


def test_a_clock_that_is_slow_by_hours_does_for_a_new_project(provisioned: Path) -> None:
    crt = provisioned / "bank-a/startup/client.crt"
    own = [read_certificate(crt), read_certificate(crt.with_name("rootCA.pem"))]
    made = datetime.fromtimestamp(crt.stat().st_mtime, UTC)
    assert all(timedelta(hours=23) < made - one.not_valid_before_utc < timedelta(hours=25) for one in own)
    assert all(one.not_valid_after_utc - made > timedelta(days=358) for one in own)


def test_a_certificate_of_tomorrow_is_blamed_on_the_clock_to_the_minute(provisioned: Path, tmp_path: Path) -> None:
    soon = datetime.now(UTC) + timedelta(minutes=5)
    early, _ = certificate(provisioned / "authority", "bank-z", soon, soon + timedelta(1), tmp_path)
    with pytest.raises(UserError, match=rf"from {soon:%Y-%m-%d %H:%M} to .* clock says \d{{4}}-.* UTC\. Correct this"):
        check_certificate(early)


INTRUDER = """
import json, os, sys, time
from nvflare.fuel.f3.cellnet.core_cell import CoreCell, Message, MessageHeaderKey
files = {"ca_cert": "rootCA.pem", "client_cert": "client.crt", "client_key": "client.key"}
found = []
for number, (port, startup, member) in enumerate(json.loads(sys.argv[1])):
    credentials = {key: f"{startup}/{file}" for key, file in files.items()} if startup else {}
    url = f"{'stcp' if startup else 'tcp'}://localhost:{port}"
    cell = CoreCell(f"{member}.j{number}", "", bool(startup), credentials, parent_url=url)
    cell.start()
    deadline = time.monotonic() + 2
    while not cell.is_backbone_ready() and time.monotonic() < deadline:
        time.sleep(0.05)
    connected = cell.is_backbone_ready()
    reply = cell.send_request("_net_manager", "echo", member, Message(payload="?"), timeout=2) if connected else None
    found.append([connected, reply is not None and reply.get_header(MessageHeaderKey.RETURN_CODE) == "ok"])
print(json.dumps(found), flush=True)
os._exit(0)
"""


def inner_ports(project: Path, member: str) -> list[int]:
    """The ports that the server or a site listens on for its own jobs."""
    process, outer = psutil.Process(SiteProcess(project / member).pid()), read_project(project).port

    def listening() -> list[int]:
        found = (each.laddr.port for each in process.net_connections("tcp") if each.status == "LISTEN")
        return [port for port in found if port != outer]

    return until(listening)


def as_jobs(project: Path, attempts: list[tuple[str, str]]) -> list[list[bool]]:
    """Whether a process that says that it is a job of a member is connected to it, and gets an answer. attempts: (the
    member, whose certificate the process has, if any)."""
    told = [
        (port, startup and str(project / startup / "startup"), member)
        for member, startup in attempts
        for port in inner_ports(project, member)
    ]
    code = [sys.executable, "-c", INTRUDER, json.dumps(told)]
    done = subprocess.run(code, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_what_a_member_listens_on_for_its_jobs_takes_its_own_certificate_alone(running: Path) -> None:
    """A process without one could have a site execute calls, on any machine that more people use."""
    attempts = [("bank-a", "bank-a"), ("bank-a", "bank-b"), ("bank-a", ""), ("server", "")]
    own, others, *without = as_jobs(running, attempts)
    assert own == [True, True]
    assert not others[1]
    assert without == [[False, False]] * 2


def test_the_server_of_a_trial_listens_on_loopback_alone(running: Path) -> None:
    port = read_project(running).port
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", port))  # taken if it listened on all interfaces


def test_a_server_with_a_name_of_its_own_listens_on_all_interfaces(tmp_path: Path) -> None:
    provision(tmp_path / "p", ["a"], "fl.example.org", 8002)
    [server] = json.loads((tmp_path / "p/server/startup/fed_server.json").read_text())["servers"]
    assert server["service"]["target"] == "server:8002"


def test_a_site_refuses_jobs_that_carry_code(provisioned: Path) -> None:
    for name in ("server", *SITES):
        rights = json.loads((provisioned / name / "local/authorization.json").read_text())
        AuthorizationService.initialize(FLAuthorizer("fedweave", rights))
        for code, allowed in ((True, False), (False, True)):
            verdict, why = AppAuthzService.authorize_app_info(
                {AppValidationKey.BYOC: code}, USER, "fedweave", "project_admin", {}
            )
            assert verdict is allowed, (name, why)
        resources = json.loads((provisioned / name / "local/resources.json").read_text())
        assert resources["class_list_enforcement_mode"] == "enforce"
        assert all(prefix.startswith(("fedweave.sites.flare.", "nvflare.")) for prefix in resources["class_allow_list"])
        assert not any(prefix in ("*", "nvflare.", "nvflare.collab.") for prefix in resources["class_allow_list"])


@pytest.mark.slow
def test_certificates_are_renewed_by_those_of_a_second_project_and_a_run_goes_on(tmp_path: Path) -> None:
    """docs/certificates.md: everybody's `startup` is replaced; who keeps the old one is shut out."""
    project, about = make_project(tmp_path / "project"), read_project(tmp_path / "project")
    with processes(project):
        run(experiment(rounds=1), project, tmp_path / "out", False, lambda now: None)
    provision(tmp_path / "second", SITES, about.host, about.port)

    def renew(name: str) -> None:
        shutil.rmtree(project / name / "startup")
        shutil.move(tmp_path / "second" / name / "startup", project / name / "startup")

    for name in ("server", "admin", "bank-a", "bank-b"):
        renew(name)
    with processes(project), administer(project) as admin:
        assert admin.wait_for(SITES[:2], 60) == ["bank-a", "bank-b"]
        assert admin.wait_for(SITES, 10) == ["bank-a", "bank-b"]
        late = SiteProcess(project / "bank-c")
        late.stop()
        renew("bank-c")
        late.start(threads=1)
        assert admin.wait_for(SITES, 60) == list(SITES)
        summary = run(experiment(rounds=2), project, tmp_path / "out", True, lambda now: None)
    expected, _ = simulated(experiment(rounds=2))
    assert summary["metrics"] == pytest.approx(expected.summary, abs=1e-5)


def test_the_servers_certificate_does_not_pass_for_a_sites(provisioned: Path) -> None:
    """What keeps a server that relays between sites from taking a site's place (NVFlare's own check, on our kits)."""
    kits = {name: provisioned / name / "startup" for name in ("server", *SITES)}
    own = {"CA_CERT": "rootCA.pem", "CLIENT_CERT": "client.crt", "CLIENT_KEY": "client.key"}
    files = {getattr(DriverParams, key): str(kits["bank-a"] / name) for key, name in own.items()}
    manager = CredentialManager(Endpoint("bank-a.job", conn_props=files), enforce_identity=True)
    manager._cache_cert("bank-b.job", (kits["bank-b"] / "client.crt").read_bytes())
    for name, file in (("server", "server.crt"), ("bank-c", "client.crt")):
        with pytest.raises(RuntimeError, match=f"as '{name}'.* requires identity 'bank-b'"):
            manager._cache_cert("bank-b.job", (kits[name] / file).read_bytes())


@pytest.mark.slow
def test_a_submitted_job_that_carries_code_is_refused_and_the_next_one_runs(refused: Refused, ran: Ran) -> None:
    assert refused.verdicts == ["FINISHED:FAILED_TO_RUN"] * 2
    assert refused.by == [["server"], list(SITES)]
    assert refused.left == []
    assert ran.summary["rounds"] == ran.config.general.rounds
    assert not refused.marker.exists()


def test_a_project_where_nothing_can_be_written_is_refused() -> None:
    with refusal("user.unwritable", "/dev/null/bank"):
        provision(Path("/dev/null/bank"), SITES, "localhost", 1)


def test_jobs_may_name_two_classes_and_no_function(tmp_path: Path) -> None:
    """Of a whole module a job could have any function called, to overwrite a journal for instance."""
    provision(tmp_path / "p", ["a"], "localhost", 1)
    for folder, needed in (("a", "site.Site"), ("server", "server.Server")):
        path = tmp_path / "p" / folder / "local/resources.json"
        listed = json.loads(path.read_text())["class_allow_list"]
        assert f"fedweave.sites.flare.{needed}" in listed
        assert not any("fedweave.sites.flare.sitefile.write_site_file".startswith(name) for name in listed)
    assert not list((tmp_path / "p/a/startup").glob("*.sh"))
    assert (tmp_path / "p/a").stat().st_mode & 0o077 == 0


def test_how_a_package_was_installed_does_not_show_in_its_digest(tmp_path: Path) -> None:
    """A wheel has files where an editable install has a link, which is not followed."""
    for name in ("editable", "wheel"):
        (tmp_path / name / "core").mkdir(parents=True)
        (tmp_path / name / "core/tree.py").write_text("leaves = 1")
    (tmp_path / "wheel/experiments").mkdir()
    (tmp_path / "wheel/experiments/cora.toml").write_text("rounds = 1")
    one = digest_of(tmp_path / "editable")
    assert digest_of(tmp_path / "wheel") == one
    (tmp_path / "wheel/core/tree.py").write_text("leaves = 2")
    assert digest_of(tmp_path / "wheel") != one


def test_a_job_carries_no_code(tmp_path: Path) -> None:
    job = write_job(tmp_path, "r1", SITES, experiment().plain())
    files = sorted(str(path.relative_to(job)) for path in job.rglob("*") if path.is_file())
    assert files == ["app/config/config_fed_client.json", "app/config/config_fed_server.json", "meta.json"]
    assert CollabController.__name__ in (job / files[1]).read_text()


def test_every_site_has_a_secret_of_its_own(provisioned: Path) -> None:
    paths = [provisioned / site / "privacy.secret" for site in SITES]
    assert len({path.read_text() for path in paths}) == len(SITES)
    assert all(len(bytes.fromhex(path.read_text())) == 32 and path.stat().st_mode & 0o077 == 0 for path in paths)


@pytest.mark.parametrize("names", [["Bank"], ["a", "a"], ["server"], ["global", "b"], [], ["a/b"], ["-a"]])
def test_names_that_cannot_be_sites_are_refused(names: list[str], tmp_path: Path) -> None:
    with refusal("user", "--sites"):
        check_names(names)
    with refusal("user", "--sites"):
        provision(tmp_path / "p", names, "localhost", 1)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"sites": ["bank-a", "../../bank-b"]}, "../../bank-b"),
        ({"sites": ["bank-a", "/etc"]}, "/etc"),
        ({"sites": ["..", "bank-b"]}, ".."),
        ({"sites": ["bank-a", "bank-b\n"]}, "bank-b"),
        ({"sites": ["bank-a", "server"]}, "server"),
        ({"sites": ["bank-a", "bank-a"]}, "twice"),
        ({"sites": []}, "no site"),
        ({"host": "../../bank"}, "host ../../bank"),
    ],
)
def test_a_project_with_a_name_that_leads_elsewhere_is_refused(
    provisioned: Path, tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    with refusal("user", "project.json", why):
        read_project(sent(provisioned, tmp_path / "sent", changes))


def sent(provisioned: Path, project: Path, changes: dict[str, Any]) -> Path:
    """The folder of an administrator who has got a changed project.json."""
    project.mkdir()
    (project / "admin").symlink_to(provisioned / "admin")
    about = json.loads((provisioned / "project.json").read_text())
    (project / "project.json").write_text(json.dumps(about | changes))
    return project


@pytest.mark.parametrize(
    "words", ["check P", "start P", "status P", "jobs P", "add P bank-d", "remove P bank-a", "run C --sites P --out O"]
)
def test_each_command_refuses_such_a_project(provisioned: Path, tmp_path: Path, words: str) -> None:
    """Whoever sends project.json could otherwise have commands read and write outside of the project."""
    project = sent(provisioned, tmp_path / "sent", {"sites": ["bank-a", "../../bank-b"]})
    (project / "server").symlink_to(provisioned / "server")
    (tmp_path / "exp.toml").write_text(dumps(experiment().plain()))
    places = {"P": str(project), "C": str(tmp_path / "exp.toml"), "O": str(tmp_path / "out")}
    done = commands.run("sites", *(places.get(word, word) for word in words.split()), code=2)
    check_facts(done, "../../bank-b")


@pytest.mark.parametrize("sites", [["../../bank-a"], ["bank-a", 3], "bank-a", [".."]])
def test_a_run_folder_with_such_a_name_is_damaged(tmp_path: Path, sites: object) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"run": "r1", "sites": sites}))
    with refusal("file.damaged", "run.json"):
        sites_of(tmp_path)


@pytest.mark.parametrize(
    "host", ["", "bad host", "https://fl.example.org", "fl.example.org:8002", "my_host", "::1", "-x"]
)
def test_a_host_that_is_none_is_refused(host: str, tmp_path: Path) -> None:
    with refusal("user", "--host", "fl.example.org"):
        provision(tmp_path / "p", SITES, host, 1)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ('[data]\npath = "x"\n[policy]\ndenny = ["w"]', ("policy.denny:", "'deny'")),
        ('[data]\npath = "x"\n[policy]\nepsilon = -1', ("policy.epsilon = -1:", "above 0")),
        ("[policy]", ("data.path:",)),
        ('[data]\npath = "x"\n[polcy]', ("polcy:", "'policy'")),
        ('data = "x"', ("data:", "[data]")),
        ('[data]\npath = "x"\nnormalize = "std"', ("data.normalize = 'std':", "'standard'")),
        ('[data]\npath = "x"\nclasses = 2\nlabels = ["a", "b"]', ("data:", "classes", "labels")),
    ],
)
def test_a_wrong_site_file_is_refused_with_the_key(tmp_path: Path, text: str, facts: tuple[str, ...]) -> None:
    (tmp_path / "site.toml").write_text(text)
    with refusal("config.site", "site.toml:", *facts):
        read_site_file(tmp_path / "site.toml")


def test_init_refuses_a_split_into_another_number_of_parts(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('[data]\nname = "digits"\n[partition]\nclients = 4\n')
    words = ["sites", "init", str(tmp_path / "p"), "--sites", "a,b", "--split", str(config)]
    result = commands.run(*words, code=2)
    check_facts(result, "4 clients", "2 sites")
    assert not (tmp_path / "p").exists()
    words = [*words[:2], str(tmp_path / "q"), *words[3:], "--set", "partition.clients=2"]
    commands.run(*words)
    assert [member.folder.name for member in members(tmp_path / "q")] == ["server", "a", "b"]


def test_init_says_how_many_sites_owners_of_nodes_need(tmp_path: Path) -> None:
    """A cut by a column has no number of clients that could be set."""
    (tmp_path / "nodes.csv").write_text("id,label,bank,f\n1,0,north,2\n2,1,south,3\n3,0,west,1\n")
    (tmp_path / "edges.csv").write_text("source,target\n")
    config = tmp_path / "c.toml"
    data = f'[data]\nname = "folder"\npath = "{tmp_path}"\nowner = "bank"\n'
    config.write_text(f'{data}[partition]\nname = "column"\n')
    result = commands.run("sites", "init", tmp_path / "p", "--sites", "a,b", "--split", config, code=2)
    check_facts(result, "3 clients", "2 sites", "--sites north,south,west")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "algorithm.lr=inf"], "algorithm.lr = inf"),
        (["--algorithm", "centralized"], "pools all data at one place"),
        (["--set", "algorithm.lr=0.1"], "is not a project"),  # only then is the server asked for
    ],
)
def test_what_no_site_could_run_is_refused_before_anything_is_sent(tmp_path: Path, words: list[str], said: str) -> None:
    config = tmp_path / "c.toml"
    config.write_text('[data]\nname = "digits"\n')
    out = ["--sites", str(tmp_path / "none"), "--out", str(tmp_path / "run")]
    result = commands.run("sites", "run", config, *out, *words, code=2)
    assert said in " ".join(result.split())
    assert not (tmp_path / "run").exists()


def test_commands_on_something_that_is_no_project(tmp_path: Path) -> None:
    for words in (["start"], ["stop"], ["status"]):
        commands.run("sites", *words, tmp_path, code=2)


def test_stopping_what_does_not_run(provisioned: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bank-z"
    folder.mkdir()
    (folder / "process.pid").write_text("1")  # a number that another process has now
    assert SiteProcess(folder).stop() is False


def test_a_simulation_does_not_run_the_engine_of_sites(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text('[data]\nname = "digits"\n[engine]\nname = "flare"\n')
    result = commands.run("run", config, "--out", tmp_path / "out", code=2)
    check_facts(result, "fedweave sites run")
    assert not (tmp_path / "out").exists()


def test_without_nvflare_the_commands_say_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['nvflare'] = None\n"
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'nvflare' else find(name, *rest)\n"
        "from fedweave.cli import main; sys.argv = ['fedweave', 'sites', 'status', '.']; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2
    check_facts(done.stderr, '"fedweave[flare]"')


def test_a_run_whose_first_round_failed_leaves_the_place_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Here:
        """A server with its sites."""

        def site_names(self) -> list[str]:
            return ["a", "b"]

        def wait_for(self, sites: Any, seconds: float) -> list[str]:
            return ["a", "b"]

        def submit(self, *job: Any) -> str:
            return "j"

    def failing(*given: Any) -> dict[str, Any]:
        given[4].joinpath("partition.parquet").write_bytes(b"of this run")
        return {"status": "failed", "error": "training diverged.", "mistake": False, "round": 0, "lost": {}}

    monkeypatch.setattr(running_module, "administer", lambda project: nullcontext(Here()))
    monkeypatch.setattr(running_module, "_watch", failing)
    project, out = tmp_path / "project", tmp_path / "run"
    (project / "admin").mkdir(parents=True)
    Project(("a", "b"), "localhost", 1).save(project)
    for _ in range(2):
        with refusal("failed", "diverged"):
            run(for_sites({"data": {"name": "digits"}}), project, out, False, lambda now: None)
        assert [path.name for path in out.iterdir()] == [".lock"]


def test_a_run_is_there_again_if_the_one_that_was_to_replace_it_reached_no_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Nobody:
        """A server without sites."""

        def site_names(self) -> list[str]:
            return []

        def wait_for(self, sites: Any, seconds: float) -> list[str]:
            return []

        def jobs(self) -> list[Any]:
            return []

    monkeypatch.setattr(running_module, "administer", lambda project: nullcontext(Nobody()))
    project, out = tmp_path / "project", tmp_path / "run"
    (project / "admin").mkdir(parents=True)
    Project(("a", "b"), "localhost", 1).save(project)
    held = {"config.toml": "old", "metrics.parquet": "old", "run.json": '{"run": "1", "project": "p", "job": "j"}'}
    out.mkdir()
    for name, text in held.items():
        (out / name).write_text(text)
    with refusal("job.no-site", "no site of", "is connected"):
        run(for_sites({"data": {"name": "digits"}}), project, out, False, lambda now: None, overwrite=True)
    assert {path.name: path.read_text() for path in out.iterdir() if path.name != ".lock"} == held
