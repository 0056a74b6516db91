"""Who may what: every endpoint by every role, tokens, sessions, and what a web page can make a browser ask."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast

import pytest

from pipeline.adapters.memory_cluster import MemoryPartition
from pipeline.core.errors import InvalidInput, NotFound, StoreUnreachable
from pipeline.server import tokens as token_book
from pipeline.server.access import (
    CSRF_HEADER,
    LOCAL,
    SESSION_COOKIE,
    SESSION_MS,
    Forbidden,
    Principal,
    Role,
    Secret,
    Unauthenticated,
    bearer_of,
    check_csrf,
    csrf_of,
)
from pipeline.server.api import ENDPOINTS
from pipeline.server.api.bodies import BODIES
from pipeline.server.endpoint import Endpoint
from pipeline.server.tokens import checked_name, of_event, to_event

NAMES = {"{id}": "j" + "0" * 26, "{queue}": "default", "{backfill}": "b1"}
ROLES = ("viewer", "operator", "admin")


def request_of(endpoint: Endpoint) -> tuple[str, dict[str, Any]]:
    path = endpoint.path
    for name, value in NAMES.items():
        path = path.replace(name, value)
    if endpoint.name in ("listBuckets",):
        path += "?from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z&width=1h"
    if endpoint.changes and endpoint.query:
        path += "?wait=0s"
    body = BODIES[endpoint.body] if endpoint.body else None
    given = {} if body is None else {"json": body.get("examples", [{}])[0]}
    return path, given


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)
def test_each_endpoint_lets_in_the_roles_that_it_names_and_no_other(
    endpoint: Endpoint, serve: Callable[..., Any]
) -> None:
    served = serve(store_timeout_ms=500)
    tokens = {role: served.token(role) for role in ROLES}
    path, given = request_of(endpoint)
    assert endpoint.role is not None, "whoever is to come in without a token is named here"
    assert served.ask(endpoint.method, path, **given).status_code == 401
    for role in ROLES:
        status = served.ask(endpoint.method, path, token=tokens[role], **given).status_code
        allowed = Role.of(role) >= endpoint.role
        assert (status == 403) is not allowed, (role, status)
        assert status not in (401, 500), (role, status)


def test_the_table_says_what_each_role_may() -> None:
    """By hand: what the endpoints say must be what was meant."""
    admin = {each.name for each in ENDPOINTS if each.role is Role.ADMIN}
    assert admin == {"purgeQueue", "listTokens", "createToken", "revokeToken"}
    viewer = {each.name for each in ENDPOINTS if each.role is Role.VIEWER}
    assert viewer == {each.name for each in ENDPOINTS if not each.changes} - admin | {"previewSchedule"}


def test_each_way_in_is_named_once() -> None:
    assert len({each.name for each in ENDPOINTS}) == len(ENDPOINTS)
    assert len({(each.method, each.path) for each in ENDPOINTS}) == len(ENDPOINTS)


# -- queues --------------------------------------------------------------------------------------------------


def test_who_is_limited_to_a_queue_creates_and_sees_nothing_else(served: Any, store: Any) -> None:
    store.add_queues({"billing": 2})
    limited = served.token("operator", "billing")
    admin = served.token("admin")
    job = {"handler": "h", "in": "1h"}
    assert served.post("/jobs", job, token=limited).status_code == 403
    own = served.post("/jobs", {**job, "queue": "billing"}, token=limited).json()["id"]
    other = served.post("/jobs", job, token=admin).json()["id"]
    assert served.get(f"/jobs/{own}", token=limited).status_code == 200
    assert served.get(f"/jobs/{other}", token=limited).status_code == 403
    assert served.post(f"/jobs/{other}/cancel?wait=0s", token=limited).status_code == 403
    assert served.post(f"/jobs/{other}/requeue?wait=0s", token=limited).status_code == 403
    assert served.get(f"/jobs/{other}/why", token=limited).status_code == 403
    listed = served.get("/jobs", token=limited).json()["items"]
    assert [row["id"] for row in listed] == [own]
    assert served.get("/jobs?queue=default", token=limited).status_code == 403
    assert served.get("/jobs/count", token=limited).json()["count"] == 1
    assert served.get("/jobs/count?queue=billing", token=limited).json() == {"count": 1, "capped": False}
    assert served.get("/events", token=limited).status_code == 403
    bulk = {"verb": "cancel", "ids": [other]}
    assert served.post("/jobs/bulk?wait=0s", bulk, token=limited).status_code == 403
    every = {"verb": "cancel", "filter": {"handler": "h"}, "dry_run": True}
    assert served.post("/jobs/bulk", every, token=limited).json()["matched"] == 1


def test_lines_of_another_queue_are_left_out_of_a_stream(served: Any, store: Any) -> None:
    store.add_queues({"billing": 2})
    limited = served.token("operator", "billing")
    lines = b'{"handler":"h","in":"1h","queue":"billing"}\n{"handler":"h","in":"1h"}\n'
    answer = served.ask(
        "POST", "/jobs", token=limited, content=lines, headers={"content-type": "application/x-ndjson"}
    ).json()
    assert (answer["accepted"], answer["rejected"]) == (1, 1)
    assert answer["errors"][0]["line"] == 2
    assert answer["errors"][0]["field"] == "queue"


def test_a_schedule_of_another_queue_is_out_of_reach(served: Any, store: Any) -> None:
    store.add_queues({"billing": 2})
    limited = served.token("operator", "billing")
    spec = {"id": "s", "handler": "h", "cron": "@daily"}
    assert served.post("/schedules?wait=0s", spec, token=limited).status_code == 403
    assert served.post("/schedules?wait=0s", {**spec, "queue": "billing"}, token=limited).status_code == 202


# -- tokens --------------------------------------------------------------------------------------------------


def test_a_token_opens_until_it_expires_or_is_revoked(served: Any, store: Any) -> None:
    short = served.token("viewer", lasts=60_000)
    admin = served.token("admin", lasts=None)
    assert served.get("/me", token=short).json()["role"] == "viewer"
    store.clock.advance(60_000)
    assert served.get("/me", token=short).status_code == 401
    assert served.get("/me", token=admin).status_code == 200
    (record,) = [each for each in served.services.tokens.all() if each.role is Role.ADMIN]
    assert served.ask("DELETE", f"/tokens/{record.id}", token=admin).json()["outcome"] == "revoked"
    assert served.get("/me", token=admin).status_code == 401


def test_a_token_made_over_http_is_shown_once_and_audited(served: Any) -> None:
    admin = served.token("admin")
    answer = served.post("/tokens", {"name": "bill", "role": "viewer", "expires_in": "90d"}, token=admin)
    assert answer.status_code == 201
    made = answer.json()
    assert served.get("/me", token=made["token"]).json()["name"] == "bill"
    listed = served.get("/tokens", token=admin).text
    assert made["token"] not in listed
    assert "digest" not in listed
    (audit,) = [each for each in served.audits() if each.detail["verb"] == "token.create"]
    assert audit.detail["requested_by"] == "tess"
    assert made["token"] not in str(audit)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "", "role": "viewer"}, "name"),
        ({"name": "a\nb", "role": "viewer"}, "name"),
        ({"name": "a", "role": "root"}, "role"),
        ({"name": "a", "role": "Viewer"}, "role"),
        ({"name": "a", "role": "viewer", "queues": ["No"]}, "queue"),
        ({"name": "a", "role": "viewer", "expires_in": "0s"}, "expires_in"),
        ({"name": "a"}, "role"),
    ],
)
def test_a_token_is_made_of_what_makes_sense(served: Any, body: Any, field: str) -> None:
    answer = served.post("/tokens", body, token=served.token("admin"))
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == field


@pytest.mark.parametrize(
    "forged",
    [
        "",
        "x",
        "dl_0000000000000000_" + "A" * 43,
        "ds_0000000000000000_" + "A" * 43,
        "dl_" + "0" * 16 + "_" + "A" * 42,
    ],
)
def test_what_is_no_token_opens_nothing(served: Any, forged: str) -> None:
    served.token("admin")
    assert served.get("/me", headers={"authorization": f"Bearer {forged}"}).status_code == 401


def test_a_wrong_secret_or_another_scheme_opens_nothing(served: Any) -> None:
    token = served.token("admin")
    wrong = token[:-1] + ("A" if token[-1] != "A" else "B")
    assert served.get("/me", token=wrong).status_code == 401
    assert served.get("/me", headers={"authorization": f"Basic {token}"}).status_code == 401
    answer = served.get("/me")
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"


def test_a_token_is_stored_as_a_hash_alone(served: Any, store: Any) -> None:
    token = served.token("admin")
    secret = token.split("_", 2)[2].encode()  # it may hold one itself
    records = store.cluster.partition(store.names.meta, 0).read(0, 100)[0]
    assert records
    assert not any(secret in (record.value() or b"") + record.key() for record in records)
    assert "********" in repr(Secret(token))


def test_other_servers_know_a_token_at_once_and_a_revocation_within_their_next_look(
    serve: Callable[..., Any],
) -> None:
    one, other = serve(), serve()
    token = one.token("admin")
    other.run(other.services.store.connection())  # by whose clock tokens end, and not by this machine's
    other.services.tokens._looked = -1e9  # its last look was a while ago
    assert other.get("/me", token=token).status_code == 200
    one.services.tokens.remove(one.services.tokens.all()[0].id)
    assert one.get("/me", token=token).status_code == 401
    other.services.tokens.read()
    assert other.get("/me", token=token).status_code == 401


def test_a_damaged_record_opens_nothing_and_hides_no_other(served: Any, store: Any) -> None:
    from pipeline.ports import Put

    token = served.token("viewer")
    store.cluster.append(Put(store.names.meta, 0, b"token/0123456789abcdef", b"damaged"))
    served.services.tokens.read()
    assert served.get("/me", token=token).status_code == 200
    assert served.services.tokens.find("0123456789abcdef") is None


def test_a_reading_that_breaks_off_loses_no_revocation(serve: Callable[..., Any]) -> None:
    one, other = serve(), serve()
    token = one.token("viewer", name="gone")
    one.token("admin")
    other.services.tokens.read()
    (record,) = [each for each in one.services.tokens.all() if each.name == "gone"]
    one.services.tokens.remove(record.id)
    reading = other.services.tokens._reader.read

    def broken(*where: Any) -> Iterator[Any]:
        yield from reading(*where)
        raise StoreUnreachable("away")

    other.services.tokens._reader.read = broken
    with pytest.raises(StoreUnreachable):
        other.services.tokens.read()
    other.services.tokens._reader.read = reading
    other.services.tokens.read()
    assert other.get("/me", token=token).status_code == 401


def test_what_follows_the_tokens_outlives_any_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_book, "FOLLOW_S", 0.001)
    again, told = threading.Event(), list[Exception]()

    class Broken:
        def __init__(self) -> None:
            self.looks = 0

        def read(self) -> None:
            self.looks += 1
            if self.looks == 1:
                raise ValueError("of a kind that nobody thought of")
            again.set()

    following = token_book.Following(cast("Any", Broken()), told.append)
    assert again.wait(20)
    following.close()
    assert [type(error) for error in told] == [ValueError]


def test_a_stream_of_jobs_ends_with_its_token(served: Any, store: Any) -> None:
    served.token("admin")
    token = served.token("operator", name="gone")
    (record,) = [each for each in served.services.tokens.all() if each.name == "gone"]

    async def body() -> AsyncIterator[bytes]:
        yield b'{"handler":"h","in":"1h"}\n'
        await asyncio.to_thread(served.services.tokens.remove, record.id)
        yield b'{"handler":"h","in":"1h"}\n'

    headers = {"content-type": "application/x-ndjson"}
    answer = served.ask("POST", "/jobs", token=token, content=body(), headers=headers)
    assert answer.status_code == 401
    assert len(store.jobs()) == 1
    assert [audit.detail["verb"] for audit in served.audits()] == ["jobs.create"]


def test_records_read_back_the_same(served: Any) -> None:
    served.token("operator", "a", "b")
    (record,) = served.services.tokens.all()
    assert of_event(to_event(record)) == record


# -- without tokens ------------------------------------------------------------------------------------------


def test_without_tokens_whoever_is_on_this_machine_is_admin(served: Any) -> None:
    assert served.get("/me").json() == {"name": "local", "role": "admin", "queues": None, "token": None}
    served.token("viewer")
    assert served.get("/me").status_code == 401


def test_beyond_loopback_nobody_comes_in_without_a_token(serve: Callable[..., Any]) -> None:
    served = serve(loopback=False)
    assert served.get("/me", headers={"host": "api.example"}).status_code == 401
    token = served.token("viewer")
    assert served.get("/me", token=token, headers={"host": "api.example"}).status_code == 200


def test_nobody_comes_in_before_the_tokens_are_read(served: Any) -> None:
    served.services.tokens._looked = float("-inf")
    answer = served.get("/me")
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert not served.services.access.open


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "10.0.0.1:80", "", "[::2]"])
def test_a_name_that_was_made_to_point_here_is_turned_away(served: Any, host: str) -> None:
    assert served.get("/me", headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:9664", "127.0.0.1:1", "127.8.8.8", "[::1]:9664"])
def test_names_of_this_machine_are_answered(served: Any, host: str) -> None:
    assert served.get("/me", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:9999", "host": "localhost:9664"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_a_page_of_another_site_changes_nothing(served: Any, store: Any, headers: dict[str, str]) -> None:
    answer = served.post("/jobs", {"handler": "h", "in": "1h"}, headers=headers)
    assert answer.status_code == 403
    assert store.jobs() == []


def test_a_page_of_ours_may(served: Any) -> None:
    headers = {"origin": "http://localhost:9664", "host": "localhost:9664", "sec-fetch-site": "same-origin"}
    assert served.post("/jobs", {"handler": "h", "in": "1h"}, headers=headers).status_code == 201


# -- sessions ------------------------------------------------------------------------------------------------


def test_a_session_is_known_to_all_servers_and_needs_its_csrf_token_to_change(
    serve: Callable[..., Any],
) -> None:
    one, other = serve(), serve()
    token = one.token("operator")
    for each in (one, other):
        each.run(each.services.store.connection())  # by whose clock tokens and sessions end
    other.services.tokens.read()
    who, cookie = one.services.access.log_in(token)
    assert (who.name, who.role) == ("tess", Role.OPERATOR)
    other.services.tokens._looked = -1e9
    asked = {"cookie": f"{SESSION_COOKIE}={cookie}"}
    assert other.get("/me", headers=asked).json()["name"] == "tess"
    job = {"handler": "h", "in": "1h"}
    assert other.post("/jobs", job, headers=asked).status_code == 403
    assert other.post("/jobs", job, headers={**asked, CSRF_HEADER: csrf_of("ds_other")}).status_code == 403
    assert other.post("/jobs", job, headers={**asked, CSRF_HEADER: csrf_of(cookie)}).status_code == 201


def test_a_token_made_a_moment_ago_elsewhere_opens_a_session(serve: Any) -> None:
    one, other = serve(), serve()
    token = one.token("operator")
    other.run(other.services.store.connection())  # by whose clock tokens end
    other.services.tokens._looked = -1e9  # as if nothing had been looked for this second
    who, _ = other.services.access.log_in(token)
    assert who.name == "tess"


def test_a_session_ends_with_its_time_its_token_and_when_it_is_left(served: Any, store: Any) -> None:
    access = served.services.access
    token = served.token("viewer", lasts=None)
    _, cookie = access.log_in(token)
    assert access.still_opens(bearer=None, session=cookie)
    access.log_out(cookie)
    assert not access.still_opens(bearer=None, session=cookie)
    assert access.still_opens(bearer=token, session=None)
    with pytest.raises(Unauthenticated):
        access.principal(bearer=None, session=cookie)
    access.log_out(cookie)  # nothing
    _, cookie = access.log_in(token)
    store.clock.advance(SESSION_MS)
    with pytest.raises(Unauthenticated):
        access.principal(bearer=None, session=cookie)
    _, cookie = access.log_in(token)
    before = len(served.services.tokens._records)
    served.token("viewer", name="other")
    served.services.tokens.remove(served.services.tokens.all()[0].id)
    assert len(served.services.tokens._records) == before - 1, (
        "the token with its session is gone, one more came"
    )
    with pytest.raises(Unauthenticated):
        access.principal(bearer=None, session=cookie)


def test_a_topic_that_was_made_anew_has_its_own_tokens_alone(served: Any, store: Any) -> None:
    old = [served.token("admin") for _ in range(5)]
    tokens, clock = served.services.tokens, [0.0]
    tokens._monotonic, tokens._checked = (lambda: clock[0]), 0.0

    def look() -> None:
        clock[0] += token_book.CHECK_S
        tokens.read()

    look()
    assert served.get("/me", token=old[0]).status_code == 200
    store.cluster._topics[store.names.meta] = [MemoryPartition()]
    look()
    assert served.get("/me", token=old[0]).status_code == 200, (
        "a broker may tell an old end: it is looked for again"
    )
    new = served.token("viewer")
    look()
    assert [served.get("/me", token=each).status_code for each in (*old, new)] == [401] * 5 + [200]
    assert [action for action, _ in served.events.lines] == ["tokens_anew"]
    for _ in range(3):
        look()
    assert served.get("/me", token=new).status_code == 200
    assert len(served.events.lines) == 1


def test_a_login_sweeps_the_sessions_that_have_ended(served: Any, store: Any) -> None:
    access, tokens = served.services.access, served.services.tokens
    token = served.token("viewer", lasts=None)
    for _ in range(3):
        access.log_in(token)
    store.clock.advance(SESSION_MS)
    access.log_in(token)
    assert len(tokens._records) == 2
    tokens._next, tokens._records = 0, {}
    tokens.read()
    assert len(tokens._records) == 2


def test_a_loop_of_logins_leaves_a_bounded_number_of_sessions(
    served: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_book, "SESSIONS", 3)
    access = served.services.access
    token, other = served.token("viewer"), served.token("admin")
    kept = access.log_in(other)[1]
    cookies = []
    for _ in range(5):
        store.clock.advance(1)
        cookies.append(access.log_in(token)[1])
    assert [access.still_opens(bearer=None, session=cookie) for cookie in cookies] == [False] * 2 + [True] * 3
    assert access.still_opens(bearer=None, session=kept)


def test_a_session_is_no_bearer_token_and_a_token_no_cookie(served: Any) -> None:
    token = served.token("viewer")
    _, cookie = served.services.access.log_in(token)
    assert served.get("/me", token=cookie).status_code == 401
    assert served.get("/me", headers={"cookie": f"{SESSION_COOKIE}={token}"}).status_code == 401
    with pytest.raises(Unauthenticated):
        served.services.access.log_in(str(cookie))


# -- small things --------------------------------------------------------------------------------------------


def test_roles_are_ordered_and_named() -> None:
    assert Role.VIEWER < Role.OPERATOR < Role.ADMIN
    assert [role.word for role in Role] == ["viewer", "operator", "admin"]
    for word in ("root", "Admin", "", None, 3):
        with pytest.raises(InvalidInput):
            Role.of(word)


def test_a_principal_is_held_to_its_role_and_queues() -> None:
    who = Principal(name="a", role=Role.VIEWER, queues=frozenset({"q"}))
    who.require(Role.VIEWER)
    who.require_queue("q")
    assert not who.sees(None)
    with pytest.raises(Forbidden):
        who.require_queue(None)
    for forbidden in (
        lambda: who.require(Role.OPERATOR),
        lambda: who.require_queue("r"),
        who.require_all_queues,
    ):
        with pytest.raises(Forbidden):
            forbidden()
    LOCAL.require_all_queues()


def test_bearer_tokens_are_read_from_their_header() -> None:
    assert bearer_of({}) is None
    assert bearer_of({"authorization": "bearer  x "}) == "x"
    for bad in ("Bearer", "Bearer ", "Basic x", "x"):
        with pytest.raises(Unauthenticated):
            bearer_of({"authorization": bad})


def test_a_csrf_token_is_of_one_session() -> None:
    check_csrf("a", csrf_of("a"))
    for given in (None, "", csrf_of("b"), "ü"):
        with pytest.raises(Forbidden):
            check_csrf("a", given)


def test_names_of_tokens() -> None:
    assert checked_name("billing service") == "billing service"
    for bad in ("", " a", "a" * 81, "a\tb", "\u202ea"):
        with pytest.raises(InvalidInput):
            checked_name(bad)


def test_revoking_what_is_not_there(served: Any) -> None:
    with pytest.raises(NotFound):
        served.services.tokens.remove("nothing")
    assert served.ask("DELETE", "/tokens/nothing").status_code == 404


def test_made_up_tokens_do_not_wait_for_an_absent_store_one_after_the_other(served: Any) -> None:
    served.token("viewer")
    clock, tries = [0.0], list[int]()
    tokens = served.services.tokens
    tokens._monotonic = lambda: clock[0]
    tokens.read()
    clock[0] = 1.0

    def away(*_: Any) -> Any:
        tries.append(1)
        raise StoreUnreachable("away")

    tokens._reader.read = away
    for _ in range(5):
        assert served.get("/me", token="dl_0000000000000000_" + "A" * 43).status_code == 503
    assert tries == [1]


def test_made_up_tokens_do_not_make_the_topic_be_read_again_and_again(served: Any, store: Any) -> None:
    served.token("viewer")
    clock = [0.0]
    tokens = served.services.tokens
    tokens._monotonic = lambda: clock[0]
    tokens.read()
    reads: list[int] = []
    reading = tokens._reader.read
    tokens._reader.read = lambda *where: reads.append(1) or reading(*where)
    for _ in range(5):
        assert served.get("/me", token="dl_0000000000000000_" + "A" * 43).status_code == 401
    assert reads == []
    clock[0] = 1.0
    served.get("/me", token="dl_0000000000000000_" + "A" * 43)
    assert reads == [1]


def test_a_store_that_is_away_says_nothing_about_an_unknown_token(served: Any, store: Any) -> None:
    token = served.token("viewer")
    served.services.tokens._looked = -1e9

    def away() -> None:
        raise StoreUnreachable("away")

    served.services.tokens.refresh = away
    assert served.get("/me", token=token).status_code == 200
    answer = served.get("/me", token="dl_0000000000000000_" + "A" * 43)
    assert answer.status_code == 503
