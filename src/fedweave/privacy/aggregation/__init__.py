"""Secure aggregation: Bonawitz et al. 2017, "Practical secure aggregation for privacy-preserving machine learning",
figure 4 with all that it has against a server that cheats. Built from `cryptography` and `pycryptodome`; nothing here
knows tensors or how messages travel.

A federation prepares an epoch of several sums: every site advertises a key of its own for each of them, signed with its
certificate's key (`Participant.advertise`), and hands the others shares of what they may have to reveal (`share`). Then
every sum takes three exchanges: masked terms (`mask`), signatures on the list of those whose terms came (`sign`), and
shares (`reveal`), from which the server removes what masks are left (`opening.leftover`).

Deviations: what is shared are 128-bit seeds of keys and masks. A survivor that still answers when the sum is opened
tells the seed of its self mask besides the shares of others', so that shares are put together for those alone who no
longer do. Sealed shares wait at the server until they are needed, for all sums of an epoch.
"""

from fedweave.privacy.aggregation.identity import (
    REFUSED,
    REVOKED,
    STARTUP,
    Authority,
    Identity,
    check_signed,
    common_names,
    read_identity,
    read_root,
    revoked_by,
)
from fedweave.privacy.aggregation.messages import Advert, Answers, Group, Use, advertised, survived
from fedweave.privacy.aggregation.participant import Participant, leftover

__all__ = [
    "REFUSED",
    "REVOKED",
    "STARTUP",
    "Advert",
    "Answers",
    "Authority",
    "Group",
    "Identity",
    "Participant",
    "Use",
    "advertised",
    "check_signed",
    "common_names",
    "leftover",
    "read_identity",
    "read_root",
    "revoked_by",
    "survived",
]
