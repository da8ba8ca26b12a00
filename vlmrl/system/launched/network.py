"""The network between processes: servers ask for a token; whoever reaches ranks can run code in them."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["TOKEN", "warn_of_network"]

TOKEN = "VLMRL_SERVER_TOKEN"
"""Environment variable: the secret that a server of ours asks for."""


def warn_of_network(environment: Mapping[str, str]) -> str | None:
    """Return what to say where other machines can reach the processes; they ask for no password."""
    address = environment.get("MASTER_ADDR", "localhost")
    local = address in ("localhost", "::1") or address.startswith("127.")
    if local or environment.get("RANK", "0") != "0" or environment.get("GLOO_SOCKET_IFNAME"):
        return None
    return (
        f"warning: the processes meet at {address}, without authentication: whoever reaches that port "
        "can run code in them. Keep their network closed, and name its interface in GLOO_SOCKET_IFNAME"
    )
