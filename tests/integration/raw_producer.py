"""A record with a header name that is no UTF-8, which any C or Go program can write and the Python client cannot.

The C library inside the Python client is called directly (confluent-kafka's `rd_kafka_produceva`).
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import confluent_kafka

TOPIC, PARTITION, VALUE, KEY, FLAGS, HEADER = 1, 3, 4, 5, 7, 9
COPY = 2
PRODUCER = 0


class _Bytes(ctypes.Structure):
    _fields_ = [("data", ctypes.c_char_p), ("size", ctypes.c_size_t)]


class _Header(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("data", ctypes.c_char_p), ("size", ctypes.c_ssize_t)]


class _Any(ctypes.Union):
    _fields_ = [
        ("text", ctypes.c_char_p),
        ("number", ctypes.c_int32),
        ("bytes", _Bytes),
        ("header", _Header),
        ("room", ctypes.c_char * 64),
    ]


class _Argument(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("value", _Any)]


def produce(bootstrap: str, topic: str, partition: int, key: bytes, value: bytes, header: bytes) -> None:
    """Put the record and wait for the broker."""
    (path,) = Path(confluent_kafka.__file__).parents[1].glob("confluent_kafka.libs/librdkafka*")
    library = ctypes.CDLL(str(path))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_produceva"):
        getattr(library, name).restype = ctypes.c_void_p
    problem = ctypes.create_string_buffer(256)
    settings = ctypes.c_void_p(library.rd_kafka_conf_new())
    library.rd_kafka_conf_set(settings, b"bootstrap.servers", bootstrap.encode(), problem, len(problem))
    producer = ctypes.c_void_p(library.rd_kafka_new(PRODUCER, settings, problem, len(problem)))
    assert producer, problem.value
    arguments = (_Argument * 6)(
        _Argument(TOPIC, _Any(text=topic.encode())),
        _Argument(PARTITION, _Any(number=partition)),
        _Argument(KEY, _Any(bytes=_Bytes(key, len(key)))),
        _Argument(VALUE, _Any(bytes=_Bytes(value, len(value)))),
        _Argument(FLAGS, _Any(number=COPY)),
        _Argument(HEADER, _Any(header=_Header(header, b"x", 1))),
    )
    assert not library.rd_kafka_produceva(producer, arguments, ctypes.c_size_t(len(arguments)))
    assert library.rd_kafka_flush(producer, 10_000) == 0
    library.rd_kafka_destroy(producer)
