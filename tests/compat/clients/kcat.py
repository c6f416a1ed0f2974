"""kcat, as Debian ships it (librdkafka 2.0.2, an old one), run as a user would."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from ..sample import Record, plain
from . import ANSWER_TIMEOUT_S, AS_IT_COMES, Sending
from .confluent import producer_properties

_KEY_MARK = "\x1f"
_NULL_LENGTH = -1
_FORMAT = "%p %o %T %K %S %h\n%k%s\n"


class Kcat:
    name = "kcat"
    sample = staticmethod(plain)

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap

    def run(self, *arguments: str, stdin: bytes = b"", bootstrap: str | None = None) -> bytes:
        """Its output; CalledProcessError shows what it complained about."""
        command = ["kcat", "-E", "-b", bootstrap or self._bootstrap, *arguments]
        done = subprocess.run(
            command, input=stdin, capture_output=True, timeout=ANSWER_TIMEOUT_S, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.decode(errors='replace')}")
        return done.stdout

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        how: Sending = AS_IT_COMES,
        *,
        bootstrap: str | None = None,
    ) -> None:
        headers, partition = records[0].headers, records[0].partition
        if any(record.headers != headers or record.partition != partition for record in records):
            raise ValueError("one run of kcat sends one set of headers to one partition")
        arguments = ["-P", "-t", topic, "-p", str(partition), "-Z", "-K", _KEY_MARK]
        for name, value in headers:
            arguments += ["-H", f"{name}={(value or b'').decode()}"]
        for name, setting in producer_properties(how).items():
            arguments += ["-X", f"{name}={setting}"]
        lines = b"".join(
            (b"" if record.key is None else record.key + _KEY_MARK.encode()) + (record.value or b"") + b"\n"
            for record in records
        )
        self.run(*arguments, stdin=lines, bootstrap=bootstrap)

    def read(self, topic: str, partition: int, start: int, count: int) -> list[Record]:
        if count == 0:
            return []
        arguments = ["-C", "-t", topic, "-p", str(partition), "-o", str(start), "-c", str(count)]
        return list(parse(self.run(*arguments, "-f", _FORMAT)))

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        first = self._query(topic, partition, -2)
        end = self._query(topic, partition, -1)
        return first, end

    def offset_at(self, topic: str, partition: int, timestamp_ms: int) -> int | None:
        found = self._query(topic, partition, timestamp_ms)
        return None if found < 0 else found

    def _query(self, topic: str, partition: int, timestamp_ms: int) -> int:
        answer = self.run("-Q", "-t", f"{topic}:{partition}:{timestamp_ms}").decode()
        return int(answer.rsplit("offset ", 1)[1])


def parse(output: bytes) -> list[Record]:
    """Read back what `_FORMAT` printed. Lengths are printed, so binary contents come through.

    A header without a value is printed as NULL, and is taken for none.
    """
    records: list[Record] = []
    position = 0
    while position < len(output):
        line_end = output.index(b"\n", position)
        fields = output[position:line_end].split(b" ", 5)
        partition, offset, timestamp_ms, key_size, value_size = (int(field) for field in fields[:5])
        key_end = line_end + 1 + max(key_size, 0)
        value_end = key_end + max(value_size, 0)
        key = None if key_size == _NULL_LENGTH else output[line_end + 1 : key_end]
        value = None if value_size == _NULL_LENGTH else output[key_end:value_end]
        records.append(Record(value, key, _headers(fields[5]), timestamp_ms, partition, offset))
        position = value_end + 1
    return records


def _headers(printed: bytes) -> tuple[tuple[str, bytes | None], ...]:
    pairs = [pair.partition(b"=") for pair in printed.split(b",")] if printed else []
    return tuple((name.decode(), None if value == b"NULL" else value) for name, _, value in pairs)
