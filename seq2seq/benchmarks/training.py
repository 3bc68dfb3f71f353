"""How fast a config trains and translates, and beside it JoeyNMT with the equal config: in turns, each in a process of its own.

    ours           `training.Trainer`: its batches and its step
    joeynmt-step   JoeyNMT's training step on our very batches; its dropout only where ours has dropout
    joeynmt        JoeyNMT as it is installed: its data set, its token batches of the same number of tokens, its training step

What is equal and what cannot be is told in `joeynmt_config`; the number of parameters of each is in the table.
Before translation each is trained for the same number of steps, since what an untrained model says does not end.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import sacrebleu

from seq2seq.benchmarks.joeynmt_config import NoEqual, joeynmt_config, joeynmt_dropout
from seq2seq.benchmarks.timing import REST, paired_ratio
from seq2seq.benchmarks.training_data import Material, write_material
from seq2seq.benchmarks.training_protocol import Worker, WorkerError, cores
from seq2seq.benchmarks.training_record import INSTALLED, OURS, STEP, Decoding, Omission, Training, TrainingResults
from seq2seq.benchmarks.training_table import write_table
from seq2seq.config import Config, load_config

OUR_COMMAND = [sys.executable, "-m", "seq2seq.benchmarks.training_worker"]
JOEYNMT_WORKER = Path(__file__).with_name("joeynmt_worker.py")
Log = Callable[[str], None]


class NotHere(ValueError):
    """JoeyNMT cannot be imported; the message says by which interpreter and why."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long everything runs."""

    turns: int = 5
    steps: int = 10
    train_steps: int = 300
    decode_turns: int = 3
    beam: int = 5
    sentences: int = 0


def run_training_benchmark(
    out: str | Path,
    configs: Sequence[str | Path],
    *,
    plan: Plan = Plan(),
    joeynmt: str = "",
    data_dir: str | Path | None = None,
    log: Log = lambda line: None,
) -> TrainingResults:
    """Measure every config; results.json is written after each measurement and table.txt after each config.

    Args:
        out: folder that receives the files.
        configs: config files; their stems name the rows.
        plan: how long.
        joeynmt: a Python interpreter that can import joeynmt; the running one if empty.
        data_dir: takes the place of corpus.data_dir.
        log: receives lines of progress.

    Returns:
        What was measured; what was left out and why.

    Raises:
        ValueError: a plan of nothing, or two configs of one name; a config that cannot be loaded (ConfigError).
        WorkerError: our own process failed.
    """
    _check(plan, configs)
    loaded = {Path(path).stem: _load(path, data_dir) for path in configs}
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    results = TrainingResults({"load_average": _load_average(log)}, dataclasses.asdict(plan))
    command = _joeynmt_command(joeynmt, results, log)
    for name, config in loaded.items():
        with tempfile.TemporaryDirectory(prefix="benchmark_training") as folder, ExitStack() as stack:
            log(f"{name}: reading the corpus")
            material = write_material(config, Path(folder), max(2, plan.turns * plan.steps), plan.sentences, log)
            run = ConfigRun(name, config, plan, material, results, out, log)
            run.start(stack, command)
            run.train()
            run.decode()
        results.write(out / "results.json")
        write_table(out / "table.txt", results)
    return results


def joeynmt_command(python: str) -> list[str]:
    """The command of JoeyNMT's process.

    Raises:
        NotHere: `python` cannot import joeynmt.
    """
    python = python or sys.executable
    try:
        tried = subprocess.run([python, "-c", "import joeynmt.training"], capture_output=True, text=True)
    except OSError as error:
        raise NotHere(f"{python}: {error.strerror}") from None
    if tried.returncode:
        raise NotHere(f"{python}: {tried.stderr.strip().splitlines()[-1] if tried.stderr.strip() else 'failed'}")
    return [python, str(JOEYNMT_WORKER)]


