"""No container engine runs the compose file here, so what can be read off it is checked: what it starts, that
nothing is reachable from outside, and that the brokers keep the promises of DESIGN §3 and §10."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, Any] = COMPOSE["services"]
BROKERS = ["kafka-1", "kafka-2", "kafka-3"]
PROCESSES = ["dispatcher-1", "dispatcher-2", "worker-1", "worker-2"]


def test_it_is_three_brokers_the_topics_two_dispatchers_two_workers_a_server_and_who_watches_them() -> None:
    assert sorted(SERVICES) == sorted([*BROKERS, "topics", *PROCESSES, "server", "prometheus"])
    assert SERVICES["server"]["command"] == ["server"]
    assert SERVICES["topics"]["command"] == ["topics", "create"]
    assert [SERVICES[name]["command"][0] for name in PROCESSES] == ["dispatcher"] * 2 + ["worker"] * 2


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_is_pinned_or_built_here(name: str) -> None:
    service = SERVICES[name]
    if name in BROKERS:
        assert service["image"] == "apache/kafka:4.4.0"
    elif name == "prometheus":
        assert re.fullmatch(r"prom/prometheus:v\d+\.\d+\.\d+", service["image"])
    else:
        assert service["build"] == "."


def test_the_base_image_and_the_installer_are_pinned() -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    bases = re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)
    assert bases
    assert all(re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", base) for base in bases)
    assert re.search(r"uv==\d+\.\d+\.\d+", dockerfile)
    assert "uv sync --frozen" in dockerfile


def test_the_image_does_not_run_as_root() -> None:
    last_stage = (ROOT / "Dockerfile").read_text().rpartition("FROM ")[2]
    assert re.search(r"^USER dueline$", last_stage, re.MULTILINE)


def test_what_the_image_copies_is_in_the_build_context() -> None:
    ignore = (ROOT / ".dockerignore").read_text().split()
    assert ignore[0] == "*"
    for line in re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE):
        for source in line.split():
            assert f"!{source}" in ignore
            assert (ROOT / source).exists()


def test_ports_are_published_on_the_loopback_only_and_once() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(published) == len(set(published)) == len([*BROKERS, "server", "prometheus"])
    assert all(port.startswith("127.0.0.1:") for port in published)


@pytest.mark.parametrize("name", BROKERS)
def test_a_broker_tells_clients_the_port_that_it_publishes(name: str) -> None:
    port = SERVICES[name]["ports"][0].split(":")[1]
    listeners = SERVICES[name]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    assert listeners == f"INTERNAL://{name}:9092,HOST://127.0.0.1:{port}"


@pytest.mark.parametrize("name", BROKERS)
def test_a_broker_has_a_health_check_that_asks_it_something(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert "kafka-broker-api-versions.sh" in check["test"][1]
    assert {"interval", "timeout", "retries", "start_period"} <= check.keys()


def test_everything_waits_for_what_it_needs() -> None:
    assert SERVICES["topics"]["depends_on"] == {name: {"condition": "service_healthy"} for name in BROKERS}
    for name in [*PROCESSES, "server"]:
        assert SERVICES[name]["depends_on"] == {"topics": {"condition": "service_completed_successfully"}}


def test_everything_comes_back_after_a_crash() -> None:
    assert SERVICES["topics"]["restart"] == "on-failure"
    assert {SERVICES[name]["restart"] for name in [*BROKERS, *PROCESSES, "server", "prometheus"]} == {
        "unless-stopped"
    }


def test_every_process_has_a_named_volume_of_its_own() -> None:
    mounted = [SERVICES[name]["volumes"] for name in [*BROKERS, *PROCESSES, "server"]]
    assert all(len(volumes) == 1 for volumes in mounted)
    names = [volumes[0].split(":")[0] for volumes in mounted]
    assert sorted(names) == sorted(COMPOSE["volumes"])


@pytest.mark.parametrize("name", BROKERS)
def test_data_lies_on_the_volume(name: str) -> None:
    assert SERVICES[name]["volumes"][0].endswith(":" + SERVICES[name]["environment"]["KAFKA_LOG_DIRS"])


@pytest.mark.parametrize("name", [*PROCESSES, "server"])
def test_state_lies_on_the_volume(name: str) -> None:
    assert SERVICES[name]["volumes"][0].endswith(":" + SERVICES[name]["environment"]["DUELINE_STATE_DIR"])


def test_prometheus_scrapes_every_process_where_it_serves_the_network_and_nobody_else() -> None:
    config = yaml.safe_load(COMPOSE["configs"]["prometheus"]["content"])
    assert SERVICES["prometheus"]["configs"] == [
        {"source": "prometheus", "target": "/etc/prometheus/prometheus.yml"}
    ]
    targets = [t for job in config["scrape_configs"] for s in job["static_configs"] for t in s["targets"]]
    environments = {name: SERVICES[name]["environment"] for name in PROCESSES}
    assert targets == [f"{name}:{environments[name]['DUELINE_METRICS_PORT']}" for name in PROCESSES]
    assert {e["DUELINE_METRICS_HOST"] for e in environments.values()} == {"0.0.0.0"}
    assert not any("ports" in SERVICES[name] for name in PROCESSES)


@pytest.mark.parametrize("name", PROCESSES)
def test_a_process_is_healthy_when_it_is_ready(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    port = SERVICES[name]["environment"]["DUELINE_METRICS_PORT"]
    assert f"http://127.0.0.1:{port}/readyz" in check["test"][-1]
    assert check["test"][:3] == ["CMD", "python", "-c"]
    compile(check["test"][-1], "healthcheck", "exec")


def test_the_server_is_ready_where_it_listens_and_is_published_by_its_own_port() -> None:
    server = SERVICES["server"]
    port = server["environment"]["DUELINE_SERVER_PORT"]
    assert server["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert f"http://127.0.0.1:{port}/readyz" in server["healthcheck"]["test"][-1]
    compile(server["healthcheck"]["test"][-1], "healthcheck", "exec")


def test_the_image_has_what_the_server_needs() -> None:
    installed = re.findall(r"uv sync .*", (ROOT / "Dockerfile").read_text())
    assert installed
    assert all("--extra server" in line for line in installed)


KEPT = {
    "KAFKA_DEFAULT_REPLICATION_FACTOR": 3,
    "KAFKA_MIN_INSYNC_REPLICAS": 2,
    "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": 3,
    "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": 3,
    "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": 2,
    "KAFKA_UNCLEAN_LEADER_ELECTION_ENABLE": "false",
    "KAFKA_AUTO_CREATE_TOPICS_ENABLE": "false",
    "KAFKA_GROUP_MIN_SESSION_TIMEOUT_MS": 3000,
    "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": 0,
    "KAFKA_TRANSACTION_ABORT_TIMED_OUT_TRANSACTION_CLEANUP_INTERVAL_MS": 1000,
}


@pytest.mark.parametrize("name", BROKERS)
def test_the_brokers_keep_what_they_are_told(name: str) -> None:
    environment = SERVICES[name]["environment"]
    assert KEPT.items() <= environment.items()


def test_the_brokers_form_one_cluster() -> None:
    environments = [SERVICES[name]["environment"] for name in BROKERS]
    assert [environment["KAFKA_NODE_ID"] for environment in environments] == [1, 2, 3]
    assert len({environment["CLUSTER_ID"] for environment in environments}) == 1
    voters = environments[0]["KAFKA_CONTROLLER_QUORUM_VOTERS"]
    assert voters == "1@kafka-1:9093,2@kafka-2:9093,3@kafka-3:9093"


def test_there_is_no_secret_in_it() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    assert not re.search(r"(password|secret|token|api_?key)\w*\s*[:=]\s*\S", text, re.IGNORECASE)
