from __future__ import annotations

import json
import os
import pickle
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pipeline.config import (
    DEV_STORE,
    HIDDEN,
    Settings,
    describe,
    load_settings,
    running_dev_store,
    unknown_rates,
    unknown_variables,
)
from pipeline.core.errors import InvalidInput, StoreUnreachable

Setenv = Callable[..., None]
DOCS = Path(__file__).parents[2] / "docs" / "settings.md"


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("DUELINE_") or name == "KAFKA_BOOTSTRAP_SERVERS":
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.fixture
def setenv(monkeypatch: pytest.MonkeyPatch) -> Setenv:
    def put(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return put


def write_dev_store(directory: Path, bootstrap: str, pid: int) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "dev.json").write_text(json.dumps({"bootstrap": bootstrap, "pid": pid}))


@pytest.fixture
def listening() -> Any:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


# -- precedence ----------------------------------------------------------------------------------------------


def test_defaults_need_no_environment(tmp_path: Path) -> None:
    settings = load_settings()
    assert settings == Settings()
    assert (settings.prefix, settings.queue, settings.group_protocol) == ("dueline", "default", "classic")
    assert settings.bootstrap_servers is None
    assert settings.session_timeout_ms is None
    assert settings.state_dir == tmp_path / "dueline"
    assert settings.source("prefix") == "default"
    assert settings.names.jobs == "dueline.jobs"


def test_an_argument_wins_over_the_environment_and_that_over_the_default(setenv: Setenv) -> None:
    setenv(DUELINE_PREFIX="from-env", DUELINE_QUEUE="mail")
    settings = load_settings(prefix="from-argument", queue=None)
    assert (settings.prefix, settings.source("prefix")) == ("from-argument", "argument")
    assert (settings.queue, settings.source("queue")) == ("mail", "DUELINE_QUEUE")


def test_our_bootstrap_variable_wins_over_the_shared_one(setenv: Setenv) -> None:
    setenv(KAFKA_BOOTSTRAP_SERVERS="company:9092")
    shared = load_settings()
    assert (shared.require_bootstrap(), shared.source("bootstrap_servers")) == (
        "company:9092",
        "KAFKA_BOOTSTRAP_SERVERS",
    )
    setenv(DUELINE_BOOTSTRAP_SERVERS="a:1, b:2")
    ours = load_settings()
    assert ours.require_bootstrap() == "a:1,b:2"
    assert ours.source("bootstrap_servers") == "DUELINE_BOOTSTRAP_SERVERS"
    assert load_settings(bootstrap_servers="c:3").source("bootstrap_servers") == "argument"


def test_an_empty_variable_counts_as_not_given(setenv: Setenv) -> None:
    setenv(DUELINE_PREFIX="", DUELINE_KAFKA__SECURITY_PROTOCOL="")
    assert load_settings() == Settings()


def test_a_relative_xdg_directory_is_ignored(setenv: Setenv) -> None:
    setenv(XDG_STATE_HOME="relative", HOME="/home/somebody")
    assert load_settings().state_dir == Path("/home/somebody/.local/state/dueline")


