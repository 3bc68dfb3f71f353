"""The training loop: corpus -> tokenizer -> buckets -> steps, with evaluations, checkpoints and an exact resume.

    runs/<name>/config.toml, tokenizer.model, metrics.jsonl, checkpoints/{latest,best}/

Ctrl-C and SIGTERM let the running step end, save, and say how to go on.  A resumed run is the uninterrupted one bit for
bit (on a CPU): parameters, optimizer, dropout, order of the data and stopper all come from the checkpoint.
"""

from __future__ import annotations

import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx
from jaxtyping import PyTree

from seq2seq.batches import TrainBatches, encode_pairs
from seq2seq.checkpoints import CheckpointStore, new_model
from seq2seq.config import Config, ConfigError, load_config, save_config, to_dict
from seq2seq.corpora import ParallelCorpus, load_corpus
from seq2seq.early_stopping import EarlyStopping
from seq2seq.optimizer import build_optimizer, learning_rate_schedule
from seq2seq.profiling import Profiler
from seq2seq.progress import Meter, MetricsLog, TrainingProgress
from seq2seq.tensorboard import open_tensorboard
from seq2seq.tokenizer import PAD, UNK, Tokenizers, load_tokenizers, train_tokenizers
from seq2seq.train_step import TrainState, data_mesh, init_state, make_train_step, place_batch
from seq2seq.validation import Validation


@dataclass(frozen=True)
class Outcome:
    """How a training ended."""

    reason: str
    step: int
    minutes: float
    signal: int = 0
    """The signal that ended it, or 0."""


@dataclass
class Position:
    """Where a training stands, beside its TrainState."""

    stopper: EarlyStopping
    step: int = 0
    minutes: float = 0.0
    data: dict[str, Any] | None = field(default=None)
    learning_rate_scale: float = 1.0


def train(config: Config, run_dir: str | Path, *, resume: bool = False, profile: bool = False) -> Outcome:
    """Train `config` in `run_dir`; with `resume`, go on from its latest checkpoint (or begin, where there is none).

    With `profile`, a trace of ten steps is written to `<run_dir>/profile`, for TensorBoard or Perfetto.

    Raises:
        ConfigError: the run exists and `resume` is false, or the config differs from the run's in more than its length.
    """
    run_dir = Path(run_dir)
    _check_run_dir(config, run_dir, resume)
    trainer = Trainer(config, run_dir, profile=profile)
    if resume:
        trainer.restore()
    return trainer.run()


