"""The names of this machine's loopback interface, which a local server accepts."""

import ipaddress

LOOPBACK = "127.0.0.1"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server on `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def name_in(host: str) -> str:
    """The name in a header `Host`, without its port."""
    return host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]


def names_loopback(host: str) -> bool:
    """Whether the header `Host` of a request names the loopback interface, with a port. A web page from elsewhere whose
    name was pointed at this machine (DNS rebinding) sends its own name."""
    return host.rpartition(":")[0] in (LOOPBACK, "localhost")
