"""`dueline token`, and what `dueline server` refuses before it serves."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from pipeline import codec
from pipeline.cli import server as server_command

DAY_MS = 86_400_000


@pytest.fixture(autouse=True)
def meta(store: Any) -> None:
    store.cluster.create_topic(store.names.meta, 1)


@pytest.fixture(autouse=True)
def prefix(monkeypatch: pytest.MonkeyPatch, store: Any) -> None:
    monkeypatch.setenv("DUELINE_PREFIX", store.names.prefix)


def records(store: Any) -> list[Any]:
    found: list[Any] = store.cluster.partition(store.names.meta, 0).read(0, 100)[0]
    return found


def test_a_token_is_shown_once_and_stored_as_a_hash(dueline: Any, store: Any) -> None:
    store.add_queues({"billing": 1})
    ran = dueline(
        "token", "create", "bill", "--role", "operator", "--queue", "billing", "--expires-in", "90d", "--json"
    )
    made = ran.json("token_create")
    assert ran.code == 0
    assert (made["name"], made["role"], made["queues"]) == ("bill", "operator", ["billing"])
    (record,) = records(store)
    assert record.key() == f"token/{made['id']}".encode()
    assert made["token"].split("_", 2)[2].encode() not in record.value()
    event = codec.EVENT.decode(record.value())
    assert int(event.detail["expires_at"]) == store.clock.now() + 90 * DAY_MS
    listed = dueline("token", "list", "--json")
    (line,) = listed.lines("token_list")
    assert line == {name: value for name, value in made.items() if name != "token"}
    assert made["token"] not in listed.out


def test_people_get_the_token_alone_on_stdout(dueline: Any) -> None:
    ran = dueline("token", "create", "ops", "--role", "admin")
    assert ran.out.startswith("dl_")
    assert len(ran.out.splitlines()) == 1
    assert "once" in ran.err
    table = dueline("token", "list").out
    assert "ops" in table
    assert "never" in table


def test_a_revoked_token_is_gone_with_its_sessions(dueline: Any, store: Any) -> None:
    made = dueline("token", "create", "ops", "--role", "admin", "--json").json("token_create")
    assert dueline("token", "revoke", made["id"], "--json").json("token_revoke")["outcome"] == "revoked"
    assert records(store)[-1].value() is None
    assert dueline("token", "list", "--json").out == ""
    assert dueline("token", "revoke", made["id"]).code == 3
    verbs = [
        codec.EVENT.decode(record.value()).detail["verb"]
        for number in range(store.layout.partitions)
        for record in store.cluster.partition(store.names.events, number).read(0, 100)[0]
    ]
    assert verbs == ["token.create", "token.revoke"]


@pytest.mark.parametrize(
    ("words", "field"),
    [
        (("", "--role", "viewer"), "name"),
        (("a", "--role", "viewer", "--queue", "No"), "queue"),
        (("a", "--role", "viewer", "--queue", "nowhere"), "queue"),
        (("a", "--role", "viewer", "--expires-in", "0s"), "--expires-in"),
        (("a", "--role", "viewer", "--expires-in", "soon"), "--expires-in"),
        (("a", "--role", "root"), "--role"),
        (("a",), "--role"),
    ],
)
def test_tokens_that_make_no_sense(dueline: Any, store: Any, words: tuple[str, ...], field: str) -> None:
    ran = dueline("token", "create", *words)
    assert ran.code == 2
    assert field in ran.err
    assert records(store) == []


# -- the server ----------------------------------------------------------------------------------------------


def test_a_missing_extra_is_named(dueline: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        server_command, "find_spec", lambda name: None if name == "uvicorn" else find_spec(name)
    )
    ran = dueline("server")
    assert ran.code == 4
    assert ran.err == 'dueline: uvicorn is missing: pip install "dueline[server]"\n'


@pytest.mark.parametrize("words", [("--host", "no host"), ("--port", "70000"), ("--port", "x")])
def test_addresses_that_make_no_sense(dueline: Any, words: tuple[str, str]) -> None:
    ran = dueline("server", *words)
    assert ran.code == 2
    assert words[0] in ran.err
