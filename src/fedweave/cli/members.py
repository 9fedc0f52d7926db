"""The commands of `fedweave sites` for members and their certificates: add, remove; request, sign, accept, revoke,
renew, encrypt. A member makes its key on its own machine."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from fedweave.cli.processes import Directory
from fedweave.core.text import counted

SiteFolder = Annotated[
    Path, typer.Argument(metavar="DIR/MEMBER", help="The site's, server's or administrator's folder.")
]
AuthorityFolder = Annotated[Path, typer.Argument(metavar="AUTHORITY", help="The authority's folder.")]


SiteName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the site.")]
Authority = Annotated[
    Path | None, typer.Option("--authority", metavar="DIR2", help="The authority's folder; DIR/authority.")
]
Passphrase = Annotated[
    Path | None,
    typer.Option(
        "--passphrase-file",
        metavar="FILE",
        help="File with the passphrase of the authority's key; without it, the command asks if the key is encrypted.",
    ),
]


def passphrase_reader(file: Path | None) -> Callable[[Path], bytes]:
    """Where the passphrase of the authority's key comes from: a file, or the terminal."""
    from fedweave.sites.operation import issuing

    return issuing.prompt if file is None else lambda authority: issuing.passphrase_from(file)


def add(
    directory: Directory,
    name: SiteName,
    authority: Authority = None,
    vertical: Annotated[
        bool, typer.Option("--vertical", help="The sites hold different columns of the same nodes; sets its policy.")
    ] = False,
    passphrase: Passphrase = None,
) -> None:
    """Add a site to a project: its folder, with a certificate of the project's authority. It takes part from the next
    run on; a run that has begun, and its --resume, go on with the sites that they have."""
    from fedweave.sites.flare.sitefile import IDS_KEY
    from fedweave.sites.operation import membership

    new = membership.add(directory, name, authority, vertical, passphrase_reader(passphrase))
    count, folder = len(new.project.sites), directory / name
    typer.echo(f"{folder}: the folder of {name}")
    command = f"fedweave sites request {folder}"
    if new.fingerprint:
        typer.echo(f"its key was made here; between organizations {name} makes its own: {command}")
    else:
        typer.echo(f"it has no certificate: `{command}`, and have the company's authority sign it")
    if not new.ids_key:
        typer.echo(f"no {IDS_KEY} is on this machine: copy another site's into {folder}, if the sites use one")
    typer.echo(f"send {folder} to its machine, and {directory / 'project.json'} to the administrator and all members")
    typer.echo(
        f"every other site's owner sets policy.min_sites = {count} in site.toml; where policy.members is set, add "
        f'{name} = "{new.fingerprint or "the fingerprint of its certificate"}"'
    )
    typer.echo(
        f"on the data of an earlier run, the difference of two secure sums would be {name}'s alone: sites refuse the "
        "next run until their data has changed, or their owners set policy.min_difference = 1"
    )


def remove(directory: Directory, name: SiteName, authority: Authority = None, passphrase: Passphrase = None) -> None:
    """Remove a site from a project: revoke its certificates, and set its folder aside. Refused while a job runs."""
    from fedweave.sites.flare.sitefile import IDS_KEY
    from fedweave.sites.operation import membership

    removal = membership.remove(directory, name, authority, passphrase_reader(passphrase))
    if removal.unseen:
        typer.echo(f"note: nobody looked for running jobs ({removal.unseen}). Check `fedweave sites jobs`")
    typer.echo(f"{name}: removed")
    if removal.folder is not None:
        typer.echo(f"{removal.folder}: its folder; keep its ledgers, they are the account of what left")
    if removal.informed:
        typer.echo(f"its certificates are revoked; the list is in the folders of {', '.join(removal.informed)}")
    else:
        typer.echo("have its certificates revoked by the authority that signed them")
    typer.echo(
        f"send the list, revoked.pem in the authority's folder, and {directory / 'project.json'} to all members; each "
        "takes the list up with `fedweave sites accept`"
    )
    typer.echo(
        f"restart the server, `fedweave sites stop {directory} --only server` and `start`: it then refuses {name}"
    )
    typer.echo(
        f"every other site's owner sets policy.min_sites = {len(removal.project.sites)} or less, and takes {name} out "
        f"of policy.members and site.parties; {name} knows {IDS_KEY}: if the sites use it, draw another"
    )


