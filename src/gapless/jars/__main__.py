"""`python -m gapless.jars spark kafka zookeeper`: retrieve the pinned jars and check every byte of them.

Apache Ivy does the work; it comes inside pyspark and needs only Java. Jars appear in their folder all at once
and only after they were checked, so that a folder that exists can be trusted.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from gapless.jars import IVY_FILE, SUMS_FILE, JarsMissing, jars_folder, pinned_sums
from gapless.java import JavaMissing, find_java

SETS = ("spark", "kafka", "zookeeper")
RETRIEVE_TIMEOUT_S = 1200


def retrieve(set_name: str, into: Path) -> None:
    """Let Ivy fetch one set into a folder."""
    command: list[str | Path] = [
        *(find_java().executable, "-jar", _ivy_jar(), "-warn", "-ivy", IVY_FILE, "-confs", set_name),
        # Maven calls OSGi jars "bundle". Sources and documentation are left behind.
        *("-types", "jar", "bundle", "-retrieve", f"{into}/[artifact]-[revision].[ext]"),
    ]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=RETRIEVE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise JarsMissing(
            f"no answer within {RETRIEVE_TIMEOUT_S} s: is the network there? try again"
        ) from None
    if done.returncode != 0:
        output = (done.stdout + done.stderr).splitlines()
        reasons = [line.strip() for line in output if re.search("unresolved|FAILED|ERROR", line)]
        raise JarsMissing(f"Ivy could not retrieve them, try again: {'; '.join(reasons or output[-3:])}")


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise JarsMissing(
            "pyspark, whose Ivy retrieves them, is not installed: run: pip install 'gapless[spark]'"
        )
    found = sorted((Path(spec.origin).parent / "jars").glob("ivy-*.jar"))
    if not found:
        raise JarsMissing("this pyspark has no Ivy inside: run: pip install 'gapless[spark]'")
    return found[-1]


def sums_of(folder: Path) -> dict[str, str]:
    """File name to sha256 of what lies in a folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.jar"))}


def differences(pinned: dict[str, str], found: dict[str, str]) -> list[str]:
    """What a person must know about a folder that is not as pinned."""
    wrong = []
    for name in sorted(pinned.keys() | found.keys()):
        if name not in found:
            wrong.append(f"{name} is missing")
        elif name not in pinned:
            wrong.append(f"{name} is not pinned")
        elif pinned[name] != found[name]:
            wrong.append(f"{name} has sha256 {found[name]} instead of {pinned[name]}")
    return wrong


def ensure(set_name: str) -> str:
    """Make the set complete and correct. Returns what was done, as a line for people."""
    folder = jars_folder() / set_name
    pinned = pinned_sums(set_name)
    if folder.is_dir() and not differences(pinned, sums_of(folder)):
        return f"{set_name}: {len(pinned)} jars, as pinned"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=folder.parent) as new:
        retrieved = Path(new) / set_name
        retrieve(set_name, retrieved)
        wrong = differences(pinned, sums_of(retrieved))
        if wrong:
            raise JarsMissing(
                f"not what {SUMS_FILE.name} says, nothing was installed: {'; '.join(wrong)} "
                "(a damaged download? remove it from ~/.ivy2/cache and try again)"
            )
        shutil.rmtree(folder, ignore_errors=True)
        retrieved.rename(folder)
    return f"{set_name}: {len(pinned)} jars retrieved, as pinned"


def record() -> str:
    """Pin what Ivy retrieves now. For whoever changed `ivy.xml` and has looked at what comes."""
    lines = []
    with tempfile.TemporaryDirectory() as new:
        for set_name in SETS:
            retrieved = Path(new) / set_name
            retrieve(set_name, retrieved)
            lines += [f"{digest}  {set_name}/{name}\n" for name, digest in sums_of(retrieved).items()]
    SUMS_FILE.write_text("".join(lines))
    return f"{len(lines)} jars recorded in {SUMS_FILE}"


def main() -> int:
    """Retrieve and check the sets that are named."""
    parser = argparse.ArgumentParser(prog="python -m gapless.jars", description="Retrieve the pinned jars.")
    parser.add_argument(
        "sets", nargs="*", metavar="SET", default=list(SETS), help=f"{', '.join(SETS)}; default: all"
    )
    parser.add_argument("--record", action="store_true", help="rewrite SHA256SUMS from what ivy.xml names")
    arguments = parser.parse_args()
    try:
        if arguments.record:
            print(record())
            return 0
        for set_name in arguments.sets:
            if set_name not in SETS:
                parser.error(f"no set named {set_name}: choose from {', '.join(SETS)}")
            print(ensure(set_name))
    except (JarsMissing, JavaMissing) as problem:
        print(f"jars: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
