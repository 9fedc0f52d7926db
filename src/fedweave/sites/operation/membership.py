"""Sites that join a project after its making, and sites that leave it."""

import shutil
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fedweave.errors import FedweaveError, UserError
from fedweave.sites.flare.provision import check_names, note_issued, provision_site
from fedweave.sites.flare.requests import ADMIN, AUTHORITY, RESERVED
from fedweave.sites.flare.sitefile import IDS_KEY, SITE_FILE, starting, write_site_file
from fedweave.sites.operation.certificates import ROOT, certificate
from fedweave.sites.operation.issuing import BITS, Ask, accept, dismiss, prompt, revoke, root, site_certificate
from fedweave.sites.operation.processes import SiteProcess
from fedweave.sites.operation.project import Project, administer, read_project
from fedweave.sites.protocols.identity import REVOKED, STARTUP

REMOVED = "removed_sites"  # in the project's folder: the folders of removed sites; no site can have this name


@dataclass(frozen=True)
class Addition:
    """A site that was added. fingerprint: of its certificate, for other sites' `policy.members`; "" if a company's own
    authority has to sign one. ids_key: whether its folder has the sites' common key of ids."""

    project: Project
    fingerprint: str
    ids_key: bool


def add(
    directory: Path, name: str, authority: Path | None = None, vertical: bool = False, ask: Ask = prompt
) -> Addition:
    """Add the site `name` to the project in `directory`: make its folder, with a certificate of the same authority, and
    list it in project.json. Other members' folders do not change.

    authority: the authority's folder; by default the one in `directory`. If there is none, a company's own authority
    signs, and the site has no certificate yet. vertical: see `sitefile.starting`. ask: see
    `issuing.sign`.

    Raises:
        UserError: the name is not allowed or taken, or `authority` is not the authority of this project.
    """
    project, signer = read_project(directory), authority or directory / AUTHORITY
    if name in project.sites or (directory / name).exists():
        is_member = name in {*project.sites, *RESERVED}
        more = "" if is_member else f", or remove {directory / name} if `sites add` broke off there"
        raise UserError(
            f"{name} is a site of {directory} already, or has a folder there. Choose another name{more}.",
            code="member.known",
        )
    check_names([*project.sites, name])
    if name == project.host and name != "localhost":
        raise UserError(
            f"{name} is the name of the server's machine, for which the site's certificate would be valid, too. Choose "
            "another name.",
            code="certificate.name",
        )
    cert = None
    here = _kits(directory)
    if authority is None and not signer.exists() and here:
        kit = {file: (here[0] / file).read_bytes() for file in (ROOT, REVOKED) if (here[0] / file).exists()}
    else:
        _check_authority(directory, signer)
        key = generate_private_key(public_exponent=65537, key_size=BITS)
        cert = site_certificate(signer, name, key.public_key(), ask)
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        kit = {"client.crt": _pem(cert), "client.key": pem, ROOT: _pem(root(signer))}
        if (signer / REVOKED).exists():
            kit[REVOKED] = (signer / REVOKED).read_bytes()
    common = next((path.read_text().strip() for path in sorted(directory.glob(f"*/{IDS_KEY}"))), "")
    if cert is not None:
        note_issued(signer, name, cert)  # first: what is in no record could not be revoked
    project = replace(project, sites=(*project.sites, name))
    about, policy = starting(len(project.sites), vertical)
    try:
        provision_site(directory, name, project.host, project.port, kit, common)
        write_site_file(directory / name / SITE_FILE, about, **policy)
        project.save(directory)
    except BaseException:  # what is there of it is not a member's folder
        shutil.rmtree(directory / name, ignore_errors=True)
        raise
    fingerprint = "" if cert is None else cert.fingerprint(SHA256()).hex(":").upper()
    return Addition(project, fingerprint, bool(common))


@dataclass(frozen=True)
class Removal:
    """A site that was removed. folder: where its folder is now, if it was on this machine. informed: the members on
    this machine, whose folders have the new list of revoked certificates. unseen: why the server could not be asked for
    running jobs; "" if it has answered."""

    project: Project
    folder: Path | None
    informed: tuple[str, ...]
    unseen: str = ""


def remove(directory: Path, name: str, authority: Path | None = None, ask: Ask = prompt) -> Removal:
    """Remove the site `name` from the project in `directory`: revoke all its certificates, take it off project.json,
    and set its folder aside. Members on this machine get the list of revoked certificates; the server uses it for
    connections from its next start on.

    authority, ask: see `add`. A company's own authority has to revoke the certificates itself.

    Raises:
        UserError: there is no such site, it is the only one, a job runs, or `authority` is not the authority of this
            project.
    """
    project, signer = read_project(directory), authority or directory / AUTHORITY
    if name not in project.sites or len(project.sites) == 1:
        raise UserError(
            f"{name} is not a site of {directory}, or is its only one. Its sites are {', '.join(project.sites)}.",
            code="member.unknown",
        )
    company = authority is None and not signer.exists()
    if not company:
        _check_authority(directory, signer)
    unseen = _check_no_job(directory)
    if not company:
        shown = directory / name / STARTUP / "client.crt"  # an authority of an earlier version has no record of it
        try:
            revoke(signer, name, shown if shown.exists() else None, ask)
        except UserError as error:
            if error.code != "certificate.revoked-already":
                raise
        dismiss(signer, name)
    folder = _set_aside(directory, name)
    members = [] if company else [kit.parent for kit in _kits(directory)]
    for member in members:
        accept(member, signer / REVOKED)
    project = replace(project, sites=tuple(site for site in project.sites if site != name))
    project.save(directory)  # last: after an interruption `remove` does it all again
    return Removal(project, folder, tuple(each.name for each in members), unseen)


def _check_no_job(directory: Path) -> str:
    """Refuse to continue while the server has a job that is not over. Returns why the server could not be asked; ""
    if it has answered."""
    if not (directory / ADMIN / STARTUP).is_dir():
        return f"{ADMIN} is not on this machine"
    try:
        with administer(directory) as admin:
            alive = [job for job in admin.jobs() if not job.over]
    except UserError:
        raise
    except FedweaveError as error:
        return str(error)
    if alive:
        raise UserError(
            f"the server has a job of the run {', '.join(sorted({job.run for job in alive}))}. Let it end, or end it "
            f"with `fedweave sites abort {directory} {alive[0].run}`, and remove the site then.",
            code="member.job",
        )
    return ""


def _set_aside(directory: Path, name: str) -> Path | None:
    """Stop the site's process, and move its folder out of the way: its ledgers are the account of what left."""
    if not (directory / name).is_dir():
        return None
    SiteProcess(directory / name).stop()
    folder = directory / REMOVED / f"{name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    folder.parent.mkdir(exist_ok=True)
    shutil.move(directory / name, folder)
    return folder


def _check_authority(directory: Path, authority: Path) -> None:
    """Refuse an authority whose key is not the one that members on this machine trust."""
    key = root(authority).public_key()
    for path in (kit / ROOT for kit in _kits(directory)):
        if certificate(path).public_key() != key:
            raise UserError(
                f"{authority} is the authority of another project: {path} has another key. Name this project's: "
                "--authority DIR.",
                code="certificate.authority",
            )


def _kits(directory: Path) -> list[Path]:
    """The folders startup of the members on this machine, the administrator's included."""
    return sorted({file.parent for file in directory.glob(f"*/{STARTUP}/fed_*.json")})


def _pem(cert: x509.Certificate) -> bytes:
    return cert.public_bytes(Encoding.PEM)
