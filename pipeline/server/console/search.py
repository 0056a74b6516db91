"""The search language of the console: `handler:email.send status:dead key:invoice_* due>2026-09-01`. Pure.

Words are separated by spaces and all hold; a value with spaces stands in double quotes. A word without a filter's
name is part of an id, a key or a handler. Errors name the word, so whoever typed it finds it.

Without `order:` the latest come first; the soonest do where all that is asked for is still to come.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from pipeline.core.errors import InvalidInput
from pipeline.core.job import LATEST, JobStatus
from pipeline.core.times import format_instant, parse_duration, parse_instant
from pipeline.readmodel.questions import JobsWanted

FIELD = "search"
"""What errors of a search are about."""
LONGEST = 1_000
ORDERS = ("due", "-due")
TO_COME = frozenset({JobStatus.PENDING, JobStatus.RETRYING})
"""Of these one wants to see the next first, of all others the last."""
DUE_BY_NOW, DUE_LATER = "due<=now", "due>now"
_NAMED = re.compile(r"([a-z_]{2,})(>=|<=|:|>|<)(.*)", re.DOTALL)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_MINUTE = re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2})?", re.ASCII)
_WORD = re.compile(r'(?:"(?:\\.|[^"\\])*"|[^\s"])+', re.DOTALL)
_QUOTED = re.compile(r'"(?:\\.|[^"\\])*"', re.DOTALL)
_PLAIN = re.compile(r'[^\s"]+')
_DAY_MS = 86_400_000
_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}


@dataclass(slots=True)
class _Found:
    """What the words said so far."""

    statuses: set[JobStatus] = field(default_factory=set)
    labels: dict[str, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    due_from: int | None = None
    due_to: int | None = None

    def narrow(self, begin: int | None, end: int | None) -> None:
        if begin is not None:
            self.due_from = begin if self.due_from is None else max(self.due_from, begin)
        if end is not None:
            self.due_to = end if self.due_to is None else min(self.due_to, end)


def parse(text: str, *, now: int) -> JobsWanted:
    """The jobs that a search is about; `now` (epoch ms) is what `due>-2h` counts from. InvalidInput('search')."""
    if len(text) > LONGEST:
        raise InvalidInput(FIELD, f"is longer than {LONGEST:,} characters")
    found = _Found()
    for word in list(_words(text)):  # a quote that does not end is told before what it hides
        _read(word, found, now)
    own = found.texts
    return JobsWanted(
        statuses=frozenset(found.statuses),
        handler=own.get("handler"),
        queue=own.get("queue"),
        schedule=own.get("schedule"),
        labels=found.labels,
        key=own.get("key"),
        key_prefix=own.get("key_prefix"),
        due_from=found.due_from,
        due_to=found.due_to,
        text=own.get("text"),
        order=own.get("order") or _order(found.statuses, found.due_from, now),
    )


def _order(statuses: Collection[JobStatus], due_from: int | None, now: int) -> str:
    """That of a search that says nothing of it."""
    to_come = TO_COME.issuperset(statuses) if statuses else False
    return "due" if to_come or (due_from is not None and due_from >= now) else "-due"


def written(wanted: JobsWanted) -> str:
    """A search that means these jobs."""
    words = [f"status:{status.value}" for status in sorted(wanted.statuses)]
    words += [
        f"{name}:{quoted(value)}"
        for name, value in (
            ("handler", wanted.handler),
            ("queue", wanted.queue),
            ("schedule", wanted.schedule),
        )
        if value is not None
    ]
    words += [f"label:{quoted(f'{name}={value}')}" for name, value in sorted(wanted.labels.items())]
    words += [f"key:{_unstarred(wanted.key)}"] if wanted.key is not None else []
    words += [f"key:{_unstarred(wanted.key_prefix)}*"] if wanted.key_prefix is not None else []
    words += [f"due>={format_instant(wanted.due_from)}"] if wanted.due_from is not None else []
    words += [f"due<{format_instant(wanted.due_to)}"] if wanted.due_to is not None else []
    words += [quoted(wanted.text)] if wanted.text is not None else []
    told = wanted.due_from is None and wanted.order == _order(wanted.statuses, None, 0)
    words += [] if told else [f"order:{wanted.order}"]
    return " ".join(words)


def instead(text: str, names: Collection[str], *words: str) -> str:
    """The same search with these words, in place of those of the filters named. InvalidInput('search')."""
    return " ".join([*(word for word in _words(text) if _name(word) not in names), *words])


def due_words(text: str) -> list[str]:
    """What a search says of due times. InvalidInput('search')."""
    return [word for word in _words(text) if _name(word) == "due"]


def relative(text: str) -> bool:
    """Whether what it means depends on when it is asked. InvalidInput('search')."""
    return parse(text, now=0) != parse(text, now=LATEST)


def _name(word: str) -> str | None:
    named = _NAMED.fullmatch(word)
    return None if named is None else named[1]


def quoted(value: str) -> str:
    """A value as a search has it."""
    plain = _PLAIN.fullmatch(value) and not _NAMED.fullmatch(value)
    return value if plain else _in_quotes(value)


def _in_quotes(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


# -- words -----------------------------------------------------------------------------------------------------


def _words(text: str) -> Iterator[str]:
    """Each word with its quotes, so that `"status:dead"` is text and not a filter."""
    at = 0
    for match in _WORD.finditer(text):
        if text[at : match.start()].strip():
            break
        yield match[0]
        at = match.end()
    if rest := text[at:].strip():
        raise InvalidInput(FIELD, f"{_shown(rest)}: a quote is not closed")


def _value(text: str) -> str:
    """Without its quotes."""
    if '"' not in text:
        return text
    return re.sub(r"\\(.)|\"", lambda match: match[1] or "", text, flags=re.DOTALL)


def _read(word: str, found: _Found, now: int) -> None:
    named = _NAMED.fullmatch(word)
    if named is None:
        _once("text", _value(word), word, found)
        return
    name, sign, value = named[1], named[2], _value(named[3])
    if name not in _MEANINGS:
        raise InvalidInput(FIELD, f"{_shown(word)}: there is no filter {name!r}, only {', '.join(_MEANINGS)}")
    if sign != ":" and name != "due":
        raise InvalidInput(FIELD, f"{_shown(word)}: only due can be compared; write {name}:…")
    if not value:
        raise InvalidInput(FIELD, f"{_shown(word)} has no value")
    match name:
        case "status":
            found.statuses.update(_status(each, word) for each in value.split(","))
        case "label":
            _label(value, word, found)
        case "due":
            found.narrow(*_due(sign, value, word, now))
        case "key":
            _key(named[3], word, found)
        case "order" if value not in ORDERS:
            raise InvalidInput(FIELD, f"{_shown(word)}: the order is {' or '.join(ORDERS)}")
        case _:
            _once(name, value, word, found)


_MEANINGS: Mapping[str, str] = {
    "status": "one or more: status:dead,retrying",
    "handler": "handler:email.send",
    "queue": "queue:default",
    "schedule": "schedule:daily-report",
    "label": "label:tenant=acme",
    "key": "key:invoice_42, or the start of one: key:invoice_*",
    "due": "due>2026-09-01, due<=2026-09-01T12:30Z, due>-2h, due<=now, due:2026-09-01",
    "order": "order:due for the soonest first, order:-due for the latest",
}


def _once(name: str, value: str, word: str, found: _Found) -> None:
    if name in found.texts:
        what = "one word without a filter" if name == "text" else f"one {name}"
        raise InvalidInput(FIELD, f"{_shown(word)}: a search can have only {what}")
    found.texts[name] = value


def _status(value: str, word: str) -> JobStatus:
    try:
        return JobStatus(value)
    except ValueError:
        meant = "; failed jobs are retrying or dead" if value == "failed" else ""
        raise InvalidInput(
            FIELD, f"{_shown(word)}: a status is one of {', '.join(JobStatus)}{meant}"
        ) from None


def _label(value: str, word: str, found: _Found) -> None:
    name, sign, of = value.partition("=")
    if not sign or not name:
        raise InvalidInput(FIELD, f"{_shown(word)}: a label is written label:name=value")
    found.labels[name] = of


def _key(written: str, word: str, found: _Found) -> None:
    """All of it, or with a star behind it how it begins; a star in quotes is part of it."""
    begin = written.removesuffix("*")
    if "*" in re.sub(_QUOTED, "", begin):
        raise InvalidInput(
            FIELD, f"{_shown(word)}: only the start of a key can be matched, so * must come last"
        )
    if {"key", "key_prefix"} & found.texts.keys():
        raise InvalidInput(FIELD, f"{_shown(word)}: a search can have only one key")
    found.texts["key" if begin == written else "key_prefix"] = _value(begin)


def _unstarred(value: str) -> str:
    """With every star in quotes."""
    return _in_quotes(value) if "*" in value else quoted(value)


def _due(sign: str, value: str, word: str, now: int) -> tuple[int | None, int | None]:
    """[from, to) in epoch ms. A date is its first instant in UTC, but for `due:DATE`, which is all of it."""
    at = _instant(value, word, now)
    match sign:
        case ">":
            return at + 1, None
        case ">=":
            return at, None
        case "<":
            return None, at
        case "<=":
            return None, at + 1
        case _:
            if not _DATE.fullmatch(value) and value not in _DAYS:
                raise InvalidInput(
                    FIELD, f"{_shown(word)}: due: takes a date; for anything else use due> and due<"
                )
            return at, at + _DAY_MS


def _instant(value: str, word: str, now: int) -> int:
    try:
        if value == "now":
            return now
        if value in _DAYS:
            return (now // _DAY_MS + _DAYS[value]) * _DAY_MS
        if value[0] in "+-":
            length = parse_duration("due", value[1:])
            return now + length if value[0] == "+" else now - length
        return parse_instant("due", _completed(value))
    except InvalidInput:
        raise InvalidInput(
            FIELD,
            f"{_shown(word)}: {value!r:.40} is not a date (2026-09-01), an instant (2026-09-01T12:30Z) or a time from"
            " now (-2h)",
        ) from None


def _completed(value: str) -> str:
    """Dates and minutes are enough, and UTC is meant where no offset is given."""
    if _DATE.fullmatch(value):
        return f"{value}T00:00:00Z"
    bare = value.removesuffix("Z")
    if _MINUTE.fullmatch(bare):
        return f"{bare}{'' if bare.count(':') == 2 else ':00'}Z"
    return value


def _shown(word: str) -> str:
    return f"{word[:60]}…" if len(word) > 60 else word


def meanings() -> Mapping[str, str]:
    """Each filter, and how it is written."""
    return _MEANINGS
