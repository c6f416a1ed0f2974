"""The shape of the project, checked: who imports whom, how long files are, what they must not mention.

A new part of `gapless` must be given its rule in `MAY_IMPORT`, a longer file its reason in `LONG_FILES`.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "gapless"

# Who of ours may import whom of ours. A name with a dot is one module of a package and not the rest of it.
EVERYBODY_MAY = {"errors", "__version__"}
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "java": set(),
    "jars": {"java"},
    "wire": set(),
    "core": {"wire"},
    "storage": {"core.log", "wire"},
    "broker": {"core", "storage", "wire"},
    "client": set(),
    "pipeline": {"client.formats", "jars", "java"},
    "audit": {"client.formats", "pipeline"},
    "testing": {"jars", "java", "storage.power_cut", "wire"},
    "simulator": {"core", "storage", "wire"},
    "demo": {"audit", "client", "java", "pipeline", "testing"},
    "cli": {"audit", "client", "demo", "pipeline", "simulator", "testing", "wire", "java", "jars"},
    "__main__": {"cli"},
}
# What the package itself offers, imported only by those who ask for it.
FRONT_DOOR = {"client"}
# These know nothing of people and processes: not even the errors that are meant for them.
IMPORT_NOTHING_ELSE = {"wire", "core"}
# The commands that are the broker. All others must work against any Kafka.
BROKER_COMMANDS = {"cli.up"}

# The core is driven by a simulator: whatever is not a function of its inputs would make a run unrepeatable.
NOT_IN_CORE = {
    *("asyncio", "concurrent", "multiprocessing", "queue", "selectors", "sched", "signal", "threading"),
    *("fcntl", "glob", "io", "mmap", "os", "pathlib", "shutil", "socket", "ssl", "subprocess", "tempfile"),
    *("datetime", "random", "secrets", "time", "importlib", "logging"),
}
NOT_CALLED_IN_CORE = {"hash", "id", "open", "print", "input", "__import__", "exec", "eval"}

BASE_LIBRARIES = {"confluent_kafka", "cramjam", "crc32c", "kafka", "rich", "typer", "uvloop"}
SPARK_LIBRARIES = {"delta", "numpy", "pandas", "py4j", "pyarrow", "pyspark"}
MAY_USE_SPARK = {"audit", "pipeline", "demo"}
ZOOKEEPER_LIBRARIES = {"kazoo"}
USE_ZOOKEEPER = {"zookeeper.py", "zookeeper_session.py"}
# Each database's library is used by those who write to it, which are imported when they are asked for.
STORE_LIBRARIES = {
    "psycopg": (
        "client/stores/postgres.py",
        "pipeline/sinks/postgres/",
        "pipeline/check.py",
        "audit/tables.py",
    ),
    "redis": ("client/stores/redis.py",),
}

MAX_LINES = 600
LONG_FILES: dict[str, str] = {}  # path: why it is one thing and cannot well be two

# Addresses of package registries, and paths of whoever's machine it was written on.
MUST_NOT_MENTION = re.compile(
    r"pypi\.org|pythonhosted\.org|repo1?\.maven\b|maven\.apache\.org/maven2|artifactory|nexus\.|index-url=\S"
    r"|(?<![\w.$~/-])/(?:work|root|home/\w+|Users/\w+)/"
)


# Private names that tests use, by reason. Each entry is a file below tests/ and a name.
PRIVATE_USES: dict[str, set[str]] = {
    "a timeout or a size that users cannot set, made smaller": {
        *("cli/test_topic_is_known.py _KNOWN_S", "pipeline/test_lag.py _PATIENCE_S"),
        *("pipeline/sinks/kafka/test_checks.py _REQUEST_S", "pipeline/sinks/kafka/test_writer.py _REQUEST_S"),
        *("pipeline/test_source.py _PATIENCE_S", "pipeline/sinks/postgres/test_copying.py _BYTES_AT_ONCE"),
        *("storage/conftest.py _RECENT", "storage/conftest.py _LONG_WALK_BYTES"),
        *("storage/test_model.py _RECENT", "storage/test_model.py _LONG_WALK_BYTES"),
    },
    "a fault at a moment that cannot be reached from outside: a death, a hang, a lost answer": {
        *("broker/test_supervisor.py _News", "pipeline/sinks/kafka/test_writer.py _kept"),
        *("client/processes/produce.py _producer", "client/producing/sending.py _producer"),
        *("client/producing/test_transactional.py _source", "client/stores/test_postgres.py _transaction"),
        *("client/stores/test_redis.py _step", "client/stores/worker.py _step"),
        *("client/stores/worker.py _transaction", "pipeline/test_run.py _finish"),
        *("client/stores/test_sqlite.py _Connection", "pipeline/dedup/test_by_identity.py _Gathering"),
        *("pipeline/sinks/kafka/mortal.py _begin", "pipeline/sinks/kafka/mortal.py _commit"),
        *("client/producing/test_producer.py _sender", "client/producing/test_producer.py _upkeep"),
        *("client/producing/test_sealer.py _sender", "client/producing/test_sealer.py _upkeep"),
    },
    "an attempt or a broker that ignores what was committed": {
        *("pipeline/sinks/postgres/test_writer.py _beginning", "pipeline/sinks/test_delta.py _append"),
        *("pipeline/sinks/test_delta.py _merge", "simulator/test_clients.py _write"),
    },
    "a state of files, servers or machines for which no public function exists": {
        *("core/test_compaction.py _contents", "client/stores/test_transactions.py _connection"),
        *("client/stores/test_servers.py _DEBIAN", "cluster/test_growth.py _members"),
    },
    "a function that only Spark calls, on its workers": {
        *("audit/test_counting.py _runs_of", "audit/test_reading.py _united"),
    },
    "the reference implementation that a fast one is compared with": {"wire/test_batch.py _careful_walk"},
    "memory use, which would take millions of records to measure": {
        *("audit/test_following.py _sinks", "audit/test_following.py _there"),
    },
    "a private name of a library that offers no public one": {
        *("leaks.py _AdminClientImpl", "pipeline/test_run.py _AdminClientImpl"),
        *("broker/nasty.py _attribute", "broker/nasty.py _includes", "wire/made_messages.py _attribute"),
        *(
            "wire/made_messages.py _includes",
            "compat/admins/java.py _fqn",
            "compat/transactors/aio.py _closed",
        ),
        *("compat/admins/java.py _gateway_client", "compat/transactors/aio.py _sender"),
        *("pipeline/test_class_archive.py _gateway", "pipeline/test_source.py _jdf"),
        *("simulator/test_campaign.py _condition", "simulator/test_campaign.py _release_save"),
    },
    "a private name of the test's own class": {
        *("client/producing/sending.py _open", "client/producing/test_recovery.py _messages"),
    },
}
# Documented names of namedtuple, sys and os that begin with an underscore.
PUBLIC_NAMES = {"_replace", "_asdict", "_fields", "_make", "_getframe", "_exit"}
OWNERS = {"self", "cls", "KafkaError"}
REPLACES = {"setattr", "delattr", "getattr", "object", "patch"}
# Tests without assertions. They fail when the product function that they call raises.
ONLY_RAISE = {"test_what_depends_on_the_batch_alone_is_allowed"}


class Import(NamedTuple):
    """One import statement: `name` is dotted and absolute."""

    path: Path
    line: int
    name: str

    def __str__(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line} imports {self.name}"


@cache
def project_files() -> tuple[Path, ...]:
    """All that is or would be committed; in a copy without git, all that is not hidden or made by tools."""
    git = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(git, cwd=ROOT, capture_output=True, check=False)
    if listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.decode().split("\0") if name]
    else:
        top = [path for path in ROOT.iterdir() if path.name not in {"jars", "build", "dist"}]
        shown = [path for path in top if not path.name.startswith(".")]
        paths = [
            path for each in shown for path in [each, *each.rglob("*")] if "__pycache__" not in path.parts
        ]
    return tuple(sorted(path for path in paths if path.is_file()))


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def sources(part: str = "") -> list[Path]:
    """Python files of the package, or of one of its parts."""
    below = PACKAGE / part
    return [path for path in project_files() if path.suffix == ".py" and path.is_relative_to(below)]


def module_name(path: Path) -> str:
    """Dotted name below `gapless`: `core.log`, `cli`, and `` for the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def part_of(path: Path) -> str:
    return module_name(path).partition(".")[0]