def request(site: SiteFolder) -> None:
    """Make a new key at a site or server, and a request for its certificate; the old key is used until `accept`."""
    from fedweave.sites.operation import issuing

    path, fingerprint = issuing.request(site)
    typer.echo(f"{path}: send it to the authority, and give its owner the key's fingerprint over another channel")
    typer.echo(fingerprint)


def sign(
    authority: AuthorityFolder,
    request: Annotated[Path, typer.Argument(metavar="REQUEST", help="What `request` made at a site.")],
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="The certificate.")] = None,
    whose: Annotated[
        str, typer.Option("--for", metavar="NAME", help="Name of the server or administrator that the request is for.")
    ] = "",
    passphrase: Passphrase = None,
) -> None:
    """Sign a request with the authority's key; no private key of the site is needed."""
    from fedweave.sites.operation import issuing

    name, certificate, fingerprint = issuing.sign(authority, request, whose, passphrase_reader(passphrase))
    path = out or Path(f"{name}.crt")
    path.write_bytes(certificate)
    typer.echo(f"{path}: the certificate of {name}; send it back if this is the key's fingerprint there")
    typer.echo(fingerprint)


def accept(
    site: SiteFolder,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `sign`, `revoke` or `renew` made.")],
) -> None:
    """Install the authority's file: the certificate of the key that `request` made, a list of revoked certificates, or
    the authority's own new certificate. A process uses it from its next start on."""
    from fedweave.sites.operation import issuing

    change = issuing.accept(site, file)
    typer.echo(f"{site}: {file} is in use from the next `fedweave sites start` on")
    if change.revoked is not None:
        typer.echo(f"revoked by the authority: {counted(change.revoked, 'certificate')}")
    if change.expiry is not None:
        typer.echo(f"the authority's own certificate is valid until {change.expiry:%Y-%m-%d}")
    if change.mark is not None:
        typer.echo(
            f"Sites whose policy.members lists {site.resolve().name} need its new fingerprint there: {change.mark}"
        )


def revoke(
    authority: AuthorityFolder,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The member whose certificates are revoked.")],
    shown: Annotated[
        Path | None, typer.Option("--certificate", metavar="FILE", help="A certificate that an earlier version signed.")
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="The list; revoked.pem.")] = None,
    passphrase: Passphrase = None,
) -> None:
    """Revoke all certificates that a member has had so far; writes the signed list for `accept` at server and sites."""
    from fedweave.sites.operation import issuing

    count, revocation_list = issuing.revoke(authority, name, shown, passphrase_reader(passphrase))
    path = out or Path("revoked.pem")
    path.write_bytes(revocation_list)
    typer.echo(f"{name}: {counted(count, 'certificate')} revoked; a key that it requests from now on can be signed")
    typer.echo(f"{path}: send it to all members; the server refuses {name} after it has accepted it and was restarted")


def renew(
    authority: AuthorityFolder,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="The certificate; rootCA.pem.")
    ] = None,
    passphrase: Passphrase = None,
) -> None:
    """Renew the authority's own certificate, with its present key, so that all its signatures stay valid."""
    from fedweave.sites.operation import issuing

    certificate, expiry = issuing.renew(authority, passphrase_reader(passphrase))
    path = out or Path("rootCA.pem")
    path.write_bytes(certificate)
    typer.echo(
        f"{path}: valid until {expiry:%Y-%m-%d}; send it to all members for `fedweave sites accept DIR/MEMBER {path}`"
    )


def encrypt(
    authority: AuthorityFolder,
    new: Annotated[
        Path | None, typer.Option("--new-passphrase-file", metavar="FILE", help="File with the new passphrase.")
    ] = None,
    passphrase: Passphrase = None,
) -> None:
    """Encrypt the authority's key with a passphrase. From then on sign, revoke, renew, add and remove ask for it."""
    from fedweave.sites.operation import issuing

    if new is None:
        secret = typer.prompt("new passphrase", hide_input=True, confirmation_prompt=True).encode()
    else:
        secret = issuing.passphrase_from(new)
    issuing.encrypt(authority, secret, passphrase_reader(passphrase))
    typer.echo(f"{authority}: its key is encrypted; without the passphrase no certificate can be made or revoked")
