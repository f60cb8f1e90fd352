#!/usr/bin/env python3
"""Puts each bug of list.txt into a copy of the project, and runs the tests that have to find it.

    tests/mutants/run.py --copy DIR              all, one after the other, in a copy of the project at DIR
    tests/mutants/run.py --copy DIR --from 10    beginning with the tenth
    tests/mutants/run.py --copy DIR --only .lua  those in files whose names end so, or which are named so
    tests/mutants/run.py --check                 only whether each still can be put in

The copy gets a target/ of its own, so the beginning is slow: all tests are built there, and run without a bug to see that they pass and
how long they take. In the copy the scripts are read by each test, so that a bug in one needs no build. Prints a line for each: killed,
SURVIVED, or that it does not compile. Ends with 1 if one survived or could not be put in.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
import time

PROJECT = pathlib.Path(__file__).resolve().parents[2]
# A mutant hangs that takes so many times what the tests take without it, and no less than these seconds.
TIMES, SHORTEST = 8, 60

INCLUDED = """concat!(
                include_str!($first),
                $(include_str!($more),)*
            )"""
READ = """String::leak([$first, $($more),*].map(|name| {
                let at = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file!());
                std::fs::read_to_string(at.with_file_name(name)).unwrap_or_default()
            }).concat())"""


def mutants():
    text = (PROJECT / "tests/mutants/list.txt").read_text()
    for block in text.split("\n== ")[1:]:
        name, file, old, new, *tests = block.strip("\n").split("\n")
        lines = lambda line: line[2:].replace("\\n", "\n")
        yield name, file, lines(old), lines(new), [lines(test) for test in tests]


def target_of(test):
    """The words for cargo, and those for the test program: the beginning of the tests' names, and options."""
    words = [word for word in test.split() if word != "--"]
    named = 1 if words[0] == "--lib" else 2
    return tuple(words[:named]), words[named:]


class Copy:
    def __init__(self, at):
        unwanted = shutil.ignore_patterns("target", ".git")
        self.at, self.took, self.programs = at, {}, {}
        shutil.copytree(PROJECT, at, dirs_exist_ok=True, ignore=unwanted, copy_function=self.copy)

    def copy(self, path, to):
        """Writes what differs, at the time of today: cargo builds anew what a run before this one has left with a bug, and no more."""
        path, to = pathlib.Path(path), pathlib.Path(to)
        content = path.read_bytes()
        if path == PROJECT / "src/script.rs":
            if content.count(INCLUDED.encode()) != 1:
                sys.exit("src/script.rs includes the scripts in another way than is known here")
            content = content.replace(INCLUDED.encode(), READ.encode())
        if not to.exists() or to.read_bytes() != content:
            to.write_bytes(content)
            shutil.copymode(path, to)

    def build(self, target):
        """Builds a test program. False: it does not compile."""
        command = ["cargo", "test", "--no-run", "--message-format=json", *target]
        built = subprocess.run(command, cwd=self.at, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if built.returncode != 0:
            return False
        messages = map(json.loads, built.stdout.splitlines())
        programs = [message["executable"] for message in messages if message.get("profile", {}).get("test")]
        self.programs[target] = programs[-1]
        return True

    def run(self, test, builds):
        target, names = target_of(test)
        if (builds or target not in self.programs) and not self.build(target):
            return "does not compile"
        began = time.monotonic()
        outcome = self.outcome([self.programs[target], *names], self.took.get(test))
        self.took.setdefault(test, time.monotonic() - began)
        return outcome

    def outcome(self, command, usual):
        """Until the first test fails. What the tests have started, such as servers, is killed with them."""
        limit = max(SHORTEST, TIMES * usual) if usual else None
        environment = os.environ | {"CARGO_MANIFEST_DIR": str(self.at)}
        running = subprocess.Popen(
            command, cwd=self.at, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, start_new_session=True
        )
        hangs = threading.Event()

        def stop():
            hangs.set()
            os.killpg(running.pid, signal.SIGKILL)

        timer = threading.Timer(limit, stop) if limit else None
        if timer:
            timer.start()
        ran, failed = 0, False
        for line in running.stdout:
            ran += line.startswith("test ") and line.rstrip().endswith(" ok")
            failed = line.startswith("test ") and line.rstrip().endswith("FAILED")
            if failed:
                break
        if timer:
            timer.cancel()
        if failed:
            os.killpg(running.pid, signal.SIGKILL)
        running.stdout.close()
        status = running.wait()
        if hangs.is_set():
            return "killed: hangs"
        if failed or status != 0:
            return "killed"
        return "survived" if ran else "no such test"


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--copy", type=pathlib.Path)
    options.add_argument("--from", type=int, default=1, dest="first")
    options.add_argument("--only", default="")
    options.add_argument("--check", action="store_true")
    options = options.parse_args()
    wanted = [(number, *mutant) for number, mutant in enumerate(mutants(), 1) if number >= options.first]
    wanted = [mutant for mutant in wanted if mutant[2].endswith(options.only) or mutant[1] == options.only]
    bad = []
    for number, name, file, old, new, tests in wanted:
        count = (PROJECT / file).read_text().count(old)
        if count != 1:
            print(f"{number:3} `{old}` stands {count} times in {file}: {name}", flush=True)
            bad.append(name)
    if options.check or bad:
        sys.exit("cannot be put in: " + "; ".join(bad) if bad else 0)
    copy = Copy(options.copy.resolve())
    for test in sorted({test for mutant in wanted for test in mutant[5]}):
        outcome = copy.run(test, builds=False)
        print(f"    without a bug: {outcome} {copy.took.get(test, 0):5.0f} s  [{test}]", flush=True)
        if outcome != "survived":
            sys.exit(f"`{test}` does not pass without a bug")
    # Those first that need no build.
    wanted.sort(key=lambda mutant: not mutant[2].endswith(".lua"))
    for number, name, file, old, new, tests in wanted:
        original = (copy.at / file).read_text()
        (copy.at / file).write_text(original.replace(old, new))
        builds = not file.endswith(".lua")
        began, outcome = time.monotonic(), "survived"
        for test in tests:
            outcome = copy.run(test, builds)
            if outcome != "survived":
                break
        (copy.at / file).write_text(original)
        took = time.monotonic() - began
        shown = "SURVIVED" if outcome == "survived" else outcome
        print(f"{number:3} {shown:16} {took:5.0f} s  {name}  [{test}]", flush=True)
        if not outcome.startswith("killed"):
            bad.append(name)
    if bad:
        sys.exit("not killed: " + "; ".join(bad))


if __name__ == "__main__":
    main()
