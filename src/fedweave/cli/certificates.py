"""The commands `fedweave sites request`, `sign`, `accept`, `revoke` and `renew`: keys that are made where they are
used, and what becomes of their certificates."""

from pathlib import Path
from typing import Annotated

import typer

from fedweave.cli.options import Loaded
from fedweave.core.text import counted

if not Loaded.for_help:
    from fedweave.deploy.sites.issuing import accept as accepted
    from fedweave.deploy.sites.issuing import renew as renewed
    from fedweave.deploy.sites.issuing import request as asked
    from fedweave.deploy.sites.issuing import revoke as revoked
    from fedweave.deploy.sites.issuing import sign as signed


SiteFolder = Annotated[
    Path, typer.Argument(metavar="DIR/MEMBER", help="The site's, server's or administrator's folder.")
]
AuthorityFolder = Annotated[Path, typer.Argument(metavar="AUTHORITY", help="The authority's folder.")]


def request(site: SiteFolder) -> None:
    """Make a new key at a site or server, and a request for its certificate; the old key is used until `accept`."""
    path, fingerprint = asked(site)
    typer.echo(f"{path}: send it to the authority, and tell its owner by another way the key's fingerprint")
    typer.echo(fingerprint)


def sign(
    authority: AuthorityFolder,
    asked: Annotated[Path, typer.Argument(metavar="REQUEST", help="What `request` made at a site.")],
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="The certificate.")] = None,
    whose: Annotated[
        str, typer.Option("--for", metavar="NAME", help="Where it is the server's or the administrator's: whose.")
    ] = "",
) -> None:
    """Sign a request with the authority's key; no private key of the site is needed."""
    name, made, fingerprint = signed(authority, asked, whose)
    path = out or Path(f"{name}.crt")
    path.write_bytes(made)
    typer.echo(f"{path}: the certificate of {name}; send it back if this is the key's fingerprint there")
    typer.echo(fingerprint)


def accept(
    site: SiteFolder,
    given: Annotated[Path, typer.Argument(metavar="FILE", help="What `sign`, `revoke` or `renew` made.")],
) -> None:
    """Take up what the authority made: the certificate of the key that `request` made, a list of revoked ones, or the
    authority's own new certificate. A process uses them from its next start on."""
    taken = accepted(site, given)
    typer.echo(f"{site}: {given} is in use from the next `fedweave sites start` on")
    if taken.revoked is not None:
        typer.echo(f"revoked by the authority: {counted(taken.revoked, 'certificate')}")
    if taken.until is not None:
        typer.echo(f"the authority's own certificate is valid until {taken.until:%Y-%m-%d}")
    if taken.mark is not None:
        typer.echo(
            f"Sites whose policy.members lists {site.resolve().name} need its new fingerprint there: {taken.mark}"
        )


def revoke(
    authority: AuthorityFolder,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Whose certificates are taken back.")],
    shown: Annotated[
        Path | None, typer.Option("--certificate", metavar="FILE", help="One that an earlier version signed.")
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="The list; revoked.pem.")] = None,
) -> None:
    """Revoke all certificates that a member has had so far; writes the signed list for `accept` at server and sites."""
    count, made = revoked(authority, name, shown)
    path = out or Path("revoked.pem")
    path.write_bytes(made)
    typer.echo(f"{name}: {counted(count, 'certificate')} revoked; a key that it requests from now on can be signed")
    typer.echo(f"{path}: send it to everybody; the server refuses {name} once it has accepted it and was started again")


def renew(
    authority: AuthorityFolder,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="It; rootCA.pem.")] = None,
) -> None:
    """Renew the authority's own certificate, with its present key, so that all that it signed stays valid."""
    made, until = renewed(authority)
    path = out or Path("rootCA.pem")
    path.write_bytes(made)
    typer.echo(
        f"{path}: valid until {until:%Y-%m-%d}; send it to everybody for `fedweave sites accept DIR/MEMBER {path}`"
    )
