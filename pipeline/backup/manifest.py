"""What a backup says of itself: what is in it, where it was cut, and the checksums of its files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pipeline import codec
from pipeline.core.errors import InvalidInput, Refused
from pipeline.core.times import format_instant, parse_instant

FORMAT = 1
"""Of the directory as a whole. Its records have a schema, which says its own version."""
FILES = ("meta.avro", "jobs.avro", "runs.avro")
"""In the order in which they are restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileNote:
    """One container file; `sha256` in hex."""

    name: str
    records: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """`created_at` = when the loss window began, by the store's clock, epoch ms; `layout` = what identifies placement;
    `fingerprints` = the schemas of the values; `cut` = positions (`cut.Cut.as_json`)."""

    id: str
    created_at: int
    product_version: str
    prefix: str
    era: int
    layout: str
    counts: Mapping[str, int]
    fingerprints: tuple[str, ...]
    cut: Mapping[str, Any]
    files: tuple[FileNote, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            **asdict(self),
            "created_at": format_instant(self.created_at),
            "counts": dict(self.counts),
            "fingerprints": list(self.fingerprints),
            "files": [asdict(each) for each in self.files],
        }

    def encode(self) -> bytes:
        return json.dumps(self.to_json(), indent=1, ensure_ascii=False).encode() + b"\n"


def read_manifest(name: str, data: bytes) -> Manifest:
    """Refused, naming the file, if it is of a version that this one does not know; InvalidInput if it is no manifest.
    Its checksum was looked at before."""
    try:
        found = json.loads(data)
        version = found["format"]
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(name, f"is no manifest of a backup: {error!r}") from error
    if version != FORMAT:
        raise Refused(
            f"{name}: the backup has format {version!r}, this version of Dueline reads {FORMAT}: restore it with"
            f" Dueline {str(found.get('product_version', 'of the version that wrote it'))[:40]}"
        )
    try:
        manifest = _manifest(found)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput(name, f"is no manifest of a backup: {error!r}") from error
    _check_known(name, manifest)
    return manifest


def _manifest(found: Mapping[str, Any]) -> Manifest:
    return Manifest(
        id=str(found["id"]),
        created_at=parse_instant("created_at", found["created_at"]),
        product_version=str(found["product_version"]),
        prefix=str(found["prefix"]),
        era=int(found["era"]),
        layout=str(found["layout"]),
        counts=dict(found["counts"]),
        fingerprints=tuple(found["fingerprints"]),
        cut=dict(found["cut"]),
        files=tuple(FileNote(**each) for each in found["files"]),
    )


def _check_known(name: str, manifest: Manifest) -> None:
    unknown = [each for each in manifest.fingerprints if not codec.known(each)]
    if unknown:
        raise Refused(
            f"{name}: the backup holds records of schemas unknown here ({', '.join(unknown)}): restore it with"
            f" Dueline {manifest.product_version} or later"
        )
    if tuple(each.name for each in manifest.files) != FILES:
        raise InvalidInput(name, f"does not name the files {', '.join(FILES)}")
