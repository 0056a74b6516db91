"""An app inside Django, FastAPI and gunicorn, on the real broker: as docs/writing-handlers.md shows them."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from fastapi import FastAPI
from integration.fleet import Eventually, Fleet, fleet
from ports import free_port

from pipeline import Dueline, codec
from pipeline.adapters.kafka_admin import ensure_topics
from pipeline.adapters.kafka_io import KafkaReader
from pipeline.config import Settings, load_settings

DJANGO = """
import django
from django.conf import settings

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "shop.sqlite", "CONN_MAX_AGE": None}},
    INSTALLED_APPS=["orders"],
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
)
django.setup()

from django.db import close_old_connections, connection, transaction
from orders.models import Order
from pipeline import Dueline


class DjangoConnections:
    def before(self, ctx):
        close_old_connections()

    def after(self, ctx, outcome):
        close_old_connections()


app = Dueline(middleware=[DjangoConnections()])


@app.job("order.pay")
def pay(ctx, number):
    with transaction.atomic():
        order, made = Order.objects.get_or_create(key=ctx.idempotency_key, defaults={"number": number})
    return {"orders": Order.objects.count(), "made": made}


if __name__ == "__main__":
    with connection.schema_editor() as editor:
        editor.create_model(Order)
    print(*(app.schedule("order.pay", {"number": n}, in_="0s", idempotency_key=f"order-{n}").id for n in (1, 2, 1)))
"""
MODELS = """
from django.db import models


class Order(models.Model):
    key = models.CharField(max_length=80, unique=True)
    number = models.IntegerField()
"""


def environment(settings: Settings) -> dict[str, str]:
    return {
        "DUELINE_BOOTSTRAP_SERVERS": settings.require_bootstrap(),
        "DUELINE_PREFIX": settings.prefix,
        "DUELINE_STATE_DIR": str(settings.state_dir),
    }


@pytest.fixture
def django_shop(broker: str, prefix: str, tmp_path: Path) -> Iterator[Fleet]:
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "__init__.py").touch()
    (tmp_path / "orders" / "models.py").write_text(MODELS)
    with fleet(broker, prefix, tmp_path, DJANGO) as made:
        yield made


@pytest.mark.timeout(200)
def test_a_handler_uses_the_orm_of_django(django_shop: Fleet, eventually: Eventually) -> None:
    shop = django_shop
    ran = subprocess.run(
        [sys.executable, "shop.py"], cwd=shop.home, env={**os.environ, **environment(shop.settings)},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ran.returncode, ran.stderr) == (0, "")
    ids = ran.stdout.split()
    assert len(ids) == 3
    shop.dispatcher()
    shop.worker("--concurrency", "1")
    for id_ in ids:
        eventually(lambda id_=id_: shop.client.get(id_)["status"] == "succeeded", timeout=60)
    with sqlite3.connect(shop.home / "shop.sqlite") as database:
        rows = database.execute("select key, number from orders_order order by key").fetchall()
    assert rows == [("order-1", 1), ("order-2", 2)]
    assert sorted(shop.client.get(id_)["result"]["made"] for id_ in ids) == [False, True, True]


# -- web servers --------------------------------------------------------------------------------------------


@pytest.fixture
def settings(broker: str, prefix: str, tmp_path: Path) -> Settings:
    settings = load_settings(
        bootstrap_servers=broker, prefix=prefix, state_dir=str(tmp_path), store_timeout_ms=20_000
    )
    ensure_topics(settings)
    return settings


def stored(settings: Settings) -> list[str]:
    """Ids of all jobs on the topic."""
    with closing(KafkaReader(settings.require_bootstrap())) as reader:
        records = [
            r
            for n in range(reader.partitions(settings.names.jobs))
            for r in reader.read(settings.names.jobs, n)
        ]
    return [codec.RUN.decode(r.value() or b"").job_id for r in records if (r.key() or b"").startswith(b"j/")]


@pytest.mark.filterwarnings(
    "ignore:Using `httpx`"
)  # which does here; another client would be for this test alone
@pytest.mark.timeout(120)
def test_a_route_of_fastapi_schedules_without_blocking_its_loop(settings: Settings) -> None:
    from fastapi.testclient import TestClient

    dueline = Dueline(bootstrap_servers=settings.bootstrap_servers, prefix=settings.prefix)

    @asynccontextmanager
    async def lifespan(_web: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(dueline.close)

    web = FastAPI(lifespan=lifespan)

    @web.post("/orders/{number}")
    async def order(number: int) -> dict[str, str]:
        refs = await asyncio.gather(
            *(dueline.aschedule("order.pay", {"n": n}, in_="1h") for n in range(number))
        )
        return {str(n): ref.id for n, ref in enumerate(refs)}

    with TestClient(web) as client:
        made = [*client.post("/orders/20").json().values(), *client.post("/orders/1").json().values()]
    assert len(set(made)) == 21
    assert sorted(made) == sorted(stored(settings))


GUNICORN = """
import os
from pipeline import Dueline

dueline = Dueline()
before = dueline.schedule("made.before.the.fork", in_="1h").id


def web(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    ref = dueline.schedule("order.pay", in_="1h")
    return [f"{os.getpid()} {ref.id} {before}".encode()]
"""


@pytest.mark.timeout(150)
def test_workers_of_gunicorn_have_clients_of_their_own_after_preload(
    settings: Settings, tmp_path: Path, eventually: Eventually
) -> None:
    (tmp_path / "site_of_test.py").write_text(GUNICORN)
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", "--preload", "--workers", "2", "--bind", f"127.0.0.1:{port}",
         "--no-control-socket", "site_of_test:web"],
        cwd=tmp_path,
        env={**os.environ, **environment(settings)},
    )  # fmt: skip
    answers: list[list[str]] = []

    def two_workers_answered() -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=15) as answer:
                answers.append(answer.read().decode().split())
        except urllib.error.URLError:
            assert server.poll() is None
        return len({pid for pid, _, _ in answers}) == 2

    try:
        eventually(two_workers_answered, timeout=60)
    finally:
        server.terminate()
        ended = server.wait(60)
    assert ended == 0
    made = {before for _, _, before in answers} | {made for _, made, _ in answers}
    assert len(made) == len(answers) + 1
    assert sorted(made) == sorted(stored(settings))