def imports_of(path: Path) -> Iterator[Import]:
    """Every import anywhere in a file, also inside functions and under TYPE_CHECKING."""
    package = ["gapless", *path.relative_to(PACKAGE).parts[:-1]]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(path, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            for alias in node.names:
                yield Import(path, node.lineno, f"{module}.{alias.name}")


def own_imports(path: Path) -> Iterator[tuple[Import, str]]:
    """Imports of ours, with the name below `gapless`."""
    for found in imports_of(path):
        if found.name == "gapless" or found.name.startswith("gapless."):
            yield found, found.name.removeprefix("gapless").removeprefix(".")


def covers(allowed: set[str], name: str) -> bool:
    return any(name == entry or name.startswith(f"{entry}.") for entry in allowed)


def allowed_imports(path: Path) -> set[str]:
    part = part_of(path)
    allowed = MAY_IMPORT[part] | {part}
    if part not in IMPORT_NOTHING_ELSE:
        allowed |= EVERYBODY_MAY
    if module_name(path) in BROKER_COMMANDS:
        allowed |= {"broker", "core", "storage"}
    return allowed


def test_every_part_has_a_rule() -> None:
    parts = {part_of(path) for path in sources()} - {""}
    assert parts == MAY_IMPORT.keys(), "each part has one line in MAY_IMPORT"


def test_imports_go_in_one_direction() -> None:
    wrong = [
        str(found)
        for path in sources()
        for found, name in own_imports(path)
        if not covers(allowed_imports(path) if part_of(path) else FRONT_DOOR, name)
    ]
    assert not wrong


def reachable(part: str) -> dict[str, str]:
    """Return every module that a part imports, directly or not, with the import that leads to it."""
    by_name = {module_name(path): path for path in sources()}
    waiting = [name for name in by_name if covers({part}, name)]
    found = dict.fromkeys(waiting, "")
    while waiting:
        for step, target in own_imports(by_name[waiting.pop()]):
            # `b` in `from .a import b` is a module or a name in one. Importing a module runs its packages.
            parts = target.split(".")
            for name in (".".join(parts[:length]) for length in range(1, len(parts) + 1)):
                if name in by_name and name not in found:
                    found[name] = str(step)
                    waiting.append(name)
    return found


@pytest.mark.parametrize("part", ["client", "pipeline", "audit"])
def test_what_runs_against_any_kafka_knows_nothing_of_the_broker(part: str) -> None:
    """Follow the imports themselves, through all parts, instead of trusting `MAY_IMPORT`."""
    broker = {"core", "storage", "broker", "testing", "simulator", "cli"}
    found = reachable(part)
    assert part in found
    assert not {name: step for name, step in found.items() if covers(broker, name)}


def imports_from(paths: list[Path], libraries: set[str]) -> list[str]:
    return [
        str(found)
        for path in paths
        for found in imports_of(path)
        if found.name.partition(".")[0] in libraries
    ]


def calls(path: Path, names: set[str]) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            yield f"{path.relative_to(ROOT)}:{node.lineno} calls {node.func.id}()"


def test_the_core_has_no_io_no_clock_and_no_chance() -> None:
    assert not imports_from(sources("core"), NOT_IN_CORE)
    assert not [call for path in sources("core") for call in calls(path, NOT_CALLED_IN_CORE)]


def test_the_core_uses_no_libraries() -> None:
    assert not imports_from(sources("core"), BASE_LIBRARIES | SPARK_LIBRARIES)


def test_spark_is_used_only_by_what_needs_its_extra() -> None:
    without_spark = [path for path in sources() if part_of(path) not in MAY_USE_SPARK]
    assert not imports_from(without_spark, SPARK_LIBRARIES)


def test_zookeeper_is_used_in_one_place_that_is_imported_when_it_is_asked_for() -> None:
    others = [path for path in sources() if path.name not in USE_ZOOKEEPER]
    assert not imports_from(others, ZOOKEEPER_LIBRARIES)
    code = "import sys, gapless.broker.supervisor, gapless.cli.up; sys.exit('kazoo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("library", STORE_LIBRARIES)
def test_the_library_of_a_database_is_used_by_those_alone_who_write_to_it(library: str) -> None:
    others = [
        path
        for path in sources()
        if not path.relative_to(PACKAGE).as_posix().startswith(STORE_LIBRARIES[library])
    ]
    assert not imports_from(others, {library})
    code = f"import sys, gapless.client, gapless.client.stores; sys.exit({library!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_only_declared_libraries_are_used() -> None:
    extras = SPARK_LIBRARIES | ZOOKEEPER_LIBRARIES | STORE_LIBRARIES.keys()
    known = BASE_LIBRARIES | extras | sys.stdlib_module_names | {"gapless"}
    plugin = PACKAGE / "testing" / "pytest_plugin.py"  # which only pytest imports
    others = [path for path in sources() if path != plugin]
    used = {found.name.partition(".")[0] for path in others for found in imports_of(path)}
    assert used <= known


def test_every_source_file_opens_by_saying_what_it_is_for() -> None:
    assert not [str(path.relative_to(ROOT)) for path in sources() if not ast.get_docstring(tree(path))]


def test_files_stay_short_enough_to_be_read() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines())
        for path in project_files()
        if path.suffix == ".py"
    }
    long = {name: lines for name, lines in lengths.items() if lines > MAX_LINES}
    assert long.keys() == LONG_FILES.keys(), f"split, or justify in LONG_FILES: {long}"