class Trainer:
    """What one training is made of (`__init__`) and the loop over it (`run`)."""

    def __init__(self, config: Config, run_dir: Path, *, profile: bool = False):
        self.config, self.run_dir = config, run_dir
        self.boards = open_tensorboard(run_dir) if config.training.tensorboard else None
        self.profiler = Profiler(run_dir / "profile") if profile else None
        self.progress = TrainingProgress(config.training.max_steps, config.training.max_minutes)
        corpus = load_corpus(config.corpus, log=self.progress.say)
        run_dir.mkdir(parents=True, exist_ok=True)
        self.tokenizers = _tokenizers(corpus, config, run_dir)
        save_config(config, run_dir / "config.toml")
        encoded = encode_pairs(corpus.train, self.tokenizers)
        self.batches = TrainBatches(encoded, config.batches, config.seed)
        self.mesh = data_mesh()
        graphdef, params = nnx.split(new_model(config, self.tokenizers), nnx.Param)
        optimizer = build_optimizer(config.optimizer, config.training.max_steps)
        self.state = init_state(params, optimizer, self.mesh, averaged=config.training.ema_decay > 0)
        self.train_step = make_train_step(graphdef, optimizer, config.training, config.seed)
        self.validation = Validation(corpus.dev, self.tokenizers, config, graphdef, self.mesh)
        self.learning_rate = learning_rate_schedule(config.optimizer, config.training.max_steps)
        self.latest = CheckpointStore(run_dir, "latest", keep=config.training.keep_checkpoints)
        self.best = CheckpointStore(run_dir, "best", keep=1)
        self.position = Position(EarlyStopping(config.training.metric, config.training.patience))
        self._describe(encoded, params)

    def restore(self) -> None:
        """Go on from the latest checkpoint, if there is one."""
        if not self.latest.steps:
            self.progress.say(f"no checkpoint in {self.latest.folder}: beginning at step 0")
            return
        meta, trees = self.latest.restore(**self._trees())
        if meta["tokenizers"] != self.tokenizers.sha256:
            raise ConfigError("tokenizer", f"sha256 {meta['tokenizers']}", self.tokenizers.sha256, self.run_dir)
        scale = meta.get("learning_rate_scale", 1.0)
        placed = [jax.device_put(value, self.state.step.sharding) for value in (np.int32(meta["step"]), np.float32(scale))]
        self.state = TrainState(trees["model"], trees["optimizer"], placed[0], trees.get("average"), placed[1])
        stopper = EarlyStopping(self.config.training.metric, self.config.training.patience, **meta["stopper"])
        self.position = Position(stopper, meta["step"], meta["minutes"], meta["data"], scale)
        self.latest.discard_after(self.position.step)
        if stopper.best_step == self.position.step:  # killed between the two writes of an evaluation
            self.best.save(self.position.step, meta, model=self.state.evaluated)
        self.progress.say(f"resumed at step {self.position.step}, minute {self.position.minutes:.1f}")

    def run(self) -> Outcome:
        """Train until the steps, the minutes or the patience are used up, or a signal comes."""
        if reason := self._end_reason():
            self.progress.say(f"already at {reason}: nothing left to train")
            return Outcome(reason, self.position.step, self.position.minutes)
        metrics = MetricsLog(self.run_dir / "metrics.jsonl", self.position.step, self.boards)
        with self.progress, SignalCatcher(self.progress) as caught:
            self._loop(metrics, caught)
        if self.boards is not None:
            self.boards.close()
        reason = self._end_reason() or f"signal {caught.signal}"
        self.progress.say(f"stopped at {reason} after {self.position.minutes:.1f} minutes; run folder {self.run_dir}")
        if caught.signal:
            self.progress.say(f"saved step {self.position.step}; go on with: {self._resume_command()}")
        return Outcome(reason, self.position.step, self.position.minutes, caught.signal)

    def _loop(self, metrics: MetricsLog, caught: SignalCatcher) -> None:
        options, position = self.config.training, self.position
        self.started = time.monotonic() - 60 * position.minutes
        batches = iter(self.batches)
        if position.data is not None:
            batches.set_state(position.data)
        meter, compiled = Meter(), set()
        while not (ended := bool(self._end_reason())) and not caught.signal:
            given = [next(batches) for _ in range(options.accumulate)]
            for batch in given:
                self._announce_shape(batch.source.shape, compiled)
            if self.profiler:
                self.profiler.before_step()
            self.state, report = self.train_step(self.state, [place_batch(batch, self.mesh) for batch in given])
            if self.profiler and self.profiler.after_step(report):
                self.progress.say(f"wrote a trace of {Profiler.STEPS} steps to {self.profiler.folder}")
            meter.add(report, sum(int(np.count_nonzero(batch.target_out != PAD)) for batch in given))
            position.step, position.data, position.minutes = position.step + 1, batches.get_state(), self._minutes()
            if position.step % options.log_every == 0:
                self._log(meter.read(), metrics)
            ended = bool(self._end_reason())
            if position.step % options.eval_every == 0 or ended:
                self._evaluate(metrics)
                meter.reset()
            elif position.step % options.checkpoint_every == 0 or caught.signal:
                self._save_latest()
        if caught.signal:
            self._save_latest()

    def _log(self, figures: dict[str, float], metrics: MetricsLog) -> None:
        step, seconds_per_step = self.position.step, figures.pop("seconds_per_step")
        if not np.isfinite(figures["loss"]):
            self.progress.say(f"warning: the training loss at step {step} is {figures['loss']}")
        rate = float(self.learning_rate(step - 1)) * self.position.learning_rate_scale
        minutes = round(self._minutes(), 4)
        metrics.write(step=step, kind="train", learning_rate=rate, minutes=minutes, **figures)
        self.progress.step(step, figures["loss"], figures["tokens_per_second"], minutes, seconds_per_step)

    def _evaluate(self, metrics: MetricsLog) -> None:
        """Measure on the dev text; write the latest checkpoint, then the best if this is it."""
        step, metric = self.position.step, self.config.training.metric
        figures, samples = self.validation.measure(self.state.evaluated)
        stopper = self.position.stopper = self.position.stopper.update(step, figures[metric])
        self._lower_learning_rate(stopper)
        self.position.minutes = self._minutes()
        metrics.write(step=step, kind="dev", minutes=round(self.position.minutes, 4), **figures)
        self._save_latest()
        if stopper.improved:
            self.best.save(step, self._meta(), model=self.state.evaluated)
        shown = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
        note = f"best {metric} so far" if stopper.improved else f"{metric} no better for {stopper.waited} evaluation(s)"
        self.progress.say(f"step {step}  {shown}  ({note}; minute {self.position.minutes:.1f})")
        for sample in samples:
            self.progress.say(f"  source     {sample.source}\n  reference  {sample.reference}\n  produced   {sample.produced}")

    def _lower_learning_rate(self, stopper: EarlyStopping) -> None:
        """The schedule "plateau": so many evaluations without a better metric lower the learning rate for good."""
        options = self.config.optimizer
        if options.schedule == "plateau" and stopper.waited and stopper.waited % options.plateau_patience == 0:
            self.position.learning_rate_scale *= options.plateau_factor
            scale = jax.device_put(np.float32(self.position.learning_rate_scale), self.state.step.sharding)
            self.state = self.state._replace(learning_rate_scale=scale)
            self.progress.say(f"learning rate times {self.position.learning_rate_scale:g} from here on")

    def _save_latest(self) -> None:
        self.latest.save(self.position.step, self._meta(), **self._trees())

    def _trees(self) -> dict[str, Any]:
        trees = {"model": self.state.params, "optimizer": self.state.optimizer_state}
        return trees if self.state.average is None else trees | {"average": self.state.average}

    def _meta(self) -> dict[str, Any]:
        position = self.position
        where = {"step": position.step, "minutes": position.minutes, "data": position.data}
        where["learning_rate_scale"] = position.learning_rate_scale
        return where | {"stopper": position.stopper.to_dict(), "tokenizers": self.tokenizers.sha256}

    def _minutes(self) -> float:
        return (time.monotonic() - self.started) / 60

    def _end_reason(self) -> str:
        """Why training is over, or ""."""
        options, position = self.config.training, self.position
        if position.step >= options.max_steps:
            return f"step {position.step} of {options.max_steps}"
        if 0 < options.max_minutes <= position.minutes:
            return f"minute {position.minutes:.1f} of {options.max_minutes:g}"
        if position.stopper.exhausted:
            return f"the end of patience ({options.metric} no better for {position.stopper.waited} evaluations)"
        return ""

    def _announce_shape(self, shape: tuple[int, ...], compiled: set[tuple[int, ...]]) -> None:
        if shape not in compiled:
            compiled.add(shape)
            self.progress.say(f"compiling batch shape {shape[0]} x {shape[1]} ({len(compiled)} of {len(self.batches.shapes)})")

    def _describe(self, encoded: list[Any], params: PyTree) -> None:
        """What is about to be trained, on what, for how long."""
        config, batches = self.config, self.batches
        tokens = sum(len(pair.target) for pair in encoded)
        unknown = sum(int(np.count_nonzero(np.asarray(side) == UNK)) for pair in encoded for side in (pair.source, pair.target))
        pieces = sum(len(pair.source) + len(pair.target) for pair in encoded)
        part = "attention" if config.model.kind == "rnn" else "positions"
        name = f"{config.model.kind}, {part} {getattr(config.model, part)}"
        count = sum(leaf.size for leaf in jax.tree.leaves(params))
        budget = f"{config.training.max_steps} steps"
        if config.training.max_minutes > 0:
            budget += f" or {config.training.max_minutes:g} minutes"
        left_out = ", ".join(f"{n} {reason}" for reason, n in batches.left_out.items() if n) or "none"
        say = self.progress.say
        say(f"model: {name}, {count:,} parameters, {config.training.compute_dtype}, {self.mesh.size} device(s)")
        say(f"text: {len(encoded):,} training pairs, {tokens:,} target tokens; left out of training: {left_out}")
        say(f"unknown pieces: {unknown} of {pieces:,} ({unknown / max(pieces, 1):.3%})")
        say(f"batches: {batches.batches_per_epoch} an epoch, {len(batches.shapes)} shapes; training for {budget}")

    def _resume_command(self) -> str:
        return f"python scripts/train.py {self.run_dir / 'config.toml'} --run-dir {self.run_dir} --resume"