class ConfigRun:
    """One config: the processes that work on it, and what they measured."""

    def __init__(self, name: str, config: Config, plan: Plan, material: Material, results: TrainingResults, out: Path, log: Log):
        self.name, self.config, self.plan, self.material = name, config, plan, material
        self.results, self.out = results, out
        self.log = lambda line: log(f"{name}: {line}")
        self.workers: dict[str, Worker] = {}
        self.facts: dict[str, dict[str, Any]] = {}

    def start(self, stack: ExitStack, joeynmt: list[str] | None) -> None:
        """Start the processes and warm them up; those of JoeyNMT that cannot be had are left out and told."""

        def enter(system: str, command: list[str], **arguments: Any) -> None:
            worker = stack.enter_context(Worker(command, self.out / f"{self.name}.{system}.log"))
            self.log(f"{system}: preparing")
            facts = worker.ask("prepare", **arguments)
            self.results.environment.update(facts.pop("environment") | {"command": " ".join(sys.argv)})
            self.facts[system] = facts | worker.ask("warm_up")
            self.workers[system] = worker

        enter(OURS, OUR_COMMAND, run_dir=str(self.material.run_dir), sentences=self.material.sentences)
        if joeynmt is None:
            return
        equal = {"batches": str(self.material.batches), "dropout": joeynmt_dropout(self.config)}
        for system, given in ((STEP, equal), (INSTALLED, {})):
            try:
                config = joeynmt_config(self.config, self.material.folder)
                enter(system, joeynmt, config=config, threads=cores(), **given)
            except (NoEqual, WorkerError) as error:
                self._leave_out(system, error)

    def train(self) -> None:
        """Blocks of steps, in turns."""
        blocks = self._turns("train", list(self.workers), self.plan.turns, steps=self.plan.steps)
        peaks = {system: self._ask(system, "peak_bytes") for system in blocks}
        rates = {system: [b["target_tokens"] / b["seconds"] for b in of_system] for system, of_system in blocks.items()}
        for system, of_system in blocks.items():
            for block in of_system if system == OURS else []:
                self.facts[system]["compilations"]["train"] += block["compilations"]
            row = Training(
                self.name,
                system,
                target_tokens=[block["target_tokens"] for block in of_system],
                seconds=[block["seconds"] for block in of_system],
                to_ours=paired_ratio(rates[OURS], rates[system]),
                peak_bytes=peaks[system],
                **self.facts[system],
            )
            self.results.training.append(row)
            self.log(f"{system}: {row.tokens_per_second:,.0f} target tokens/s, ours / it {row.to_ours:.2f}")
        self.results.write(self.out / "results.json")

    def decode(self) -> None:
        """Train on, then translate greedily and with a beam, in turns."""
        plan = self.plan
        if plan.decode_turns == 0:
            return
        more = plan.train_steps - plan.turns * plan.steps
        for system in self._translating():
            if more > 0:
                self.log(f"{system}: {more} more steps before it translates")
                self._ask(system, "train", steps=more)
        for beam_size in dict.fromkeys((1, plan.beam)):
            self._decode(beam_size)

    def _translating(self) -> list[str]:
        return [system for system in self.workers if system != STEP]

    def _decode(self, beam_size: int) -> None:
        self.log(f"translating {len(self.material.sentences):,} sentences, beam {beam_size}")
        warm = {system: self._ask(system, "warm_up_decoding", beam_size=beam_size) for system in self._translating()}
        replies = self._turns("decode", self._translating(), self.plan.decode_turns, beam_size=beam_size)
        seconds = {system: [reply["seconds"] for reply in of_system] for system, of_system in replies.items()}
        for system, of_system in replies.items():
            last = of_system[-1]
            row = Decoding(
                self.name,
                system,
                beam_size,
                sentences=len(self.material.sentences),
                seconds=seconds[system],
                to_ours=paired_ratio(seconds[system], seconds[OURS]),
                trained_steps=max(self.plan.train_steps, self.plan.turns * self.plan.steps),
                mean_length=last["mean_length"],
                unfinished=last["unfinished"],
                bleu=sacrebleu.corpus_bleu(last["texts"], [self.material.references]).score,
                peak_bytes=self._ask(system, "peak_bytes"),
                **warm[system],
            )
            self.results.decoding.append(row)
            rate = f"{row.sentences_per_second:.1f} sentences/s of {row.mean_length:.1f} pieces"
            self.log(f"{system}: {rate}, ours / it {row.to_ours:.2f}")
        self.results.write(self.out / "results.json")

    def _turns(self, do: str, systems: list[str], turns: int, **arguments: Any) -> dict[str, list[dict[str, Any]]]:
        """Replies of each system: one request to each, forwards and in the next turn backwards."""
        replies: dict[str, list[dict[str, Any]]] = {system: [] for system in systems}
        for turn in range(turns):
            self.log(f"{do}, turn {turn + 1} of {turns}")
            for system in list(replies)[:: -1 if turn % 2 else 1]:
                reply = self._ask(system, do, **arguments)
                if reply is None:
                    del replies[system]
                else:
                    replies[system].append(reply)
                    time.sleep(min(reply["seconds"], REST))
        return replies

    def _ask(self, system: str, do: str, **arguments: Any) -> Any:
        """The reply of a system; JoeyNMT is left out from where it fails on, and None returned."""
        try:
            return self.workers[system].ask(do, **arguments)
        except WorkerError as error:
            if system == OURS:
                raise
            self._leave_out(system, error)
            del self.workers[system]
            return None

    def _leave_out(self, system: str, reason: Exception) -> None:
        self.log(f"{system} is left out: {reason}")
        self.results.left_out.append(Omission(self.name, system, str(reason)))


def _joeynmt_command(python: str, results: TrainingResults, log: Log) -> list[str] | None:
    """The command of JoeyNMT's process, or None, told once."""
    try:
        return joeynmt_command(python)
    except NotHere as error:
        log(f"JoeyNMT is not here: {error}")
        results.left_out += [Omission("any", system, f"not here: {error}") for system in (STEP, INSTALLED)]
        return None


def _load_average(log: Log) -> float | None:
    """How many other processes are at work; they slow systems that share each small product among threads most of all."""
    load = round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
    if load is not None and load > 0.5:
        log(f"the load average is {load} before anything runs: ratios are of use only where nothing else runs")
    return load


def _check(plan: Plan, configs: Sequence[str | Path]) -> None:
    least = {"turns": 1, "steps": 1, "train_steps": 0, "decode_turns": 0, "beam": 1, "sentences": 0}
    for name, bound in least.items():
        if getattr(plan, name) < bound:
            raise ValueError(f"{name}: expected an integer >= {bound}, got {getattr(plan, name)}")
    names = [Path(path).stem for path in configs]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"configs: expected files of different names, got {', '.join(names) or 'none'}")


def _load(path: str | Path, data_dir: str | Path | None) -> Config:
    return load_config(path, {} if data_dir is None else {"corpus.data_dir": str(data_dir)})
