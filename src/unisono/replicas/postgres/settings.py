"""Settings of a session that an operation may depend on: the same at every replica, whatever a database or a role has
been told by ALTER … SET."""

from unisono.errors import MisuseError
from unisono.postgres.connection import PostgresConnection

SETTINGS = {
    "TimeZone": "UTC",
    "timezone_abbreviations": "Default",
    "DateStyle": "ISO, YMD",
    "IntervalStyle": "postgres",
    "lc_monetary": "C",
    "lc_numeric": "C",
    "lc_time": "C",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "xmlbinary": "base64",
    "xmloption": "content",
    "search_path": "public",
    "default_text_search_config": "pg_catalog.simple",
    "default_toast_compression": "pglz",
    "default_table_access_method": "heap",
    "default_tablespace": "",
    "check_function_bodies": "on",
    "plpgsql.check_asserts": "on",
    "standard_conforming_strings": "on",
    "backslash_quote": "safe_encoding",
    "transform_null_equals": "off",
    "array_nulls": "on",
    "quote_all_identifiers": "off",
    "row_security": "on",
    "gin_fuzzy_search_limit": "0",
    "synchronous_commit": "on",
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "default_transaction_read_only": "off",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "statement_timeout": "0",
    "lock_timeout": "30s",
}
_OF_SUPERUSERS = {
    "session_replication_role": "origin",
    "lo_compat_privileges": "off",
    "plpgsql.variable_conflict": "error",
    "plpgsql.extra_errors": "none",
}
"""Nobody else may set them, so they have to be so."""


def connect(url: str, name: str, **more: str) -> PostgresConnection:
    """A session as all replicas have it; MisuseError for a database in which it cannot be had."""
    connection = PostgresConnection(url, name, **SETTINGS | more)
    try:
        for setting, value in _OF_SUPERUSERS.items():
            found = connection.texts("SELECT current_setting($1, true)", (setting,))[0][0]
            if found not in ("", value):
                raise MisuseError(
                    f"{connection.place} has {setting} = {found}, which changes what operations do: "
                    f"ALTER DATABASE … RESET {setting}, and of the role"
                )
    except BaseException:
        connection.close()
        raise
    return connection
