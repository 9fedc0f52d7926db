"""A project's folders: certificates and keys for mutual TLS, made with NVFlare's own provisioning."""

import contextlib
import io
import json
import re
import secrets
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID
from nvflare.lighter.constants import CtxKey
from nvflare.lighter.entity import Participant, Project
from nvflare.lighter.impl.cert import CertBuilder
from nvflare.lighter.impl.signature import SignatureBuilder
from nvflare.lighter.impl.static_file import StaticFileBuilder
from nvflare.lighter.impl.workspace import WorkspaceBuilder
from nvflare.lighter.provisioner import Provisioner
from nvflare.lighter.utils import load_crt
from nvflare.private.fed.utils.identity_utils import get_cn_from_cert

from fedweave.core.loopback import is_loopback
from fedweave.core.types import Record
from fedweave.errors import FedweaveError, UserError
from fedweave.sites.flare.folder import replace_private
from fedweave.sites.flare.requests import ADMIN, AUTHORITY, RESERVED, SERVER, SITE
from fedweave.sites.flare.sitefile import IDS_KEY, SECRET

PROJECT = "fedweave"
USER, ROLE = "admin@fedweave.org", "project_admin"  # the administrator and its role, as its certificate has them
STATE = "cert.json"  # in the authority's folder: its key and certificate
ISSUED = "issued.json"  # in the same folder: its record of each certificate that it has signed (`note_issued`)
BACKDATED = timedelta(days=1)  # a certificate is valid from this much before its making: other clocks may be slow

_WORD = r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
_HOST = re.compile(rf"{_WORD}(\.{_WORD})*")  # what NVFlare takes
# The rights that a site grants to the submitter of a job; "byoc" is code that travels with a job.
_RIGHTS = {
    "submit_job": "any",
    "clone_job": "none",
    "manage_job": "n:submitter",
    "download_job": "n:submitter",
    "view": "any",
    "operate": "any",
    "shell_commands": "none",
    "app_command": "n:submitter",
    "byoc": "none",
    "server-predeployed-flwr": "none",
}
# The classes that a job may name. Naming a module would allow every function in it.
_OF_JOBS = {
    "server": ["fedweave.sites.flare.server.Server", "nvflare.collab.runtime.controller.CollabController"],
    "client": ["fedweave.sites.flare.site.Site", "nvflare.collab.runtime.executor.CollabExecutor"],
}
_LAUNCHER = "fedweave.sites.flare.doorkeeper.SiteLauncher"
# The connection between a member's own processes, which NVFlare leaves in clear: with certificates, on loopback alone.
_INSIDE = {"internal": {"scheme": "tcp", "resources": {"host": "localhost", "connection_security": "mtls"}}}


def check_names(sites: Sequence[str], where: str = "--sites") -> None:
    """Refuse names that sites cannot have. where: the option or file that lists them."""
    bad = [name for name in sites if not is_name(name)]
    if bad or not sites or len(set(sites)) < len(sites):
        raise UserError(
            f"{where} {','.join(sites)}: {', '.join(bad) or 'no site, or one named twice'}. A site's name has a-z, 0-9 "
            f"and '-', 63 at most, begins with no '-', is unique and not one of {', '.join(sorted(RESERVED))}."
        )


def is_name(name: object) -> bool:
    """Whether a site can have this name."""
    return isinstance(name, str) and re.fullmatch(SITE, name) is not None and name not in RESERVED


def check_host(host: str, where: str = "--host") -> None:
    """Refuse a `host` that is not an address of a machine. where: the option or file that has it."""
    if not _HOST.fullmatch(host):
        raise UserError(
            f"{where} {host}: give the name of the server's machine, such as fl.example.org, or its IPv4 address: "
            "letters, digits, '-' and dots, without https:// before it; the port is given by --port."
        )


README = "readme.txt"  # replaces NVFlare's file, which describes another way to start the process
_ABOUT = """\
This folder is {name}'s own part of a fedweave federation. Keep it private: startup/ holds a private key.

Put it and project.json, which came with it, into a directory {directory}. Install fedweave. Next to {directory}, run:

    fedweave sites check {directory}                  # looks for faults and starts nothing
    fedweave sites start {directory} --only {name}
    fedweave sites stop {directory} --only {name}

docs/deployment.md of fedweave describes the rest, including site.toml and policies.
"""


def keep(path: Path, content: object) -> None:
    """Replace a file of the authority atomically by one that only its owner can read."""
    replace_private(path, json.dumps(content).encode())


def note_issued(authority: Path, name: str, cert: x509.Certificate) -> None:
    """Add a certificate of the member `name` to the authority's record: its serial number, when it was issued, its
    first and last day, and the SHA-256 fingerprints of the certificate and of its key. `sites revoke` adds "revoked",
    and `sites remove` adds "removed", each with the time."""
    path = authority / ISSUED
    before = json.loads(path.read_text()) if path.exists() else []
    public = cert.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    note = {
        "name": name,
        "serial": f"{cert.serial_number:x}",
        "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "from": f"{cert.not_valid_before_utc:%Y-%m-%d}",
        "until": f"{cert.not_valid_after_utc:%Y-%m-%d}",
        "fingerprint": cert.fingerprint(SHA256()).hex(":").upper(),
        "key": sha256(public).digest().hex(":").upper(),
    }
    keep(path, [*before, note])


