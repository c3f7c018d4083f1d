"""Checks that a Ray cluster answers at an address, and takes this user's token, before Ray is to join it.

Ray itself would try for half a minute or more, and calls to its control service cannot be interrupted.
"""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

from ray import exceptions
from ray._private import services
from ray._raylet import GcsClient  # type: ignore[attr-defined]

ANSWER_S = 7.0
"""How long a cluster's address may take to answer."""

SETTINGS = b"\0\0\0\4\0\0\0\0\0"
"""An empty frame of settings, with which both sides of HTTP/2, and so of gRPC, begin; its fourth byte is the kind."""

HTTP2_BEGINS = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS

REFUSED: Any = getattr(exceptions, "AuthenticationError", ())
"""Ray's error for a token that is missing or wrong; older versions have no tokens."""


def checked(address: str) -> str:
    """Return the host:port of the cluster that an address means, which answers and takes this user's token.

    Raises:
        OSError, ValueError: the address means none, or there is none, or it refuses; the error says which.
    """
    bootstrap = services.canonicalize_bootstrap_address(address)
    if bootstrap is None:
        raise ValueError('it must be "auto" or a host:port')
    # A cluster that Ray finds is one of this machine; any other receives the token only if RAY_AUTH_MODE says so.
    _take_token(is_ours=address == "auto" and not os.environ.get("RAY_ADDRESS"))
    silence = TimeoutError(f"no answer within {ANSWER_S:g} s")
    error: list[Exception] = [silence]

    def ask() -> None:
        try:
            _ask(bootstrap)
        except TimeoutError:
            # The connection's own limit may come a moment before the thread's.
            error[0] = silence
        except Exception as why:
            error[0] = why
        else:
            error.clear()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(ANSWER_S)
    if error:
        raise error[0]
    return bootstrap


def _take_token(is_ours: bool) -> None:
    """Have Ray read this user's token, as it does itself before it joins a cluster; it would crash without one."""
    try:
        from ray._private.authentication import authentication_token_setup as setup
    except ImportError:
        return
    if is_ours:
        setup.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
    try:
        setup.ensure_token_if_auth_enabled(create_token_if_missing=False)
    except REFUSED:
        raise PermissionError("this user has no token, and RAY_AUTH_MODE asks for one") from None


def _ask(bootstrap: str) -> None:
    """Raise OSError if nothing that speaks gRPC answers at host:port, or if it refuses."""
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER_S) as connection:
        # With TLS nothing is said before a handshake.
        if os.environ.get("RAY_USE_TLS", "0").lower() not in ("1", "true"):
            connection.sendall(HTTP2_BEGINS)
            if connection.recv(len(SETTINGS))[3:4] != SETTINGS[3:4]:
                raise OSError("what listens there is not Ray")
    try:
        GcsClient(address=bootstrap)
    except REFUSED:
        raise PermissionError("it does not take this user's token, or it got none") from None
    except exceptions.RayError as error:
        raise OSError(str(error)) from None
