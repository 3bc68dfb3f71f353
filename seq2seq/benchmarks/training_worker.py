"""Our training and decoding at a benchmark's requests: the trainer's own step, batches and evaluation, and the translator.

python -m seq2seq.benchmarks.training_worker      (requests on standard input, see training_protocol)
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from statistics import fmean
from typing import Any

import jax
import numpy as np
from flax import nnx

from seq2seq.batches import Batch
from seq2seq.benchmarks.record import environment
from seq2seq.benchmarks.training_protocol import peak_bytes, serve
from seq2seq.checkpoints import Run, new_model
from seq2seq.config import load_config
from seq2seq.process import keep_freed_memory
from seq2seq.tokenizer import PAD
from seq2seq.train_step import place_batch
from seq2seq.training import Trainer
from seq2seq.translation.translator import Translator

COMPILED = "/jax/core/compile/backend_compile_duration"
PREPARED = ("/jax/core/compile/jaxpr_trace_duration", "/jax/core/compile/jaxpr_to_mlir_module_duration")


class Compilations:
    """Programs compiled in this process, by name, and the seconds of tracing, lowering and compiling them."""

    def __init__(self):
        self._counts: Counter[str] = Counter()
        self._seconds: Counter[str] = Counter()
        jax.monitoring.register_event_duration_secs_listener(self._hear)

    def _hear(self, event: str, seconds: float, **details: Any) -> None:
        name = str(details.get("fun_name", "")).removeprefix("jit(").removesuffix(")")
        if event == COMPILED:
            self._counts[name] += 1
        if event in (COMPILED, *PREPARED):
            self._seconds[name] += seconds

    def take(self, of: str = "") -> tuple[int, float]:
        """Number and seconds since the last call, of programs with `of` in their name."""
        # A function traced within another is in the seconds of that one already, and is no program.
        programs = [name for name in self._counts if of in name]
        taken = sum(self._counts[name] for name in programs), sum(self._seconds[name] for name in programs)
        self._counts.clear()
        self._seconds.clear()
        return taken


class OurWorker:
    """One training, a block of steps at a time."""

    def prepare(self, run_dir: str, sentences: list[str]) -> dict[str, Any]:
        """Build the trainer of the config and the tokenizers that lie in `run_dir`."""
        self.config, self.run_dir, self.sentences = load_config(Path(run_dir) / "config.toml"), Path(run_dir), sentences
        self.compilations = Compilations()
        self.trainer = Trainer(self.config, self.run_dir)
        self.batches, self.accumulate = iter(self.trainer.batches), self.config.training.accumulate
        count = sum(leaf.size for leaf in jax.tree.leaves(self.trainer.state.params))
        return {"parameters": count, "environment": environment([])}

    def warm_up(self) -> dict[str, Any]:
        """Compile the steps of training and evaluation for every shape that can occur, and count the programs."""
        trainer, validation = self.trainer, self.trainer.validation
        self.compilations.take()
        for shape in sorted(trainer.batches.shapes):
            # A batch of nothing but padding has no gradient, and teaches the model nothing before the first block.
            nothing = Batch(*(np.full(shape, PAD, np.int32) for _ in Batch._fields))
            trainer.state, _ = trainer.train_step(trainer.state, [place_batch(nothing, trainer.mesh)] * self.accumulate)
        jax.block_until_ready(trainer.state)
        trained, seconds = self.compilations.take()
        for batch in validation.batches:
            jax.block_until_ready(validation.eval_step(trainer.state.params, place_batch(batch, trainer.mesh)))
        evaluated, _ = self.compilations.take()
        shapes = {"train": len(trainer.batches.shapes), "eval": len({batch.source.shape for batch in validation.batches})}
        compilations = {"train": trained, "eval": evaluated}
        return {"compile_seconds": seconds, "compilations": compilations, "shapes": shapes}

    def train(self, steps: int) -> dict[str, Any]:
        """A block of steps, from the next batch to parameters that are there."""
        trainer, tokens, started = self.trainer, 0, time.perf_counter()
        for _ in range(steps):
            given = [next(self.batches) for _ in range(self.accumulate)]
            trainer.state, report = trainer.train_step(trainer.state, [place_batch(b, trainer.mesh) for b in given])
            tokens += sum(int(np.count_nonzero(batch.target_out != PAD)) for batch in given)
        jax.block_until_ready(trainer.state)
        seconds = time.perf_counter() - started
        if not np.isfinite(float(report.sums.loss)):
            raise FloatingPointError(f"expected a finite training loss, got {float(report.sums.loss)}")
        return {"seconds": seconds, "target_tokens": tokens, "compilations": self.compilations.take()[0]}

    def warm_up_decoding(self, beam_size: int) -> dict[str, Any]:
        """Translate all sentences once, so that all shapes are compiled."""
        model = new_model(self.config, self.trainer.tokenizers)
        nnx.update(model, self.trainer.state.evaluated)
        run = Run(self.config, model, self.trainer.tokenizers, int(self.trainer.state.step), self.run_dir, "latest")
        self.translator = Translator(run)
        self.compilations.take()
        self.decode(beam_size)
        count, seconds = self.compilations.take("search")
        return {"compilations": count, "compile_seconds": seconds}

    def decode(self, beam_size: int) -> dict[str, Any]:
        """Translate all sentences, from text to text."""
        started = time.perf_counter()
        best = [hypotheses[0] for hypotheses in self.translator.translate(self.sentences, beam_size=beam_size, n_best=1)]
        seconds = time.perf_counter() - started
        unfinished = fmean(not hypothesis.finished for hypothesis in best)
        lengths = fmean(len(hypothesis.pieces) for hypothesis in best)
        return {"seconds": seconds, "mean_length": lengths, "unfinished": unfinished, "texts": [h.text for h in best]}


def main() -> None:
    keep_freed_memory()  # as the scripts do
    worker = OurWorker()
    requests = (worker.prepare, worker.warm_up, worker.train, worker.warm_up_decoding, worker.decode)
    serve({"peak_bytes": peak_bytes} | {request.__name__: request for request in requests})


if __name__ == "__main__":
    main()