def _write_secret(path: Path, digits: str) -> None:
    """A file that only its owner can read."""
    path.touch(mode=0o600)
    path.write_text(digits + "\n")


def _project(sites: Sequence[str], host: str, port: int) -> Project:
    project = Project(PROJECT, "", props={"api_version": 4, "gen_scripts": True})
    server = {"fed_learn_port": port, "admin_port": port, "default_host": host, "host_names": [host]}
    project.add_participant(Participant("server", SERVER, PROJECT, props=server))
    for name in sites:
        project.add_participant(Participant("client", name, name.replace("-", "_")))
    project.add_participant(Participant("admin", USER, PROJECT, props={"role": ROLE}))
    return project


class _Certificates(CertBuilder):
    """NVFlare's builder of certificates with two changes. NVFlare's certificates are valid only from the moment of
    their making, so that a machine with a slower clock rejects them. And they do not restrict the use of a member's
    key."""

    @staticmethod
    def _generate_cert(
        name: str, *about: object, not_valid_before: datetime | None = None, ca: bool = False, **more: object
    ) -> object:
        first = (not_valid_before or datetime.now(UTC)) - BACKDATED
        extra = None if ca else uses(name)
        return CertBuilder._generate_cert(name, *about, not_valid_before=first, ca=ca, extra_extensions=extra, **more)


def uses(name: str) -> list[tuple[x509.ExtensionType, bool]]:
    """The extensions of a member's certificate that restrict its use, each with whether it is critical.

    The certificate signs no other certificate. Its key signs, and decrypts what others send to the member. Both ends of
    a connection may present it, since the processes of one member connect to each other with their only certificate.
    The administrator's certificate is only for clients.
    """
    unused = ["content_commitment", "data_encipherment", "key_agreement", "key_cert_sign", "crl_sign"]
    unused += ["encipher_only", "decipher_only"]
    key = x509.KeyUsage(digital_signature=True, key_encipherment=True, **dict.fromkeys(unused, False))
    ends = [ExtendedKeyUsageOID.CLIENT_AUTH, *([] if name == USER else [ExtendedKeyUsageOID.SERVER_AUTH])]
    no_authority = x509.BasicConstraints(ca=False, path_length=None)
    return [(no_authority, True), (key, True), (x509.ExtendedKeyUsage(ends), False)]


def issue(name: str, root: object, key: object, hosts: Sequence[str] = ()) -> Any:
    """A certificate for the public `key` of the member `name`, signed with the authority's `root` key, in the form of
    provisioning. hosts: the names of a server's machine."""
    more: Record = {"server_default_host": hosts[0], "server_additional_hosts": list(hosts)} if hosts else {}
    if name == USER:
        more["role"] = ROLE
    return _Certificates._generate_cert(name, organization(name), PROJECT, root, key, **more)


def organization(name: str) -> str:
    """The organization in the certificate of a member."""
    return PROJECT if name in (SERVER, USER) else name.replace("-", "_")


def _run_provisioner(scratch: Path, project: Project) -> Path:
    template, log = ["master_template.yml"], io.StringIO()
    static = StaticFileBuilder(config_folder="config")
    builders = [WorkspaceBuilder(template), static, _Certificates(), SignatureBuilder()]
    with contextlib.redirect_stdout(log):
        ctx = Provisioner(str(scratch), builders).provision(project)
    if ctx.get(CtxKey.BUILD_ERROR):
        raise FedweaveError(f"NVFlare could not provision the project: {log.getvalue().strip()}")
    return Path(ctx[CtxKey.CURRENT_PROD_DIR])


def kind(folder: Path) -> str:
    """The kind of a member's folder: "server" or "client"."""
    return "server" if (folder / "startup/fed_server.json").exists() else "client"


def close_inside(folder: Path) -> None:
    """Make the processes of a member connect to each other over mutual TLS, unless its owner has configured this."""
    path = folder / "local/comm_config.json"
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        _write(path, _INSIDE)


def settle(server: Path) -> None:
    """Make the server keep its jobs in its own folder, also after the folder has been moved."""
    path, where = server / "local/resources.json", server.resolve()
    resources = json.loads(path.read_text())
    resources["snapshot_persistor"]["args"]["storage"]["args"]["root_dir"] = str(where / "snapshots")
    for component in resources["components"]:
        if component["id"] == "job_manager":
            component["args"]["uri_root"] = str(where / "jobs")
    _write(path, resources)


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n")


