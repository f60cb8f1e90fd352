#!/usr/bin/env python3
"""Puts the bugs of lua.txt and rust.txt into a copy of the project, and runs the tests that have to find each.

    tests/mutants/run.py                          all of them
    tests/mutants/run.py --only rust.txt          those of a list
    tests/mutants/run.py --only locks/release     those whose file or name has these words
    tests/mutants/run.py --check                  only checks that each bug can still be put in

All bugs are in one build. In the copy each original text in Rust becomes `if crate::bug::is(N) { new } else { old }`,
which the variable BUG switches on, and the scripts are read at run time, from a directory for each bug in Lua. Nothing of
this is in the project itself. Bugs run in parallel (`--jobs`), each against its own tests, after all tests have passed
without a bug. A test that fails has to fail again alone, so a busy machine kills no bug. Tests that do not pass without
a bug are named, and find none.

Prints a line for each: killed, or SURVIVED. Exits with 1 if one survived or could not be put in, or tests do not pass.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

PROJECT = pathlib.Path(__file__).resolve().parents[2]
LISTS = [PROJECT / "tests/mutants" / name for name in ("lua.txt", "rust.txt")]
# A test that takes longer hangs because of the bug.
LONGEST = 180

INCLUDED = """concat!(
                include_str!($first),
                $(include_str!($more),)*
            )"""
READ = """String::leak([$first, $($more),*].map(|name| {
                let at = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
                let at = std::path::PathBuf::from(at).join(file!());
                std::fs::read_to_string(at.with_file_name(name)).unwrap_or_default()
            }).concat())"""
# Where a test reads scripts too.
READERS = ["tests/common/clock.rs"]
AT_BUILD, AT_RUN = 'env!("CARGO_MANIFEST_DIR")', 'std::env::var("CARGO_MANIFEST_DIR").unwrap()'

# Each crate gets them at the beginning and at the end of its first file.
CRATES = ["src/lib.rs", "src/bin/lockrun/main.rs"]
ALLOW = "#![allow(unused_parens, unused_mut)]\n"
SWITCH = """
mod bug {
    pub(crate) fn is(bug: u32) -> bool {
        static ON: std::sync::OnceLock<Option<u32>> = std::sync::OnceLock::new();
        *ON.get_or_init(|| std::env::var("BUG").ok()?.parse().ok()) == Some(bug)
    }
}
"""

Bug = collections.namedtuple("Bug", "number list name file old new tests")


def bugs():
    number, found = 0, []
    for path in LISTS:
        for block in path.read_text().split("\n== ")[1:]:
            name, file, old, new, *tests = [line for line in block.split("\n") if line and not line.startswith("#")]
            old, new, *tests = [line[2:].replace("\\n", "\n") for line in (old, new, *tests)]
            number += 1
            found.append(Bug(number, path.name, name, file, old, new, tests))
    return found


def cannot_be_put_in(bugs):
    """Returns why: an original text has to stand once in its file, and two of them may not overlap."""
    texts, places = {}, collections.defaultdict(set)
    for bug in bugs:
        text = texts.setdefault(bug.file, (PROJECT / bug.file).read_text())
        count = text.count(bug.old)
        if count != 1:
            yield f"{bug.number:3} `{bug.old}` stands {count} times in {bug.file}: {bug.name}"
        elif bug.file.endswith(".rs"):
            start = text.index(bug.old)
            ours = (start, start + len(bug.old))
            for start, end in places[bug.file] - {ours}:
                if start < ours[1] and ours[0] < end:
                    yield f"{bug.number:3} `{bug.old}` overlaps another bug in {bug.file}: {bug.name}"
            places[bug.file].add(ours)


def switched(old, bugs):
    """Returns the Rust text with a switch for each of the bugs of one original text."""
    text, is_statement = old, old.rstrip().endswith((";", "}"))
    for bug in bugs:
        on = f"crate::bug::is({bug.number})"
        if "BUG" in bug.new:
            # An original text that is neither an expression nor a statement.
            text = bug.new.replace("BUG", on)
        elif is_statement:
            text = f"if {on} {{ {bug.new} }} else {{ {text} }}"
        else:
            text = f"(if {on} {{ {bug.new} }} else {{ {text} }})"
    return text


class Copy:
    def __init__(self, at, bugs):
        self.at, self.programs = at, {}
        self.texts = {crate: (PROJECT / crate).read_text() for crate in CRATES}
        by_place = collections.defaultdict(list)
        for bug in bugs:
            if bug.file.endswith(".rs"):
                by_place[bug.file, bug.old].append(bug)
        for (file, old), there in by_place.items():
            text = self.texts.get(file) or (PROJECT / file).read_text()
            self.texts[file] = text.replace(old, switched(old, there))
        for crate in CRATES:
            self.texts[crate] = ALLOW + self.texts[crate] + SWITCH
        includers = [path for path in (PROJECT / "src").rglob("*.rs") if INCLUDED in path.read_text()]
        if len(includers) != 1:
            sys.exit("the scripts are included in another way than is known here")
        includer = str(includers[0].relative_to(PROJECT))
        self.texts[includer] = (self.texts.get(includer) or includers[0].read_text()).replace(INCLUDED, READ)
        for reader in READERS:
            self.texts[reader] = (PROJECT / reader).read_text().replace(AT_BUILD, AT_RUN)
        self.lay()

    def lay(self):
        """Writes what has changed since the last run, so that Cargo builds only that."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=PROJECT, stdout=subprocess.PIPE, check=True, text=True,
        )
        files = {file for file in listed.stdout.split("\0") if file and (PROJECT / file).is_file()}
        for file in files:
            source, there = PROJECT / file, self.at / file
            content = self.texts[file].encode() if file in self.texts else source.read_bytes()
            if not (there.is_file() and there.read_bytes() == content):
                there.parent.mkdir(parents=True, exist_ok=True)
                there.write_bytes(content)
                there.chmod(source.stat().st_mode)
        for folder, folders, names in os.walk(self.at):
            if pathlib.Path(folder) == self.at:
                folders.remove("target") if "target" in folders else None
            for name in names:
                there = pathlib.Path(folder) / name
                if str(there.relative_to(self.at)) not in files:
                    there.unlink()

    def build(self, tests):
        targets = {target(test)[0] for test in tests}
        build = ["cargo", "test", "--all-features", "--no-run", "--message-format=json-render-diagnostics"]
        build += [word for target in sorted(targets) for word in target]
        built = subprocess.run(build, cwd=self.at, stdout=subprocess.PIPE, text=True)
        if built.returncode:
            sys.exit("the copy does not build")
        for message in map(json.loads, built.stdout.splitlines()):
            if message.get("executable") and message.get("profile", {}).get("test"):
                its = message["target"]
                self.programs[("--lib",) if "lib" in its["kind"] else ("--test", its["name"])] = message["executable"]

    def scripts(self, bug):
        """Returns the directory in which the scripts are, with this bug."""
        if not bug or not bug.file.endswith(".lua"):
            return self.at
        at = self.at / "target/scripts" / str(bug.number)
        shutil.rmtree(at, ignore_errors=True)
        shutil.copytree(self.at / "src", at / "src", ignore=lambda folder, names: [
            name for name in names if "." in name and not name.endswith(".lua")])
        (at / bug.file).write_text((at / bug.file).read_text().replace(bug.old, bug.new))
        return at

    def run(self, test, scripts, bug=None):
        """Returns the tests that failed: none, some, or `None` if they cannot be told."""
        of, names = target(test)
        environment = os.environ | {"CARGO_MANIFEST_DIR": str(scripts), "BUG": str(bug.number if bug else 0)}
        environment.setdefault("RUST_TEST_THREADS", "8")
        # In its own session, so the servers that the tests start can be killed with it.
        running = subprocess.Popen(
            [self.programs[of], *names], cwd=self.at, env=environment, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True,
        )
        try:
            output, _ = running.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()
            return None
        if "running 0 tests" in output:
            sys.exit(f"`{test}` names no test")
        if running.returncode == 0:
            return []
        failed = re.findall(r"^    (\S+)$", output.rpartition("\nfailures:\n")[2], re.MULTILINE)
        return failed or None

    def killed(self, bug, bad):
        """Returns the test that finds the bug, and ends what it leaves: stopped processes in sessions of their own."""
        try:
            return self.killer(bug, bad)
        finally:
            for process in pathlib.Path("/proc").glob("[0-9]*"):
                try:
                    if f"BUG={bug.number}".encode() in (process / "environ").read_bytes().split(b"\0"):
                        os.kill(int(process.name), signal.SIGKILL)
                except OSError:
                    pass

    def killer(self, bug, bad):
        """Returns the test that finds the bug, twice. `bad`: the tests that do not pass without it."""
        scripts = self.scripts(bug)
        for test in bug.tests:
            if test in bad:
                continue
            failed = self.run(test, scripts, bug)
            if failed is None:
                return f"{test}: no end"
            for name in failed[:3]:
                alone = " ".join([*target(test)[0], "--exact", name, *(["--ignored"] if "--ignored" in test else [])])
                if self.run(alone, scripts, bug) != []:
                    return " ".join([*target(test)[0], name])
        return None


