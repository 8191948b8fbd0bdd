"""The CRDs' patterns in words, for messages about values that do not match."""

from __future__ import annotations

_NAME = "lower-case letters, digits and -, with a letter or digit at both ends"
WORDS = {
    r"^[0-9]+(\.[0-9]+)?(([KMGTPE]i)|[kMGTPEmun])?$": "a quantity, such as 10Gi, 500M or 250m",
    r"^[0-9]+(\.[0-9]+)?(([KMGTPE]i)|[kMGTPEm])?$": "a quantity, such as 10Gi, 500M or 250m",
    r"^[1-9][0-9]*(Ki|Mi|Gi)$": "a size with its unit, such as 128Mi",
    r"^[0-9]+[kmgt]$": "a number and k, m, g or t, as Java has it: 2g for 2 GiB, 512m for 512 MiB",
    r"^([0-9]{1,2}(\.[0-9]{1,6})?|100)%$": "a count, such as 1000, or a percentage, such as 0.1%",
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$": _NAME,
    r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$": f"1 to 63 {_NAME}",
    r"^[a-z0-9]([-a-z0-9]{0,38}[a-z0-9])?$": f"1 to 40 {_NAME}",
    r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$": "lower-case letters, digits, - and ., a letter or digit at both ends",
    r"^[a-z]([a-z0-9-]{0,13}[a-z0-9])?$": "1 to 15 lower-case letters, digits and -, beginning with a letter",
    r"^[a-zA-Z0-9._-]+$": "letters, digits, ., _ and -",
    r"^[ -~]+$": "printable characters of ASCII",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "letters, digits and _, not beginning with a digit",
    r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)*$": "a message's name with its package, such as flights.Flight",
    r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+$": "NAMESPACE.TABLE, such as flights.delays",
    r"^/mnt(/[a-zA-Z0-9_-][a-zA-Z0-9._-]*)+$": "a folder below /mnt",
    r"^[^\s,:]+:[0-9]{1,5}(,[^\s,:]+:[0-9]{1,5})*$": "HOST:PORT, or several with commas between",
    r"^([01][0-9]|2[0-3]):[0-5][0-9]$": "a time from 00:00 to 23:59",
    r"^https?://\S+$": "a URL that begins with http:// or https://",
    r"^https?://[^\s/]+/?$": "a URL of a server, such as https://HOST:PORT",
    r"^https?://[^\s/@?#]+(/[^\s@?#]*)?$": "http:// or https:// with a host, without user and password",
    r"^(jdbc:|https?://)\S+$": "a URL that begins with jdbc:, http:// or https://",
    r"^(/.+|s3a://[^/]+/[^/].*)$": "an absolute path, or s3a://BUCKET/FOLDER",
    r"^[0-9a-fA-F.:]+/[0-9]{1,3}$": "a network, such as 192.0.2.0/24",
}
_CRON = r"^(@(yearly|annually|monthly|weekly|daily|midnight|hourly)|\S+( +\S+){4})$"
WORDS[_CRON] = "five fields (minute hour day-of-month month day-of-week), such as 0 3 * * *, or @daily"


def in_words(pattern: str) -> str:
    """What a text must be; the pattern itself if it has no words."""
    return WORDS.get(pattern, f"text that matches {pattern}")