def provision(directory: Path, sites: Sequence[str], host: str, port: int, ca: bytes = b"") -> None:
    """Write `directory`/{server, admin, authority, one folder per site}. Each folder is for one host or person.

    host, port: the server's address. The folder authority holds the key of the certificate authority; keep it offline.
    ca: the certificate of a company's own authority in PEM. There is then no folder authority; members' certificates
    are placeholders until `issuing.accept` installs those that the company has signed.

    Raises:
        UserError: the directory is not empty, or a name or the host is not allowed.
        FedweaveError: NVFlare's provisioning failed.
    """
    check_names(sites)
    check_host(host)
    if host in sites and host != "localhost":
        raise UserError(
            f"--host {host} is a site's name, too: the site's certificate would also be valid for the server's "
            "machine. Rename the site, or give the machine's full name or address.",
            code="certificate.name",
        )
    if directory.exists() and any(directory.iterdir()):
        raise UserError(f"{directory} is not empty. Choose another directory; a project is provisioned once.")
    with tempfile.TemporaryDirectory() as scratch:
        output = _run_provisioner(Path(scratch), _project(sites, host, port))
        try:
            directory.mkdir(parents=True, exist_ok=True)
            (directory / ADMIN).mkdir()
            (directory / ADMIN).rmdir()
        except OSError as error:
            raise UserError(
                f"{directory} cannot be written ({error.strerror}). Choose another directory.", code="user.unwritable"
            ) from error
        for name in (SERVER, *sites):
            _move_and_restrict(output / name, directory / name)
        shutil.move(output / USER, directory / ADMIN)
        (directory / ADMIN).chmod(0o700)
        path = directory / SERVER / "local/resources.json"
        resources = json.loads(path.read_text())
        persistor = resources["snapshot_persistor"]
        resources["class_allow_list"] += [persistor["path"], persistor["args"]["storage"]["path"]]
        resources["servers"][0]["heart_beat_timeout"] = 30
        _write(path, resources)
        if is_loopback(host):
            _listen_on(directory / SERVER, host, port)
        if ca:
            for name in (SERVER, ADMIN, *sites):
                replace_private(directory / name / "startup/rootCA.pem", ca)
        else:
            # Only the authority's own key and certificate stay in its folder, which only its owner can open: the
            # authority does not keep members' keys.
            authority = directory / AUTHORITY
            shutil.move(output.parent / "state", authority)
            state = json.loads((authority / STATE).read_text())
            (authority / STATE).unlink()
            keep(authority / STATE, {name: state[name] for name in ("root_cert", "root_pri_key")})
            authority.chmod(0o700)
            for path in sorted(directory.glob("*/startup/*.crt")):
                cert = load_crt(path)
                note_issued(authority, get_cn_from_cert(cert), cert)
    ids_key = secrets.token_hex(32)  # common to all sites, see `alignment`
    for name in sites:
        _write_secret(directory / name / SECRET, secrets.token_hex(32))  # the site's entropy for its privacy noise
        _write_secret(directory / name / IDS_KEY, ids_key)


def _listen_on(server: Path, host: str, port: int) -> None:
    """Make the server listen on the loopback interface only; NVFlare does so if the address of its service is there."""
    path = server / "startup/fed_server.json"
    content = json.loads(path.read_text())
    content["servers"][0]["service"]["target"] = f"{host}:{port}"
    _write(path, content)


def provision_site(directory: Path, name: str, host: str, port: int, kit: Mapping[str, bytes], ids_key: str) -> None:
    """Write `directory`/`name`, the folder of a site that joins a project later.

    host, port: the server's address. kit: {file in startup: its content}, with the site's certificate and key and the
    authority's certificate. ids_key: the sites' common key of ids in hexadecimal digits; "" if it is not known here.
    """
    with tempfile.TemporaryDirectory() as scratch:  # of a project with an authority of its own, which `kit` replaces
        output = _run_provisioner(Path(scratch), _project([name], host, port))
        _move_and_restrict(output / name, directory / name)
    for file, content in kit.items():
        replace_private(directory / name / "startup" / file, content)
    _write_secret(directory / name / SECRET, secrets.token_hex(32))
    if ids_key:
        _write_secret(directory / name / IDS_KEY, ids_key)


def _move_and_restrict(source: Path, folder: Path) -> None:
    """Move a member's folder that NVFlare has made to its place. Jobs may then use only the classes that they need,
    and no code of their own."""
    shutil.move(source, folder)
    rights = {"format_version": "1.0", "permissions": dict.fromkeys(("project_admin", "org_admin", "lead"), _RIGHTS)}
    _write(folder / "local/authorization.json", rights)
    resources = json.loads((folder / "local/resources.json.default").read_text())
    resources["class_list_enforcement_mode"] = "enforce"
    if "allow_log_streaming" in resources:  # only sites have this: their logs could reveal data, and stay private
        resources["allow_log_streaming"] = False
        resources["components"] = [c for c in resources["components"] if c["id"] != "site_log_streamer"]
        for component in resources["components"]:
            if component["id"] == "process_launcher":
                component["path"] = _LAUNCHER
    paths = [component["path"] for component in resources["components"]]
    resources["class_allow_list"] = [*_OF_JOBS[kind(folder)], *paths]
    _write(folder / "local/resources.json", resources)
    close_inside(folder)
    (folder / "startup").chmod(0o700)
    folder.chmod(0o700)
    for script in (folder / "startup").glob("*.sh"):
        script.unlink()  # they start NVFlare's own client, which does more for others than `doorkeeper`
    (folder / README).write_text(_ABOUT.format(name=folder.name, directory=folder.parent.name))
