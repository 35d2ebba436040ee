"""Addresses of databases, as people write them and as they may be shown."""

from urllib.parse import urlsplit

from unisono.errors import MisuseError

SCHEMES = ("postgres", "postgresql")


def is_postgres(place: object) -> bool:
    """An address of a database, and no file's name."""
    return isinstance(place, str) and place.partition("://")[0] in SCHEMES


def place_of(url: str) -> str:
    """The address without its password and its options."""
    try:
        parts = urlsplit(url)
        port = parts.port or 5432
    except ValueError as error:
        raise MisuseError(f"no address of a database: {error}; like postgres://user@host:5432/database") from None
    if parts.scheme not in SCHEMES:
        raise MisuseError(f"{url!r} is no address of a database: write postgres://user@host:5432/database")
    user = f"{parts.username}@" if parts.username else ""
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or "localhost"
    return f"postgres://{user}{host}:{port}/{parts.path.strip('/') or parts.username or ''}"