class SignalCatcher:
    """Turns the first Ctrl-C or SIGTERM into a wish to stop after the running step; a second one ends at once."""

    def __init__(self, progress: TrainingProgress):
        self.progress, self.signal = progress, 0

    def __enter__(self) -> SignalCatcher:
        self.previous = {number: signal.signal(number, self._caught) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self.previous.items():
            signal.signal(number, handler)

    def _caught(self, number: int, _: object) -> None:
        if self.signal:
            sys.exit(128 + number)
        self.signal = number
        self.progress.say(f"{signal.Signals(number).name}: saving after this step (once more to stop at once)")


def _tokenizers(corpus: ParallelCorpus, config: Config, run_dir: Path) -> Tokenizers:
    """The run's tokenizers, trained on the training text the first time."""
    if (run_dir / "config.toml").exists():
        return load_tokenizers(run_dir)
    return train_tokenizers(corpus.train, config.tokenizer, run_dir)


def _check_run_dir(config: Config, run_dir: Path, resume: bool) -> None:
    """A new run needs a folder without a run; a resumed one the same config, save for how long and how it is watched."""
    path = run_dir / "config.toml"
    if not path.exists():
        return
    if not resume:
        raise ConfigError("run_dir", "a folder without a run, or --resume to go on with it", f"a run at {run_dir}")
    before, now = _flat(to_dict(load_config(path))), _flat(to_dict(config))
    free = ("training.", "decoding.", "evaluation.")
    fixed = ("training.label_smoothing", "training.compute_dtype", "training.metric", "training.accumulate", "training.ema_decay")
    for key in sorted(before | now):
        if before.get(key) != now.get(key) and (not key.startswith(free) or key in fixed):
            raise ConfigError(key, f"{before.get(key)!r}, as the run to resume has it", repr(now.get(key)), path)


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat
