"""Whatever is written, compacted, cut and restarted in whatever order: no key loses its last value."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from hypothesis import given, settings
from hypothesis import strategies as st

from gapless.core.log import Log, LogConfig
from gapless.storage import FileLog, FileLogStore, MemoryLogStore
from gapless.storage.disk import Disk
from tests.storage.helpers import TOPIC, TOPIC_ID, flush
from tests.storage.test_compaction import KeyValue, batches_of, plan, put, survivors

CONFIG = LogConfig(segment_bytes=300, index_interval_bytes=64, file_delete_delay_ms=0)
UNSYNCED = Disk(fdatasync=lambda _: None, fsync=lambda _: None)  # no power is cut here

keys = st.sampled_from(["a", "b", "c", "d", "a key that is longer than its digest"])
pairs = st.lists(st.tuples(keys, st.one_of(st.none(), st.text("xy", max_size=20))), min_size=1, max_size=4)
actions = st.one_of(
    st.tuples(st.just("put"), pairs, st.integers(0, 4)),
    st.tuples(st.just("put"), pairs, st.integers(0, 4)),
    st.tuples(st.just("clean"), st.integers(1, 6), st.integers(0, 300)),
    st.tuples(st.just("cut"), st.integers(0, 9), st.just(0)),
    st.tuples(st.just("restart"), st.booleans(), st.just(0)),
)


class Twins:
    """A log on files and one in memory, to which the same happens."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = FileLogStore(folder, UNSYNCED)
        self.memory = MemoryLogStore()
        self.now_ms = 1000
        self.open()

    def open(self) -> None:
        self.file_log = self.files.open(TOPIC, TOPIC_ID, 0, CONFIG)
        self.memory_log = self.memory.open(TOPIC, TOPIC_ID, 0, CONFIG)
        self.logs: tuple[Log, Log] = (self.file_log, self.memory_log)

    def restart(self, clean: bool) -> None:
        flush(self.file_log)
        self.files.write_checkpoints()
        if clean:
            self.files.close_cleanly()
        else:
            self.files.close()
        self.files = FileLogStore(self.folder, UNSYNCED)
        self.open()

    def clean(self, max_keys: int, later_ms: int) -> None:
        self.now_ms += later_ms
        flush(self.file_log)
        for log in self.logs:
            cleaning = log.begin_cleaning(
                plan(log, max_keys=max_keys, now_ms=self.now_ms, delete_retention_ms=100)
            )
            while cleaning is not None and not cleaning.step():
                pass


def happen(twins: Twins, written: list[tuple[int, KeyValue]], action: tuple[object, ...]) -> None:
    match action:
        case ("put", list(some), int(compression)):
            written += [(twins.file_log.end_offset + i, pair) for i, pair in enumerate(some)]
            for log in twins.logs:
                put(log, *some, compression=compression)
        case ("clean", int(max_keys), int(later_ms)):
            twins.clean(max_keys, later_ms)
        case ("cut", int(back), _):
            base = twins.file_log.segments()[-1].base_offset
            offset = max(base, twins.file_log.end_offset - back)
            for log in twins.logs:
                log.truncate_to(offset)
            written[:] = [each for each in written if each[0] < twins.file_log.end_offset]
        case ("restart", bool(clean), _):
            twins.restart(clean)


def check(twins: Twins, written: list[tuple[int, KeyValue]]) -> None:
    left = survivors(twins.file_log)
    assert left == survivors(twins.memory_log)
    headers = [header._replace(position=0) for header, _ in batches_of(twins.file_log)]
    assert headers == [header._replace(position=0) for header, _ in batches_of(twins.memory_log)]
    assert twins.file_log.segments() == twins.memory_log.segments()
    assert twins.file_log.cleaned_offset == twins.memory_log.cleaned_offset
    known = dict(written)
    assert all(known[offset] == (key, value) for offset, key, value in left)
    last = {key: (offset, value) for offset, (key, value) in written}
    shown = {key: (offset, value) for offset, key, value in left}
    for key, (offset, value) in last.items():
        assert shown.get(key, (offset, None)) == (offset, value), "a value is lost, or an old one is back"


@settings(max_examples=60, deadline=None)
@given(st.lists(actions, min_size=10, max_size=80))
def test_no_key_loses_its_last_value(steps: list[tuple[object, ...]]) -> None:
    with TemporaryDirectory() as folder:
        twins = Twins(Path(folder) / "data")
        assert isinstance(twins.file_log, FileLog)
        written: list[tuple[int, KeyValue]] = []
        for action in steps:
            happen(twins, written, action)
        check(twins, written)
        twins.files.close()