def test_without_a_home_the_state_directory_must_be_told(
    setenv: Setenv, monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    setenv(XDG_STATE_HOME="")
    monkeypatch.setattr(Path, "expanduser", homeless)
    with pytest.raises(InvalidInput, match="DUELINE_STATE_DIR: there is no home directory"):
        load_settings()


def test_the_state_directory_is_absolute_and_knows_home(setenv: Setenv) -> None:
    setenv(HOME="/home/somebody")
    assert load_settings(state_dir="~/here").state_dir == Path("/home/somebody/here")
    assert load_settings(state_dir=Path("here")).state_dir == Path.cwd() / "here"


# -- malformed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("DUELINE_BOOTSTRAP_SERVERS", "host:port"),
        ("DUELINE_BOOTSTRAP_SERVERS", "a:1,,b:2"),
        ("DUELINE_BOOTSTRAP_SERVERS", "a:0"),
        ("DUELINE_BOOTSTRAP_SERVERS", "a:65536"),
        ("KAFKA_BOOTSTRAP_SERVERS", "two hosts"),
        ("DUELINE_PREFIX", "Upper"),
        ("DUELINE_PREFIX", "x" * 81),
        ("DUELINE_QUEUE", "a/b"),
        ("DUELINE_CONCURRENCY", "0"),
        ("DUELINE_CONCURRENCY", "many"),
        ("DUELINE_SESSION_TIMEOUT_MS", "2999"),
        ("DUELINE_PAYLOAD_LIMIT", "2097152"),
        ("DUELINE_GROUP_PROTOCOL", "modern"),
        ("DUELINE_HTTP_ALLOW", "10.0.0.0/40"),
        ("DUELINE_HTTP_ALLOW", "fine.example,not fine"),
        ("DUELINE_HTTP_ALLOW", "fine.example:0"),
        ("DUELINE_HTTP_ALLOW", "fine.example:65536"),
        ("DUELINE_HTTP_ALLOW", "http://fine.example"),
        ("DUELINE_HTTP_ALLOW", "a.*.example"),
        ("DUELINE_HTTP_SECRETS", "API"),
        ("DUELINE_HTTP_SECRETS", "api@fine.example"),
        ("DUELINE_HTTP_SECRETS", "API@10.0.0.0/8"),
        ("DUELINE_HTTP_SECRETS", "API@"),
        ("DUELINE_HTTP_TIMEOUT_MS", "99"),
        ("DUELINE_SCRIPT_ALLOW", "bin/report"),
        ("DUELINE_SCRIPT_ALLOW", "~/report"),
        ("DUELINE_SCRIPT_ENV", "A=b"),
        ("DUELINE_SCRIPT_ENV", "DUELINE_SECRET_API"),
        ("DUELINE_SCRIPT_CPU_MS", "999"),
        ("DUELINE_SCRIPT_MEMORY_MB", "0"),
        ("DUELINE_SCRIPT_FILES", "many"),
        ("DUELINE_TOPIC_ALLOW", "or ders"),
        ("DUELINE_TOPIC_ALLOW", "a*b"),
    ],
)
def test_a_malformed_variable_is_named(setenv: Setenv, variable: str, value: str) -> None:
    setenv(**{variable: value})
    with pytest.raises(InvalidInput) as error:
        load_settings()
    assert error.value.field == variable
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "value"),
    [("prefix", "a\0b"), ("concurrency", 1.5), ("concurrency", True), ("state_dir", ""), ("http_allow", 5)],
)
def test_a_malformed_argument_is_named(name: str, value: object) -> None:
    with pytest.raises(InvalidInput) as error:
        load_settings(**{name: value})
    assert error.value.field == name


def test_an_unknown_argument_is_refused_with_the_likely_one() -> None:
    with pytest.raises(
        InvalidInput, match=r"bootstrap_server: unknown setting; did you mean bootstrap_servers\?"
    ):
        load_settings(bootstrap_server="a:1")


@pytest.mark.parametrize(
    ("servers", "kept"),
    [("[::1]:9092", "[::1]:9092"), ("SASL_SSL://b-1.x:9094,b2", "SASL_SSL://b-1.x:9094,b2")],
)
def test_every_form_of_server_that_the_client_library_takes(servers: str, kept: str) -> None:
    assert load_settings(bootstrap_servers=servers).bootstrap_servers == kept


def test_hosts_and_networks_may_be_allowed(setenv: Setenv) -> None:
    setenv(DUELINE_HTTP_ALLOW="hooks.internal, *.svc.local,10.1.0.0/16,fd00::/8")
    assert load_settings().http_allow == ("hooks.internal", "*.svc.local", "10.1.0.0/16", "fd00::/8")
    assert load_settings(http_allow=["::1"]).http_allow == ("::1",)


def test_hosts_may_have_a_port(setenv: Setenv) -> None:
    allowed = ("hooks.internal:8080", "*.svc.local:80", "[::1]:8080", "127.0.0.1:9000")
    setenv(DUELINE_HTTP_ALLOW=",".join(allowed))
    assert load_settings().http_allow == allowed


def test_what_the_built_in_handlers_may_do(setenv: Setenv, tmp_path: Path) -> None:
    setenv(
        DUELINE_HTTP_SECRETS="API@api.example, HOOK@*.example:8443",
        DUELINE_SECRETS_DIR=str(tmp_path),
        DUELINE_SCRIPT_ALLOW="/opt/jobs/, /usr/bin/report",
        DUELINE_SCRIPT_ENV="TZ,REGION",
        DUELINE_TOPIC_ALLOW="orders, audit.*, *",
    )
    settings = load_settings()
    assert settings.http_secrets == ("API@api.example", "HOOK@*.example:8443")
    assert settings.secrets_dir == tmp_path
    assert settings.script_allow == ("/opt/jobs/", "/usr/bin/report")
    assert settings.script_env == ("TZ", "REGION")
    assert settings.topic_allow == ("orders", "audit.*", "*")


def test_a_secret_is_no_setting_and_shown_nowhere(setenv: Setenv) -> None:
    setenv(DUELINE_SECRET_API="hunter2")
    assert unknown_variables() == []
    assert "hunter2" not in str([*describe(load_settings())])


