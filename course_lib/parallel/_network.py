"""How the ranks of one machine reach each other. No torch."""

import socket

__all__ = ["loopback", "loopback_problem"]


def loopback() -> str | None:
    """Name of the network interface that leads back to this machine (lo, lo0), for gloo; None where it has no name.

    Gloo would look up the machine's own host name, which fails on some laptops and in some containers.
    """
    names = [name for _, name in socket.if_nameindex()] if hasattr(socket, "if_nameindex") else []
    return next((name for name in names if name in ("lo", "lo0")), None)


def loopback_problem() -> str | None:
    """Why a process here cannot reach another one over 127.0.0.1 (a sandbox without `lo`); None when it can."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), 5):
            return None
    except OSError as error:
        return error.strerror or str(error)
