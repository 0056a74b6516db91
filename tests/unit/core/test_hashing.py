"""The hash is Kafka's, bit for bit."""

import json
from pathlib import Path

import pytest

from pipeline.core.hashing import murmur2, text_hash

VECTORS = json.loads((Path(__file__).parents[3] / "schemas/vectors/hash.json").read_text())["vectors"]


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["text"][:20])
def test_vectors(vector):
    assert bytes.fromhex(vector["hex"]) == vector["text"].encode()
    assert text_hash(vector["text"]) == vector["hash"] == vector["kafka"] & 0x7FFFFFFF


@pytest.mark.parametrize(
    ("data", "java"),
    [
        # org.apache.kafka.common.utils.UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_kafkas_own_vectors(data, java):
    assert murmur2(data) == java & 0x7FFFFFFF


def test_every_tail_length_is_in_the_vectors():
    assert {len(bytes.fromhex(vector["hex"])) % 4 for vector in VECTORS} == {0, 1, 2, 3}


def test_a_lone_surrogate_has_no_hash():
    with pytest.raises(UnicodeEncodeError):
        text_hash("\ud800")
