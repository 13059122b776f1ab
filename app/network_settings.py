"""Options of the address of a server, and of the names under which it is reached."""

from __future__ import annotations

from typing import Annotated

from app.remote_settings import RemoteSettings
from engine.options import Option, at_least, between

NETWORK = "Network"  # group of options


class NetworkSettings(RemoteSettings, frozen=True, kw_only=True):
    """Where a server listens, and which names and origins it accepts."""

    host: Annotated[str, Option(NETWORK, "address to listen on; 127.0.0.1 is this machine only")] = "127.0.0.1"
    port: Annotated[int, Option(NETWORK, "port to listen on; 0 takes a free one", bounds=(between(0, 65535),))] = 8000
    reuse_port: Annotated[
        bool,
        Option(
            NETWORK,
            "share the port with a server that this one replaces: accept connections once the model is loaded, then "
            "all new ones (Linux)",
        ),
    ] = False
    root_path: Annotated[
        str, Option(NETWORK, "path under which a proxy serves this server, such as /llm, stripped or not")
    ] = ""
    keep_alive: Annotated[
        int,
        Option(
            NETWORK,
            "seconds after an answer for which an idle connection stays open; longer than a proxy keeps its own",
            bounds=(at_least(1),),
        ),
    ] = 75
    allowed_hosts: Annotated[
        tuple[str, ...],
        Option(
            NETWORK,
            "names in the Host header that are accepted besides localhost, separated by commas, such as a proxy's; "
            "*: any",
            "none on a loopback address; on others every IP address and this machine's own names",
            kind=str,
        ),
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...],
        Option(
            NETWORK,
            "origins of pages that may use this server from a browser besides its own, separated by commas, such as "
            "https://chat.example.com; *: any",
            "none",
            kind=str,
        ),
    ] = ()