# -- librdkafka keys -----------------------------------------------------------------------------------------


def test_client_keys_pass_through_and_arguments_win_key_by_key(setenv: Setenv) -> None:
    setenv(
        DUELINE_KAFKA__SECURITY_PROTOCOL="SASL_SSL",
        DUELINE_KAFKA__SASL_USERNAME="env",
        DUELINE_KAFKA__LOG_LEVEL="3",
    )
    settings = load_settings(bootstrap_servers="a:1", kafka={"sasl.username": "argument"})
    assert settings.client_config() == {
        "bootstrap.servers": "a:1",
        "client.id": "dueline",
        "security.protocol": "SASL_SSL",
        "sasl.username": "argument",
        "log_level": "3",
    }
    assert settings.source("kafka.security.protocol") == "DUELINE_KAFKA__SECURITY_PROTOCOL"
    assert settings.source("kafka.sasl.username") == "argument"


@pytest.mark.parametrize(
    "key",
    [
        "enable.auto.commit",
        "isolation.level",
        "transactional.id",
        "group.instance.id",
        "auto.offset.reset",
        "acks",
        "enable.idempotence",
        "group.id",
        "plugin.library.paths",
        "message.max.bytes",
        "sasl",
        "no.such.key",
    ],
)
def test_keys_that_the_protocol_owns_are_refused_by_name(setenv: Setenv, key: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(f"{key} is owned by the protocol")):
        load_settings(kafka={key: "1"})
    variable = "DUELINE_KAFKA__" + key.upper().replace(".", "_")
    setenv(**{variable: "1"})
    with pytest.raises(InvalidInput) as error:
        load_settings()
    assert error.value.field == variable


@pytest.mark.parametrize(
    ("key", "instead"),
    [
        ("bootstrap.servers", "DUELINE_BOOTSTRAP_SERVERS"),
        ("session.timeout.ms", "DUELINE_SESSION_TIMEOUT_MS"),
        ("group.protocol", "DUELINE_GROUP_PROTOCOL"),
    ],
)
def test_a_key_with_a_setting_of_its_own_names_it(key: str, instead: str) -> None:
    with pytest.raises(InvalidInput, match=f"set {instead} instead"):
        load_settings(kafka={key: "1"})


SECRETS = ("sasl.password", "ssl.key.password", "ssl.key.pem", "sasl.oauthbearer.client.secret")


def test_a_secret_is_never_shown() -> None:
    settings = load_settings(kafka=dict.fromkeys(SECRETS, "hunter2") | {"ssl.ca.location": "/ca.pem"})
    shown = {row.name: row.value for row in describe(settings)}
    assert [shown[f"kafka.{key}"] for key in SECRETS] == [HIDDEN] * len(SECRETS)
    assert shown["kafka.ssl.ca.location"] == "/ca.pem"
    assert "hunter2" not in repr(settings) + str(settings)
    assert settings.kafka["sasl.password"] == "hunter2"


def test_settings_travel_to_another_process() -> None:
    settings = load_settings(kafka={"client.id": "x"}, prefix="p")
    copy = pickle.loads(pickle.dumps(settings))
    assert copy == settings
    assert copy.source("prefix") == "argument"


# -- the development store -----------------------------------------------------------------------------------


def test_no_store_is_said_when_first_needed_not_at_load() -> None:
    settings = load_settings()
    assert settings.source("bootstrap_servers") == "default"
    with pytest.raises(
        StoreUnreachable, match=r"no store: start `dueline dev` or set DUELINE_BOOTSTRAP_SERVERS"
    ):
        settings.require_bootstrap()


def test_a_running_dev_store_is_found_by_settings_made_before_it(listening: str) -> None:
    settings = load_settings()
    write_dev_store(settings.state_dir, listening, os.getpid())
    assert settings.require_bootstrap() == listening
    assert settings.client_config()["bootstrap.servers"] == listening
    assert settings.source("bootstrap_servers") == DEV_STORE
    assert next(row for row in describe(settings) if row.name == "bootstrap_servers").value == listening


def test_servers_that_are_set_win_over_a_running_dev_store(listening: str) -> None:
    settings = load_settings(bootstrap_servers="a:1")
    write_dev_store(settings.state_dir, listening, os.getpid())
    assert settings.require_bootstrap() == "a:1"
    assert settings.source("bootstrap_servers") == "argument"


def dead_pid() -> int:
    child = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(child, 0)
    return child