def test_no_file_names_a_registry_or_a_machine() -> None:
    wrong = []
    for path in project_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if MUST_NOT_MENTION.search(line) and path != Path(__file__).resolve():
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not wrong


def test_importing_the_package_imports_none_of_its_parts() -> None:
    show = "import sys, gapless; print([name for name in sys.modules if name.startswith('gapless.')])"
    assert subprocess.run([sys.executable, "-c", show], capture_output=True, check=True).stdout == b"[]\n"


# The tests themselves.


def files_of_tests() -> list[Path]:
    return [path for path in project_files() if path.suffix == ".py" and path.is_relative_to(ROOT / "tests")]


def called(node: ast.Call) -> str:
    """Return the name of the called function or method."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def private_names(path: Path) -> Iterator[str]:
    """Yield private names of other objects that a file uses, also as text in `setattr` and `patch`."""
    for node in ast.walk(tree(path)):
        names: list[str] = []
        if isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            owner = ast.unparse(node.value)
            names = [] if owner in OWNERS or owner.startswith("super(") else [node.attr]
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Call) and called(node) in REPLACES:
            texts = [each.value for each in node.args[:2] if isinstance(each, ast.Constant)]
            names = [name for text in texts if isinstance(text, str) for name in text.split(".")]
        yield from (
            name
            for name in names
            if name.startswith("_") and not name.endswith("__") and name not in PUBLIC_NAMES
        )


def test_tests_use_public_names() -> None:
    """A test of a private name fails when the implementation changes and the behaviour does not."""
    used = {
        f"{path.relative_to(ROOT / 'tests').as_posix()} {name}"
        for path in files_of_tests()
        for name in private_names(path)
    }
    allowed = set().union(*PRIVATE_USES.values())
    assert used - allowed == set(), "use a public name, or give the reason in PRIVATE_USES"
    assert allowed - used == set(), "no longer used: remove them from PRIVATE_USES"


def test_every_test_can_fail() -> None:
    """Each test asserts or raises, or calls a function that does and is defined in tests.

    Functions are matched by name only.
    """
    functions = [
        node
        for path in files_of_tests()
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    names = {"raises", "fail"}
    calls_of: dict[ast.AST, set[str]] = {}
    can_fail: set[ast.AST] = set()
    for function in functions:
        nodes = list(ast.walk(function))
        calls_of[function] = {called(node) for node in nodes if isinstance(node, ast.Call)}
        if any(isinstance(node, ast.Assert | ast.Raise) for node in nodes):
            can_fail.add(function)
            names.add(function.name)
    while more := {each for each in functions if each not in can_fail and calls_of[each] & names}:
        can_fail |= more
        names |= {each.name for each in more}
    tests = [each for each in functions if each.name.startswith("test_")]
    assert len(tests) > 2000
    assert {each.name for each in tests if each not in can_fail} == ONLY_RAISE
