"""Avro files with some of their values changed, and everything else as it was: schema, metadata, order.

It reads what Iceberg writes: an object container file, its blocks deflated or plain.
"""

import io
import json
import struct
import zlib
from collections.abc import Callable
from typing import Any, Final

from strandline.errors import CorruptionError, UsageError

Change = Callable[
    [str, dict[str, Any]], None
]  # gets the name of a record's type and its fields, to be changed

_MAGIC: Final = b"Obj\x01"
_SYNC_BYTES: Final = 16
_FLOATS: Final = {"float": struct.Struct("<f"), "double": struct.Struct("<d")}


class AvroUnreadable(CorruptionError):
    """A file that is no Avro file, or that is cut short."""


def rewritten(data: bytes, change: Change) -> bytes:
    """The file after `change` has seen each record in it, the inner ones first."""
    source = _Reader(data)
    if source.take(len(_MAGIC)) != _MAGIC:
        raise AvroUnreadable("it does not begin as an Avro file does")
    metadata = source.map_of_bytes()
    sync = source.take(_SYNC_BYTES)
    codec = metadata.get("avro.codec", b"null").decode()
    if codec not in ("deflate", "null"):
        raise UsageError(
            f"its blocks are compressed by {codec}", hint="deflate is what Iceberg does by default"
        )
    types = _Types(json.loads(metadata["avro.schema"]), change)
    out = _Writer()
    out.raw(_MAGIC)
    out.map_of_bytes(metadata)
    out.raw(sync)
    while not source.is_at_end:
        count = source.long()
        block = source.take(source.long())
        plain = zlib.decompress(block, -zlib.MAX_WBITS) if codec == "deflate" else block
        made = _block(types, _Reader(plain), count)
        packed = _deflated(made) if codec == "deflate" else made
        out.long(count)
        out.long(len(packed))
        out.raw(packed)
        out.raw(sync)
        if source.take(_SYNC_BYTES) != sync:
            raise AvroUnreadable("a block does not end where it says")
    return out.done()


def _block(types: "_Types", source: "_Reader", count: int) -> bytes:
    out = _Writer()
    for _ in range(count):
        types.write(types.schema, types.read(types.schema, source), out)
    return out.done()


def _deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


class _Types:
    """Values by their schema. A union's is a pair of branch and value."""

    def __init__(self, schema: Any, change: Change) -> None:
        self.schema, self._change = schema, change
        self._named: dict[str, Any] = {}

    def _of(self, schema: Any) -> tuple[str, Any]:
        if isinstance(schema, list):
            return "union", schema
        if isinstance(schema, str):
            return (schema, schema) if schema not in self._named else self._of(self._named[schema])
        if isinstance(schema["type"], dict | list):
            return self._of(schema["type"])
        if "name" in schema:
            self._named[schema["name"]] = schema
        return schema["type"], schema

    def read(self, schema: Any, source: "_Reader") -> Any:  # one return a kind
        kind, schema = self._of(schema)
        if kind == "record":
            fields = {field["name"]: self.read(field["type"], source) for field in schema["fields"]}
            self._change(schema["name"], fields)
            return fields
        if kind == "union":
            branch = source.long()
            return branch, self.read(schema[branch], source)
        if kind == "array":
            return [self.read(schema["items"], source) for _ in source.blocks()]
        if kind == "map":
            return [(source.bytes_(), self.read(schema["values"], source)) for _ in source.blocks()]
        if kind == "null":
            return None
        if kind in ("int", "long", "enum"):
            return source.long()
        if kind in ("bytes", "string"):
            return source.bytes_().decode() if kind == "string" else source.bytes_()
        if kind == "boolean":
            return source.take(1)
        if kind in _FLOATS:
            return source.take(_FLOATS[kind].size)
        if kind == "fixed":
            return source.take(schema["size"])
        raise AvroUnreadable(f"its schema has the type {kind!r:.80}")

    def write(self, schema: Any, value: Any, out: "_Writer") -> None:
        kind, schema = self._of(schema)
        if kind == "record":
            for field in schema["fields"]:
                self.write(field["type"], value[field["name"]], out)
        elif kind == "union":
            out.long(value[0])
            self.write(schema[value[0]], value[1], out)
        elif kind in ("array", "map"):
            if value:
                out.long(len(value))
            for each in value:
                if kind == "map":
                    out.bytes_(each[0])
                self.write(
                    schema["items" if kind == "array" else "values"],
                    each if kind == "array" else each[1],
                    out,
                )
            out.long(0)
        elif kind in ("int", "long", "enum"):
            out.long(value)
        elif kind in ("bytes", "string"):
            out.bytes_(value.encode() if kind == "string" else value)
        elif kind != "null":
            out.raw(value)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._data)

    def take(self, size: int) -> bytes:
        found = self._data[self._at : self._at + size]
        if size < 0 or len(found) < size:
            raise AvroUnreadable("it is cut short")
        self._at += size
        return found

    def long(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self.take(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:  # the last byte of a number has its highest bit clear
                return (value >> 1) ^ -(value & 1)

    def bytes_(self) -> bytes:
        return self.take(self.long())

    def blocks(self) -> Any:
        """Once for each item of an array or map, whose blocks may say their size too."""
        while count := self.long():
            if count < 0:
                count = -count
                self.long()
            yield from range(count)

    def map_of_bytes(self) -> dict[str, bytes]:
        return {self.bytes_().decode(): self.bytes_() for _ in self.blocks()}


class _Writer:
    def __init__(self) -> None:
        self._out = io.BytesIO()

    def done(self) -> bytes:
        return self._out.getvalue()

    def raw(self, data: bytes) -> None:
        self._out.write(data)

    def long(self, value: int) -> None:
        left = (value << 1) ^ (value >> 63)
        while left > 0x7F:  # seven bits a byte
            self._out.write(bytes((left & 0x7F | 0x80,)))
            left >>= 7
        self._out.write(bytes((left,)))

    def bytes_(self, data: bytes) -> None:
        self.long(len(data))
        self.raw(data)

    def map_of_bytes(self, values: dict[str, bytes]) -> None:
        self.long(len(values))
        for name, value in values.items():
            self.bytes_(name.encode())
            self.bytes_(value)
        self.long(0)