def target(test):
    words = [word for word in test.split() if word != "--"]
    named = 1 if words[0] == "--lib" else 2
    return tuple(words[:named]), words[named:]


def main():
    options = argparse.ArgumentParser()
    options.add_argument("--copy", type=pathlib.Path, default=PROJECT / "target/mutants")
    options.add_argument("--only", default="")
    options.add_argument("--jobs", type=int, default=2)
    options.add_argument("--check", action="store_true")
    options = options.parse_args()
    listed = bugs()
    reasons = list(cannot_be_put_in(listed))
    if options.check or reasons:
        sys.exit("\n".join(reasons) if reasons else 0)
    began, copy = time.monotonic(), Copy(options.copy.resolve(), listed)
    copy.build({test for bug in listed for test in bug.tests})
    print(f"built in {time.monotonic() - began:.0f} s", flush=True)
    wanted = [bug for bug in listed if any(options.only in word for word in (bug.list, bug.file, bug.name))]
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as jobs:
        tests = sorted({test for bug in wanted for test in bug.tests})
        passes = lambda test: any(copy.run(test, copy.at) == [] for _ in range(3))
        bad = [test for test, passed in zip(tests, jobs.map(passes, tests)) if not passed]
        print(f"ran without a bug for {time.monotonic() - began:.0f} s; did not pass: {bad or 'none'}", flush=True)
        survivors = []
        for bug, killer in zip(wanted, jobs.map(lambda bug: copy.killed(bug, bad), wanted)):
            print(f"{bug.number:3} {'killed' if killer else 'SURVIVED'}  {bug.name}  [{killer}]", flush=True)
            survivors += [] if killer else [bug.name]
    print(f"{len(wanted) - len(survivors)} of {len(wanted)} killed in {time.monotonic() - began:.0f} s", flush=True)
    if survivors:
        print("not killed: " + "; ".join(survivors))
    sys.exit(1 if survivors or bad else 0)


if __name__ == "__main__":
    main()
