"""Source that `tools/generate_codec.py` puts together: how one field is read, and what a file begins with.

In all of it `data` is read at `pos`; `n` and `end` are left for what comes next.
"""

from __future__ import annotations

HEAD = '''\
"""Made by tools/generate_codec.py from schemas/{schema}: do not edit, run it again.

{about}
"""
# fmt: off
# ruff: noqa: C901, E501, I001, PLR0915 -- straight lines on purpose

from __future__ import annotations

from typing import Any{typing}

from pipeline.codec.wire import (
{wire}
)
from pipeline.core.{module} import {types}

FRAME = bytes.fromhex("{frame}")
FINGERPRINT = "{fingerprint}"
{older}
# A frozen value is filled as a draft with the same slots and then given its class: the __init__ of a frozen
# dataclass calls object.__setattr__ for each field, which would take most of the time of reading it.
'''

DRAFT = """\
_{name}: Any = {name}


class _{name}Draft:
    __slots__ = _{name}.__slots__


"""

ENUM_TABLES = """\
_read_{name} = {{each.value.encode(): each for each in {type}}}
_written_{name} = {{each: write_string(each.value) for each in {type}}}


"""

OLDER = """\
OLDER: dict[bytes, tuple[str, ...]] = {{
{lines}}}
\"\"\"By the frames of older versions: the fields put behind theirs since, each one zero byte when empty.\"\"\"
"""

LENGTH = """\
n = data[pos]
if n & 129:
    n, pos = read_length(data, pos)
    end = pos + n
else:
    pos += 1
    end = pos + (n >> 1)
"""

SKIP_LENGTH = """\
n = data[pos]
if n & 129:
    n, pos = read_length(data, pos)
    pos += n
else:
    pos += 1 + (n >> 1)"""

SKIP_NUMBER = """\
while data[pos] > 127:
    pos += 1
pos += 1"""

SKIP_NULLABLE = """\
pos += 1
if data[pos - 1]:
{inner}"""

SKIP_REST = """\
if data[pos]:
    pos = read_{inner}(data, pos)[1]
else:
    pos += 1"""

STRING = LENGTH + "{name} = data[pos:end].decode()\npos = end"

ENUM = (
    LENGTH
    + """\
try:
    {name} = _read_{name}[data[pos:end]]
except KeyError:
    raise Malformed(f"no such {name}: {{data[pos:end]!r:.80}}") from None
pos = end"""
)

INT = """\
n = data[pos]
if n < 128:
    {name} = (n >> 1) ^ -(n & 1)
    pos += 1
else:
    {name}, pos = read_int(data, pos)"""

MAP = """\
if data[pos]:
    {name}, pos = read_map(data, pos)
else:
    {name} = {{}}
    pos += 1"""

ARRAY = """\
if data[pos]:
    {name}, pos = read_array(data, pos, read_{item})
else:
    {name} = ()
    pos += 1"""

ORIGINAL = """\
begin_{name} = pos
{inner}
raw_{name} = data[begin_{name}:pos]
size_{name} = pos - begin_{name}"""

TWIN = """\
if data[pos:pos + size_{twin}] == raw_{twin}:
    {name} = {twin}
    pos += size_{twin}
else:
{inner}"""

NULLABLE = """\
n = data[pos]
pos += 1
if n == 0:
    {name} = None
elif n == 2:
{inner}
else:
    raise Malformed("no such branch of the union")"""

TRUNCATED = """\
if pos > len(data):
    raise Malformed("truncated")"""

TRAILING = """\
if pos != len(data):
    raise Malformed("truncated" if pos > len(data) else "trailing bytes")"""
