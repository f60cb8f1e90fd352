#!/usr/bin/env python3
"""Inserts each bug of list.txt into a copy of the project, and runs the tests that have to find it.

    tests/mutants/run.py --copy DIR              all, one after the other, in a copy of the project at DIR
    tests/mutants/run.py --copy DIR --from 10    from the tenth on
    tests/mutants/run.py --copy DIR --only mutex those in files whose path has this word
    tests/mutants/run.py --check                 only checks that each bug can still be inserted

The bugs are in Lua. In the copy each test reads the scripts from disk, so no bug needs a rebuild. Prints one
line for each: killed, or SURVIVED. Exits with 1 if one survived or could not be inserted. For bugs in Rust use
`cargo mutants`.
"""

import argparse
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

PROJECT = pathlib.Path(__file__).resolve().parents[2]
# A test that takes longer hangs because of the bug.
LONGEST = 180

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


class Copy:
    def __init__(self, at):
        shutil.copytree(PROJECT, at, dirs_exist_ok=True, ignore=shutil.ignore_patterns("target", ".git"))
        self.at, self.programs = at, {}
        includers = [path for path in (at / "src").rglob("*.rs") if INCLUDED in path.read_text()]
        if len(includers) != 1:
            sys.exit("the scripts are included in another way than is known here")
        includers[0].write_text(includers[0].read_text().replace(INCLUDED, READ))

    def run(self, test):
        """Returns true if the tests pass."""
        words = [word for word in test.split() if word != "--"]
        named = 1 if words[0] == "--lib" else 2
        target, names = tuple(words[:named]), words[named:]
        if target not in self.programs:
            build = ["cargo", "test", "--all-features", "--no-run", "--message-format=json", *target]
            built = subprocess.run(build, cwd=self.at, stdout=subprocess.PIPE, check=True, text=True)
            messages = map(json.loads, built.stdout.splitlines())
            self.programs[target] = [it["executable"] for it in messages if it.get("profile", {}).get("test")][-1]
        environment = os.environ | {"CARGO_MANIFEST_DIR": str(self.at)}
        # In its own session, so the servers that the tests start can be killed with it.
        running = subprocess.Popen(
            [self.programs[target], *names],
            cwd=self.at, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )
        try:
            output, _ = running.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
            return False
        if "running 0 tests" in output:
            sys.exit(f"`{test}` names no test")
        return running.returncode == 0


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--copy", type=pathlib.Path)
    options.add_argument("--from", type=int, default=1, dest="first")
    options.add_argument("--only", default="")
    options.add_argument("--check", action="store_true")
    options = options.parse_args()
    numbered = enumerate(mutants(), 1)
    wanted = [(number, *mutant) for number, mutant in numbered if number >= options.first and options.only in mutant[1]]
    bad = []
    for number, name, file, old, _, _ in wanted:
        count = (PROJECT / file).read_text().count(old)
        if count != 1:
            print(f"{number:3} `{old}` stands {count} times in {file}: {name}", flush=True)
            bad.append(name)
    if options.check or bad:
        sys.exit("cannot be put in: " + "; ".join(bad) if bad else 0)
    copy = Copy(options.copy.resolve())
    for test in sorted({test for mutant in wanted for test in mutant[5]}):
        if not copy.run(test):
            sys.exit(f"`{test}` does not pass without a bug")
    for number, name, file, old, new, tests in wanted:
        original = (copy.at / file).read_text()
        (copy.at / file).write_text(original.replace(old, new))
        killer = next((test for test in tests if not copy.run(test)), None)
        (copy.at / file).write_text(original)
        print(f"{number:3} {'killed' if killer else 'SURVIVED'}  {name}  [{killer}]", flush=True)
        if not killer:
            bad.append(name)
    if bad:
        sys.exit("not killed: " + "; ".join(bad))


if __name__ == "__main__":
    main()
