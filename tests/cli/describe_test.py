"""Completion and the manual page say what --help says."""

import os
import pty
import re
import select
import shutil
import subprocess
import unittest

from tool import ToolTest


class Texts(ToolTest):
    def text(self, *arguments):
        done = self.run_tool(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.decode()

    def commands(self):
        listed = self.text("--help").split("Subcommands:")[1].split("Examples:")[0]
        return re.findall(r"^  (\w+)", listed, re.MULTILINE)

    def options(self, command):
        return set(re.findall(r"^  (?:-h,)?(--[a-z-]+)", self.text(command, "--help"), re.MULTILINE))


class Bash(Texts):
    def setUp(self):
        super().setUp()
        if not shutil.which("bash"):
            self.skipTest("there is no bash")
        self.script = self.file("completion.bash", self.text("completion", "bash").encode())

    def complete(self, *words):
        """What bash offers after these words, the last of which is unfinished."""
        code = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _penstock; printf "%s\\n" "${COMPREPLY[@]}"'
        done = subprocess.run(["bash", "-u", "-c", code, "bash", self.script, *words], capture_output=True, text=True,
                              cwd=self.folder)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return set(done.stdout.split())

    def test_completes_commands(self):
        self.assertEqual(self.complete("penstock", ""), {*self.commands(), "--help", "--version"})
        self.assertEqual(self.complete("penstock", "do"), {"doctor"})

    def test_help_of_a_command_that_is_not_there_is_refused(self):
        error = self.fails("invalid_argument", 2, "explain", "--help")
        self.assertEqual(error["message"], 'unknown command "explain"')

    def test_help_tells_an_option_without_notes_of_the_parser(self):
        for command in self.commands():
            self.assertNotRegex(self.text(command, "--help"), r"Excludes:|Needs:|{false}")

    def test_completes_every_option_that_help_names(self):
        for command in self.commands():
            self.assertEqual(self.complete("penstock", command, "--"), self.options(command), command)

    def test_completes_values_and_files(self):
        self.assertEqual(self.complete("penstock", "load", "x", "--to", ""), {"host", "pinned", "cuda:0"})
        self.assertEqual(self.complete("penstock", "load", "x", "--cache", "b"), {"bypass"})
        self.assertEqual(self.complete("penstock", "load", "x", "--lanes", ""), set())
        self.file("weights.bin")
        self.assertEqual(self.complete("penstock", "load", "we"), {"weights.bin"})
        self.assertEqual(self.complete("penstock", "doctor", "--bundle", "we"), {"weights.bin"})


class Zsh(Texts):
    def test_names_every_option(self):
        script = self.text("completion", "zsh")
        self.assertTrue(script.startswith("#compdef penstock\n"))
        for command in self.commands():
            part = script.split(f"\n    {command})\n")[1].split(";;")[0]
            self.assertEqual(set(re.findall(r"'(--[a-z-]+)\[", part)), self.options(command), command)

    def test_is_valid(self):
        if not shutil.which("zsh"):
            self.skipTest("there is no zsh")
        path = self.file("_penstock", self.text("completion", "zsh").encode())
        done = subprocess.run(["zsh", "-n", path], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def complete(self, *lines):
        """What each line becomes when its end is completed in a zsh on a terminal."""
        if not shutil.which("zsh"):
            self.skipTest("there is no zsh")
        self.file("_penstock", self.text("completion", "zsh").encode())
        self.file("set-up", b"fpath=($PWD $fpath); autoload -Uz compinit && compinit -u -D\n"
                            b'penstock() { print -r -- "<${(j: :)@}>" }; print ready\n')
        leader, follower = pty.openpty()
        shell = subprocess.Popen(["zsh", "-f", "-i"], stdin=follower, stdout=follower, stderr=follower, cwd=self.folder,
                                 env={**os.environ, "TERM": "dumb"}, start_new_session=True)
        os.close(follower)
        self.addCleanup(os.close, leader)
        self.addCleanup(shell.wait)
        self.addCleanup(shell.kill)

        def ask(line, answer):
            os.write(leader, line.encode())
            text = ""
            while not re.search(answer, text):
                self.assertTrue(select.select([leader], [], [], 20)[0], text)
                text += os.read(leader, 4096).decode()
            return re.search(answer, text)

        ask("source set-up\n", "ready")
        return [ask(line + "\t\n", "<(.*)>").group(1) for line in lines]

    def test_completes_commands_options_values_and_files(self):
        self.file("weights.bin")
        self.assertEqual(self.complete("penstock do", "penstock load --ca", "penstock load x --cache b",
                                       "penstock bench --ht", "penstock load we", "penstock doctor --bundle we"),
                         ["doctor", "load --cache", "load x --cache bypass", "bench --html", "load weights.bin",
                          "doctor --bundle weights.bin"])

    def test_other_shells_are_refused(self):
        self.fails("invalid_argument", 2, "completion", "csh")


class Fish(Texts):
    def test_names_every_option(self):
        script = self.text("completion", "fish")
        for command in self.commands():
            named = re.findall(rf"^complete -c penstock -n '__penstock_command {command}' -l ([a-z-]+)", script, re.MULTILINE)
            self.assertEqual({f"--{name}" for name in named}, self.options(command), command)

    def complete(self, line):
        """What fish offers at the end of this line."""
        if not shutil.which("fish"):
            self.skipTest("there is no fish")
        script = self.file("penstock.fish", self.text("completion", "fish").encode())
        done = subprocess.run(["fish", "--no-config", "-c", "source $argv[1]; complete -C $argv[2]", script, line],
                              capture_output=True, text=True, cwd=self.folder, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return {offer.split("\t")[0] for offer in done.stdout.splitlines()}

    def test_completes_commands_options_values_and_files(self):
        self.file("weights.bin")
        self.assertEqual(self.complete("penstock "), set(self.commands()))
        self.assertEqual(self.complete("penstock load --"), self.options("load"))
        self.assertEqual(self.complete("penstock load x --to "), {"host", "pinned", "cuda:0"})
        self.assertEqual(self.complete("penstock load x --cache b"), {"bypass"})
        self.assertEqual(self.complete("penstock load x --lanes "), set())
        self.assertEqual(self.complete("penstock load we"), {"weights.bin"})
        self.assertEqual(self.complete("penstock doctor --bundle we"), {"weights.bin"})


class Manual(Texts):
    def test_names_every_command_option_and_exit_code(self):
        page = self.text("manual").replace("\\-", "-")
        for command in self.commands():
            part = re.split(rf"^\.SS {command}\b", page, flags=re.MULTILINE)[1].split("\n.S")[0]
            self.assertEqual(set(re.findall(r"^\.B (--[a-z-]+)", part, re.MULTILINE)), self.options(command), command)
            self.assertIn(f"penstock {command}", part)
        status = page.split(".SH EXIT STATUS")[1].split(".SH")[0]
        self.assertEqual(re.findall(r"^\.B (\d+)", status, re.MULTILINE), ["0", "1", "2", "3", "4", "5", "124", "130"])

    def test_is_a_page_that_man_understands(self):
        if not shutil.which("groff"):
            self.skipTest("there is no groff")
        done = subprocess.run(["groff", "-man", "-Tascii", "-ww", "-z"], input=self.text("manual"), capture_output=True,
                              text=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main(verbosity=2)
