"""Which librdkafka keys an operator may set, and which of them hold secrets."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

from pipeline.core.errors import InvalidInput

_ALLOWED = re.compile(
    r"security\.protocol|sasl\..+|ssl\..+|enable\.ssl\.certificate\.verification"
    r"|client\.(id|rack|dns\.lookup)|broker\.address\.(family|ttl)|socket\..+"
    r"|reconnect\.backoff(\.max)?\.ms|connections\.max\.idle\.ms|metadata\.max\.age\.ms"
    r"|topic\.metadata\.refresh\.interval\.ms|compression\.(type|codec|level)"
    r"|fetch\.(message\.)?max\.bytes|queued\.max\.messages\.kbytes|debug|log_level"
)
_OWNED: Mapping[str, str] = MappingProxyType(
    {
        "bootstrap.servers": "set DUELINE_BOOTSTRAP_SERVERS instead",
        "metadata.broker.list": "set DUELINE_BOOTSTRAP_SERVERS instead",
        "group.protocol": "set DUELINE_GROUP_PROTOCOL instead",
        "session.timeout.ms": "set DUELINE_SESSION_TIMEOUT_MS instead",
    }
)
_SECRET = re.compile(r"password|passphrase|secret|key\.pem|oauthbearer\.config")


def secret(key: str) -> bool:
    """Whether the value of a librdkafka key must never be shown."""
    return _SECRET.search(key) is not None


def check_client_key(key: str, field_name: str) -> None:
    """InvalidInput unless the operator may set this librdkafka key.

    An allow-list, since almost every other key (`enable.auto.commit`, `isolation.level`, `transactional.id`,
    `group.instance.id`, `auto.offset.reset`, `acks`, `enable.idempotence` …) decides whether jobs are lost or
    doubled, and librdkafka can even load code (`plugin.library.paths`).
    """
    if _ALLOWED.fullmatch(key) is None:
        raise InvalidInput(
            field_name, f"{key} is owned by the protocol: {_OWNED.get(key, 'it cannot be set')}"
        )
