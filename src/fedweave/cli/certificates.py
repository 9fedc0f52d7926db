"""The commands `fedweave sites request`, `sign` and `accept`: keys that are made where they are used."""

from pathlib import Path
from typing import Annotated

import typer

SiteFolder = Annotated[Path, typer.Argument(metavar="DIR/SITE", help="The site's own folder.")]


def request(site: SiteFolder) -> None:
    """Make a new key at a site, and a request for its certificate; the old key is used until `accept`."""
    from fedweave.deploy.sites.issuing import request as asked

    path, fingerprint = asked(site)
    typer.echo(f"{path}: send it to the authority, and tell its owner by another way the key's fingerprint")
    typer.echo(fingerprint)


def sign(
    authority: Annotated[Path, typer.Argument(metavar="AUTHORITY", help="The authority's folder.")],
    asked: Annotated[Path, typer.Argument(metavar="REQUEST", help="What `request` made at a site.")],
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="FILE", help="The certificate.")] = None,
) -> None:
    """Sign a site's request with the authority's key; no private key of the site is needed."""
    from fedweave.deploy.sites.issuing import sign as signed

    name, made, fingerprint = signed(authority, asked)
    path = out or Path(f"{name}.crt")
    path.write_bytes(made)
    typer.echo(f"{path}: the certificate of {name}; send it back if this is the key's fingerprint there")
    typer.echo(fingerprint)


def accept(
    site: SiteFolder,
    signed: Annotated[Path, typer.Argument(metavar="CERTIFICATE", help="What `sign` made.")],
) -> None:
    """Take up the certificate of the key that `request` made; from its next start on the site uses these."""
    from fedweave.deploy.sites.issuing import accept as taken

    fingerprint = taken(site, signed)
    typer.echo(f"{site}: key and certificate are in use from the next `fedweave sites start` on")
    typer.echo(f"Sites whose policy.members lists {site.resolve().name} need its new fingerprint there: {fingerprint}")