def test_a_dead_pid_or_a_silent_port_is_no_store(tmp_path: Path, listening: str) -> None:
    write_dev_store(tmp_path, listening, dead_pid())
    assert running_dev_store(tmp_path) is None
    with socket.create_server(("127.0.0.1", 0)) as server:
        closed = f"127.0.0.1:{server.getsockname()[1]}"
    write_dev_store(tmp_path, closed, os.getpid())
    assert running_dev_store(tmp_path) is None
    write_dev_store(tmp_path, listening, os.getpid())
    assert running_dev_store(tmp_path) == listening


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"bootstrap": "a:1"}',
        '{"bootstrap": "a", "pid": 1}',
        '{"bootstrap": "a:99999999", "pid": 1}',
    ],
)
def test_a_torn_file_is_no_store(tmp_path: Path, text: str) -> None:
    (tmp_path / "dev.json").write_text(text)
    assert running_dev_store(tmp_path) is None


# -- showing -------------------------------------------------------------------------------------------------


def test_a_mistyped_variable_is_pointed_out(setenv: Setenv) -> None:
    setenv(DUELINE_BOOTSTRAP_SERVER="a:1", DUELINE_KAFKA__CLIENT_ID="x", DUELINE_PREFIX="p")
    assert unknown_variables() == [
        "DUELINE_BOOTSTRAP_SERVER is not a setting; did you mean DUELINE_BOOTSTRAP_SERVERS?"
    ]


def test_the_page_of_settings_names_every_variable_with_its_default() -> None:
    page = DOCS.read_text()
    for row in describe(Settings()):
        assert row.variable in page, row.variable
        if row.name not in ("state_dir", "kafka.*"):
            assert f"| `{row.variable}` | {_default(row.value)} | {row.meaning} |" in page


def test_a_token_is_shown_by_nothing(setenv: Setenv) -> None:
    setenv(DUELINE_TOKEN="dl_secret")
    settings = load_settings()
    assert settings.token == "dl_secret"
    assert {row.name: row.value for row in describe(settings)}["token"] == HIDDEN
    assert {row.name: row.value for row in describe(Settings())}["token"] is None
    assert "dl_secret" not in repr(settings)
    setenv(DUELINE_TOKEN="a secret")
    with pytest.raises(InvalidInput, match=r"^DUELINE_TOKEN: is no token") as error:
        load_settings()
    assert "a secret" not in str(error.value)


def _default(value: object) -> str:
    return f"`{value}`" if value not in (None, []) else "—"


@pytest.mark.parametrize("given", [{"kafka": {"group.instance.id": "me"}}, {}])
def test_static_membership_is_refused_wherever_it_is_asked_for_h19(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    """A static member comes back with the generation it had: two processes would hold equal tokens."""
    if not given:
        monkeypatch.setenv("DUELINE_KAFKA__GROUP_INSTANCE_ID", "me")
    with pytest.raises(InvalidInput, match=r"group\.instance\.id is owned by the protocol"):
        load_settings(**given)


@pytest.mark.parametrize(
    ("text", "problem"), [("0", "not within 1"), ("9", "not within"), ("two", "whole number")]
)
def test_a_ring_has_between_one_and_eight_producers(
    monkeypatch: pytest.MonkeyPatch, text: str, problem: str
) -> None:
    monkeypatch.setenv("DUELINE_PRODUCERS", text)
    with pytest.raises(InvalidInput, match=problem):
        load_settings()


def test_a_rate_of_a_queue_that_is_not_there_is_pointed_out() -> None:
    settings = load_settings(queue_rates={"email": "5/s", "nowhere": 3})
    assert unknown_rates(settings, {"email": 12}) == ["queues.nowhere.rate: there is no queue nowhere"]


@pytest.mark.parametrize("given", [5, "email=5"])
def test_rates_that_are_no_mapping_are_refused(given: Any) -> None:
    with pytest.raises(InvalidInput, match="queue_rates"):
        load_settings(queue_rates=given)


def test_rates_come_from_variables_and_arguments(setenv: Setenv) -> None:
    setenv(DUELINE_QUEUES__EMAIL__RATE="30/m", DUELINE_QUEUES__SMS__RATE="2")
    settings = load_settings(queue_rates={"sms": 4}, catchup_rate="100/s")
    assert (settings.rates.catchup, dict(settings.rates.queues)) == (100, {"email": 0.5, "sms": 4})
    assert (settings.source("queues.email.rate"), settings.source("queues.sms.rate")) == (
        "DUELINE_QUEUES__EMAIL__RATE",
        "argument",
    )
    setenv(DUELINE_QUEUES__EMAIL__RATE="fast")
    with pytest.raises(InvalidInput, match="DUELINE_QUEUES__EMAIL__RATE"):
        load_settings()
