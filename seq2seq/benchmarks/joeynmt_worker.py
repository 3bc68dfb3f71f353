"""JoeyNMT at a benchmark's requests, in an interpreter of its own that need not know ours.

    PYTHON seq2seq/benchmarks/joeynmt_worker.py       (requests on standard input, see training_protocol)

Everything is JoeyNMT's own: data set and token batches (or, on request, our batches), `TrainManager._train_step`, clipping,
optimizer and schedule as its training loop calls them, and `predict`.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from statistics import fmean
from typing import Any


class JoeyNMTWorker:
    """One training, a block of steps at a time."""

    def prepare(
        self, config: dict[str, Any], threads: int, batches: str | None = None, dropout: dict[str, float] | None = None
    ) -> dict[str, Any]:
        """Build model, data and trainer; with `batches` it trains on those, and its dropout modules take our rates."""
        import torch
        from joeynmt.config import parse_global_args, set_validation_args
        from joeynmt.prediction import prepare
        from joeynmt.training import TrainManager

        torch.set_num_threads(threads)
        self.testing, self.args = config["testing"], parse_global_args(config, mode="train")
        args = self.args
        args.model_dir.mkdir(parents=True, exist_ok=True)
        self.model, self.train_data, _, self.test_data = prepare(args, rank=0, mode="train")
        _set_dropout(self.model, dropout or {})
        shared = {name: getattr(args, name) for name in ("model_dir", "device", "n_gpu", "num_workers", "autocast", "seed")}
        dev_args = set_validation_args(args.test)
        self.manager = TrainManager(rank=0, model=self.model, train_args=args.train, dev_args=dev_args, **shared)
        self.model.zero_grad()
        self.given_path, self.given = batches, _given_batches(batches) if batches else None
        self.own = self._own_batches()
        count = sum(parameter.numel() for parameter in self.model.parameters())
        versions = {name: metadata.version(name) for name in ("joeynmt", "torch")}
        return {"parameters": count, "environment": versions | {"threads": torch.get_num_threads()}}

    def warm_up(self) -> dict[str, Any]:
        """Two steps; nothing is compiled."""
        batches = _given_batches(self.given_path) if self.given_path else self.own
        for _ in range(2):
            self._step(next(batches))
        return {}

    def train(self, steps: int) -> dict[str, Any]:
        """A block of steps; making the batches counts where they are JoeyNMT's own."""
        ready = [next(self.given) for _ in range(steps)] if self.given else None
        tokens, started = 0, time.perf_counter()
        for i in range(steps):
            batch = ready[i] if ready else next(self.own)
            tokens += int(batch.ntokens)
            self._step(batch)
        return {"seconds": time.perf_counter() - started, "target_tokens": tokens}

    def warm_up_decoding(self, beam_size: int) -> dict[str, Any]:
        """Translate a few sentences."""
        few = copy.copy(self.test_data)
        few.data = {side: lines[:10] for side, lines in few.data.items()}
        few.reset_indices()
        self._predict(few, beam_size)
        return {}

    def decode(self, beam_size: int) -> dict[str, Any]:
        """Translate all sentences, from text to text."""
        started = time.perf_counter()
        texts, tokens = self._predict(self.test_data, beam_size)
        seconds = time.perf_counter() - started
        end = self.model.trg_vocab.specials[self.model.eos_index]
        unfinished = fmean(not sentence or sentence[-1] != end for sentence in tokens)
        return {"seconds": seconds, "mean_length": fmean(map(len, tokens)), "unfinished": unfinished, "texts": texts}

    def _step(self, batch: Any) -> None:
        """What the loop of `TrainManager.train_and_validate` does with a batch."""
        manager = self.manager
        manager._train_step(batch)
        if manager.clip_grad_fun is not None:
            manager.clip_grad_fun(parameters=self.model.parameters())
        manager.optimizer.step()
        if manager.scheduler_step_at == "step":
            manager.scheduler.step(manager.stats.steps)
        self.model.zero_grad()
        manager.stats.steps += 1

    def _own_batches(self) -> Iterator[Any]:
        """Token batches of shuffled pairs, epoch after epoch."""
        train, model, seed = self.args.train, self.model, self.args.seed
        batches = self.train_data.make_iter(
            batch_size=train.batch_size,
            batch_type=train.batch_type,
            seed=seed,
            shuffle=train.shuffle,
            num_workers=self.args.num_workers,
            device=self.args.device,
            eos_index=model.eos_index,
            pad_index=model.pad_index,
        )
        for epoch in range(sys.maxsize):
            self.train_data.seed = seed + epoch
            batches.batch_sampler.set_seed(seed + epoch)
            yield from batches

    def _predict(self, data: Any, beam_size: int) -> tuple[list[str], list[list[str]]]:
        from joeynmt.config import parse_test_args
        from joeynmt.prediction import predict

        args = self.args
        result = predict(
            model=self.model,
            data=data,
            device=args.device,
            n_gpu=args.n_gpu,
            normalization=args.train.normalization,
            num_workers=args.num_workers,
            args=parse_test_args(self.testing | {"beam_size": beam_size}),
            autocast=args.autocast,
        )
        return result[2], result[3]


def _set_dropout(model: Any, rates: dict[str, float]) -> None:
    """Rates of the dropout modules on attention weights and inside the feed-forward layers, where they are given."""
    for module in model.modules():
        kind = type(module).__name__
        if kind == "MultiHeadedAttention" and "attention" in rates:
            module.dropout.p = rates["attention"]
        if kind == "PositionwiseFeedForward" and "feed_forward" in rates:
            module.pwff_layer[2].p = rates["feed_forward"]


def _given_batches(path: str) -> Iterator[Any]:
    """The batches of a file that `training_data.write_batches` made, as JoeyNMT's."""
    import numpy as np
    import torch
    from joeynmt.batch import Batch

    with np.load(path) as arrays:
        for i in range(len(arrays.files) // 2):
            source, target = (torch.from_numpy(arrays[f"{side}.{i}"]).long() for side in ("source", "target"))
            yield Batch(
                src=source,
                src_length=(source != 1).sum(dim=1),
                src_prompt_mask=None,
                trg=target,
                trg_prompt_mask=None,
                indices=torch.arange(len(source)),
                device=torch.device("cpu"),
                pad_index=1,
                eos_index=3,
            )


def main() -> None:
    from training_protocol import peak_bytes, serve

    sys.path.pop(0)  # the files beside this one are no modules of JoeyNMT's
    worker = JoeyNMTWorker()
    requests = (worker.prepare, worker.warm_up, worker.train, worker.warm_up_decoding, worker.decode)
    serve({"peak_bytes": peak_bytes} | {request.__name__: request for request in requests})


if __name__ == "__main__":
    main()
