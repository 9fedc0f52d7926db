"""The names of this machine's loopback interface, which a local server accepts."""

LOOPBACK = "127.0.0.1"


def names_loopback(host: str) -> bool:
    """Whether the header `Host` of a request names the loopback interface, with a port. A web page from elsewhere whose
    name was pointed at this machine (DNS rebinding) sends its own name."""
    return host.rpartition(":")[0] in (LOOPBACK, "localhost")
