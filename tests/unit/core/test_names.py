"""Names of one installation."""

import pytest

from pipeline.core.errors import InvalidInput
from pipeline.core.names import Names, check_name


def test_every_name_begins_with_the_prefix():
    names = Names("acme")
    assert (names.jobs, names.dead, names.events) == ("acme.jobs", "acme.dead", "acme.events")
    assert (names.fleet, names.meta) == ("acme.fleet", "acme.meta")
    assert (names.work("mail"), names.acks("mail")) == ("acme.work.mail", "acme.acks.mail")
    assert (names.dispatcher_group, names.worker_group("mail")) == ("acme.dispatcher", "acme.worker.mail")
    assert names.transactional_id("worker", "7f3a", 2, 0) == "acme.worker.7f3a.2.0"
    assert Names().jobs == "dueline.jobs"


@pytest.mark.parametrize("name", ["a", "email.send", "0_9-z", "x" * 80])
def test_legal_names(name):
    assert check_name("handler", name) == name


@pytest.mark.parametrize("name", ["", "Email", "a b", "a/b", "a:b", "nul\0", "a\n", "é", "x" * 81])
def test_illegal_names_are_told_with_their_field(name):
    with pytest.raises(InvalidInput, match=r"^handler: .* does not match") as refusal:
        check_name("handler", name)
    assert "\n" not in str(refusal.value)
