"""Configuration of the embedded broker (DESIGN §10)."""

from __future__ import annotations

from pathlib import Path

FIXED: dict[str, str] = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    # What the product asks of any broker.
    "group.min.session.timeout.ms": "3000",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.session.timeout.ms": "3000",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # A topic nobody created is a misspelt prefix.
    "auto.create.topics.enable": "false",
    # One node.
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    # A killed broker comes back once its old registration has timed out: 14 s with the default of 9 s.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # Small and fast to start: the defaults (50 partitions each, 128 MiB to compact with) are for servers.
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "log.cleaner.dedupe.buffer.size": "16777216",
    "log.index.size.max.bytes": "1048576",
    "num.network.threads": "2",
    "num.io.threads": "4",
}

# No shutdown hook of log4j's own: Kafka's hook would log into a closed file.
LOG4J = """\
shutdownHook = disable
status = error
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = ${sys:dueline.log}
appender.file.filePattern = ${sys:dueline.log}.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{ISO8601} %p %m (%c{1})%n%ex
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 8MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 1
rootLogger.level = info
rootLogger.appenderRef.file.ref = file
"""


def server_properties(*, data: Path, host: str, port: int, controller_port: int) -> str:
    """The broker's properties file: both listeners on `host` only."""
    client, controller = f"PLAINTEXT://{host}:{port}", f"CONTROLLER://{host}:{controller_port}"
    settings = FIXED | {
        "listeners": f"{client},{controller}",
        "advertised.listeners": client,
        "controller.quorum.voters": f"1@{host}:{controller_port}",
        # A backslash or a line end in the path would be an escape in a properties file.
        "log.dirs": str(data).replace("\\", "\\\\"),
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())
