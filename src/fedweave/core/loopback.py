"""What a server on this machine's loopback interface answers to."""

LOOPBACK = "127.0.0.1"


def names_loopback(host: str) -> bool:
    """Whether the header `Host` of a request names the loopback interface, with a port: a web page from elsewhere that
    has its own name lead here (DNS rebinding) asks with that name."""
    return host.rpartition(":")[0] in (LOOPBACK, "localhost")
