#!/usr/bin/env python3
"""Puts each bug of list.txt into a copy of the project, and runs the tests that have to find it.

    tests/mutants/run.py --copy DIR              all, one after the other, in a copy of the project at DIR
    tests/mutants/run.py --copy DIR --from 10    beginning with the tenth
    tests/mutants/run.py --check                 only whether each still can be put in

The copy gets a target/ of its own, so the first is slow. Prints a line for each: killed, SURVIVED, or that it does not compile. Ends
with 1 if one survived or could not be put in.
"""

import argparse
import pathlib
import shutil
import subprocess
import sys
import time

PROJECT = pathlib.Path(__file__).resolve().parents[2]
LONGEST = 400  # seconds for the tests, when they are built: a mutant may hang


def mutants():
    text = (PROJECT / "tests/mutants/list.txt").read_text()
    for block in text.split("\n== ")[1:]:
        name, file, old, new, *tests = block.strip("\n").split("\n")
        lines = lambda line: line[2:].replace("\\n", "\n")
        yield name, file, lines(old), lines(new), [lines(test) for test in tests]


def run(test, copy):
    words = test.split()
    # What is not the name of a target is the beginning of a test's name.
    build = words if words[-1] == "--lib" or words[-2:-1] == ["--test"] else words[:-1]
    built = subprocess.run(["cargo", "test", "-q", "--no-run", *build], cwd=copy, capture_output=True, text=True)
    if built.returncode != 0:
        return "does not compile"
    command = ["cargo", "test", "-q", *test.split()]
    try:
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=LONGEST)
    except subprocess.TimeoutExpired:
        return "killed: hangs"
    if done.stdout.count("running ") == done.stdout.count("running 0 tests"):
        return "no such test"
    return "survived" if done.returncode == 0 else "killed"


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--copy", type=pathlib.Path)
    options.add_argument("--from", type=int, default=1, dest="first")
    options.add_argument("--check", action="store_true")
    options = options.parse_args()
    bad = []
    if not options.check:
        unwanted = shutil.ignore_patterns("target", ".git")
        shutil.copytree(PROJECT, options.copy, dirs_exist_ok=True, ignore=unwanted)
    for number, (name, file, old, new, tests) in enumerate(mutants(), 1):
        if number < options.first:
            continue
        original = (PROJECT / file).read_text()
        mutant = original.replace(old, new)
        if original.count(old) != 1:
            print(f"{number:3} `{old}` stands {original.count(old)} times in {file}: {name}", flush=True)
            bad.append(name)
            continue
        if options.check:
            continue
        (options.copy / file).write_text(mutant)
        began, outcome = time.monotonic(), "survived"
        for test in tests:
            outcome = run(test, options.copy)
            if outcome != "survived":
                break
        # Written anew and not copied, so that cargo sees that it has changed.
        (options.copy / file).write_text(original)
        took = time.monotonic() - began
        print(f"{number:3} {outcome:16} {took:5.0f} s  {name}  [{test}]", flush=True)
        if not outcome.startswith("killed"):
            bad.append(name)
    if bad:
        sys.exit("not killed: " + "; ".join(bad))


if __name__ == "__main__":
    main()
