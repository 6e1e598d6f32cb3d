#!/usr/bin/env python3
"""Runs the integration tests: functions test_* of the modules test_*.py beside this file, alone and in order.

A test decorated with @full runs with YOKE_FULL=1 only. Prints `ok NAME SECONDS`, `FAILED NAME`, `skipped NAME`, and a
last line `integration: N passed, N failed, N skipped`. Arguments: --bin DIR, --list, and words that names must contain."""
import argparse
import importlib
import pathlib
import sys
import time
import traceback

import harness


class Skip(Exception):
    pass


def full(function):
    function.full = True
    return function


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("words", nargs="*")
    arguments = parser.parse_args()
    if arguments.bin:
        harness.BIN = pathlib.Path(arguments.bin).resolve()
    here = pathlib.Path(__file__).resolve().parent
    counts = {"ok": 0, "FAILED": 0, "skipped": 0}
    for path in sorted(here.glob("test_*.py")):
        module = importlib.import_module(path.stem)
        for name, function in vars(module).items():
            if not name.startswith("test_") or not callable(function) or function.__module__ != path.stem:
                continue
            label = f"integration {path.stem[5:]}.{name[5:]}"
            if getattr(function, "full", False) and not harness.FULL:
                continue
            if arguments.words and not any(word in label for word in arguments.words):
                continue
            if arguments.list:
                print(label)
                continue
            start = time.monotonic()
            try:
                function()
                outcome = "ok"
            except Skip as why:
                outcome = "skipped"
                print(f"    {why}")
            except Exception:
                outcome = "FAILED"
                traceback.print_exc(file=sys.stdout)
            counts[outcome] += 1
            print(f"{outcome} {label} {time.monotonic() - start:.1f}", flush=True)
    if not arguments.list:
        print(f"integration: {counts['ok']} passed, {counts['FAILED']} failed, {counts['skipped']} skipped")
    return 1 if counts["FAILED"] else 0


if __name__ == "__main__":
    sys.modules.setdefault("run", sys.modules["__main__"])
    sys.exit(main())
