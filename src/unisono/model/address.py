"""`host:port`, as it stands in deployment files and on command lines."""

from unisono.errors import MisuseError


def endpoint(text: str) -> tuple[str, int]:
    """The host and the port; IPv6 in brackets, `[::1]:7474`. Port 0 is any that is free, where one listens."""
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise MisuseError(f"{text!r}: write an IPv6 address in brackets, like [{host}]:{port}")
    if not host or not (port.isascii() and port.isdecimal()):
        raise MisuseError(f"{text!r} is not host:port, like 127.0.0.1:7474")
    if int(port) > 65_535:
        raise MisuseError(f"{text!r}: ports end at 65535")
    return host, int(port)


def host_port(host: str | None, port: int | None) -> str:
    """As `endpoint` reads it."""
    return f"[{host}]:{port}" if host is not None and ":" in host else f"{host}:{port}"
