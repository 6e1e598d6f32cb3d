#!/usr/bin/env python3
"""Rules of the tree that a compiler does not check: layers, homes of libraries, names, length, marks.

Prints one line a finding (file:line: what) and exits 1 if there is any."""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
MAY_INCLUDE = {
    "common": {"common"},
    "kernels": {"common", "kernels"},
    "agent": {"common", "kernels", "agent"},
    "scheduler": {"common", "scheduler"},
}
# Library header (regex) -> files that are its home.
HOMES = {
    r"event2?/|event\.h": r"common/net_nng\w*\.c",
    r"nng/": r"common/net_nng\w*\.c",
    r"http_parser\.h": r"common/http\w*\.[ch]",
    r"sqlite3\.h": r"scheduler/store\w*\.[ch]",
    r"msgpack": r"common/wire\w*\.c",
    r"cblas\.h|openblas": r"kernels/blas\w*\.c",
    r"jansson\.h": r"common/json\w*\.c",
    r"zlib\.h": r"agent/data\w*\.c",
    r"jpeglib\.h|jerror\.h": r"agent/image\w*\.c",
    r"png\.h": r"agent/image\w*\.c",
    r"mbedtls/": r"common/hash\w*\.c",
    r"systemd/": r"scheduler/\w+\.c",
}
LIMIT_LINES = 900
# Words that mark unfinished work, split so that this file does not hold them.
MARKS = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X|HA" r"CK)\b|not (yet )?imple" r"mented|place" r"holder|for no" r"w\b")
PROGRAM = re.compile(r"^(agent/main\.c|scheduler/main\.c|scheduler/cli/.*|tests/.*)$")

findings = []


def say(path, line, text):
    findings.append(f"{path}:{line}: {text}")


def tracked(*patterns):
    out = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns], cwd=ROOT, check=True,
                         capture_output=True, text=True).stdout.split("\n")
    return [p for p in out if p and (ROOT / p).exists()]


def check_includes(path, lines):
    layer = path.split("/")[0]
    for number, line in enumerate(lines, 1):
        match = re.match(r'\s*#\s*include\s+(["<])([^">]+)[">]', line)
        if not match:
            continue
        quoted, header = match.group(1) == '"', match.group(2)
        if path.startswith("tests/plugin_example/"):
            continue  # a project of its own, outside of the tree
        if quoted:
            if "/" not in header:
                say(path, number, f'include from the root: "{header}" has no folder')
            elif not PROGRAM.match(path) and header.split("/")[0] not in MAY_INCLUDE.get(layer, set()):
                say(path, number, f"{layer} may not include {header}")
            continue
        for library, home in HOMES.items():
            if re.match(library, header) and not re.fullmatch(home, path) and not path.startswith("tests/"):
                say(path, number, f"<{header}> has its home in {home}")


def check_names():
    """A global symbol starts with its file's name, or with the name of the header it is declared in."""
    for path in tracked("common/*.h", "kernels/*.h", "agent/*.h", "scheduler/*.h"):
        stem = pathlib.Path(path).stem.removesuffix("_priv")
        text = re.sub(r"/\*.*?\*/", "", (ROOT / path).read_text(), flags=re.S)
        allowed = [stem] + ALIASES.get(path, [])
        for match in re.finditer(r"^(?:extern\s+)?(?:const\s+)?(?:struct\s+\w+|enum\s+\w+|\w+)[\s*]+(\w+)\s*\(", text, re.M):
            name = match.group(1)
            if name in ("__attribute__", "defined") or match.group(0).startswith(("#", "typedef", "return", "static")):
                continue
            if not any(name.startswith(a) for a in allowed):
                line = text[: match.start()].count("\n") + 1
                say(path, line, f"{name}() does not start with {' or '.join(allowed)}")


# Headers that carry a second, equally guessable family of names.
ALIASES = {
    "common/graph.h": ["dtype", "shape", "node"],
    "common/cut.h": ["cuts"],
    "common/op_rules.h": ["op"],
    "common/passes_rewrite.h": ["pass"],
    "kernels/backend.h": ["backends"],
    "scheduler/solve.h": ["solver"],
    "scheduler/blob.h": ["blobs"],
    "scheduler/sched_priv.h": ["planning", "dispatch", "jobs"],
    "scheduler/store_sql.h": ["store"],
    "scheduler/cli/cli.h": ["cli"],
    "scheduler/cli/rest.h": ["cli_rest"],
}


def main():
    sources = tracked("*.c", "*.h")
    for path in sources:
        text = (ROOT / path).read_text()
        lines = text.split("\n")
        check_includes(path, lines)
        if len(lines) > LIMIT_LINES and "golden/" not in path:
            say(path, len(lines), f"longer than {LIMIT_LINES} lines: split by responsibility")
    for path in tracked("*.c", "*.h", "*.sh", "*.py", "*.txt", "*.sql"):
        if path.startswith("tests/fuzz/corpus"):
            continue
        for number, line in enumerate((ROOT / path).read_text(errors="replace").split("\n"), 1):
            if MARKS.search(line):
                say(path, number, "unfinished mark: " + line.strip()[:80])
    check_names()
    for path in sources:
        if subprocess.run(["clang-format", "--dry-run", "-Werror", path], cwd=ROOT, capture_output=True).returncode:
            say(path, 1, "not formatted: run clang-format -i")
    print("\n".join(findings))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
