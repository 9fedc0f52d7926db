"""One number that stands for a whole statement, against which a member can check its own lines without the others'.

Line k of n has a hash h_k = SHA-256 of a canonical encoding of the line. The chain starts with c_0, the hash of the
terms, the run and what pay is divided by (`dues.sums`), and goes on with c_k = SHA-256(c_{k-1} h_k); c_n is the
statement's digest. Whoever holds some of the lines, the other lines' hashes and the digest can work it out again. A
line's hash does not show its content, but confirms a guess of the whole line.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from fedweave.errors import UserError, listed
from fedweave.incentives.statement import MEASURES, SCHEMA, Terms


class Digest(NamedTuple):
    """start: c_0. lines: h_1 to h_n. digest: c_n. All SHA-256 in hexadecimal."""

    start: str
    lines: tuple[str, ...]
    digest: str


def digest(table: pa.Table, terms: Terms, run: str, sums: Mapping[int, float] | None = None) -> Digest:
    """The digest of a statement under its `terms`; run: the hash of the run that it is about. sums: of `dues.sums`.

    Raises:
        UserError: a column is missing or has another type than in `statement.SCHEMA`.
    """
    start, lines = _start(terms, run, sums), hashes(table)
    return Digest(start, lines, chained(start, lines))


def hashes(table: pa.Table) -> tuple[str, ...]:
    """The hash of each line.

    The encoding is a JSON list of the columns in the order of the schema, ASCII without blanks, with amounts in cents
    and what was measured as C99 hexadecimal floats (`float.hex`), which are exact.

    Raises:
        UserError: a column is missing or has another type than in `statement.SCHEMA`.
    """
    for field in SCHEMA:
        if field.name not in table.column_names or table[field.name].type != field.type:
            raise UserError(f"a statement needs a column {field.name} of type {field.type}; read it with its schema.")
    return tuple(_hash(_encoded([_plain(name, line[name]) for name in SCHEMA.names])) for line in table.to_pylist())


def chained(start: str, lines: Sequence[str]) -> str:
    """c_n from c_0 and the hashes of all lines."""
    link = bytes.fromhex(start)
    for line in lines:
        link = hashlib.sha256(link + bytes.fromhex(line)).digest()
    return link.hex()


def check(
    own: pa.Table, member: str, whole: Digest, terms: Terms, run: str, sums: Mapping[int, float] | None = None
) -> None:
    """Check a member's lines `own`, all that the statement has of it, against the digest of the whole.

    Raises:
        UserError: one of them is not in the statement, is another member's or there twice, or terms, run, hashes and
            digest do not belong together.
    """
    if whole.start != _start(terms, run, sums):
        raise UserError(
            "the statement is about another run, budget or currency, or the sums that pay is divided by were changed; "
            "ask for that of this run."
        )
    if chained(whole.start, whole.lines) != whole.digest:
        raise UserError("the hashes of the lines do not lead to the digest; ask for the statement again.")
    strangers = set(own["member"].to_pylist()) - {member}
    if strangers:
        raise UserError(f"lines of {', '.join(sorted(strangers))} are not those of {member}; give its own only.")
    known = set(whole.lines)
    listed = hashes(own)
    for line, number in zip(listed, own["round"].to_pylist(), strict=True):
        if line not in known:
            raise UserError(
                f"the line of {member} in round {number} is not in the statement: one of the two was changed, or they "
                "were written at different times. Write both anew with `fedweave statement`, or ask for both."
            )
    if len(set(listed)) < len(listed):
        raise UserError(f"a line of {member} is there twice; give each once.")


def of_member(table: pa.Table, member: str) -> pa.Table:
    """The lines of one member.

    Raises:
        UserError: it has none; lists who has.
    """
    own = table.filter(pc.equal(table["member"], member))
    if not len(own):
        names = listed(sorted(set(table["member"].to_pylist())))
        raise UserError(f"no lines of {member!r}; the statement has those of {names}.")
    return own


def _start(terms: Terms, run: str, sums: Mapping[int, float] | None) -> str:
    told = [[number, float(total).hex()] for number, total in sorted((sums or {}).items())]
    return _hash(_encoded([run, terms.cents, terms.currency, *([told] if told else [])]))


def _plain(name: str, value: object) -> object:
    if name == "pay":
        return int(value.scaleb(2))  # type: ignore[attr-defined]
    return float(value).hex() if name in MEASURES and value is not None else value  # type: ignore[arg-type]


def _encoded(values: list[object]) -> bytes:
    return json.dumps(values, ensure_ascii=True, separators=(",", ":")).encode()


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
