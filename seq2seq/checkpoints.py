"""Save and restore a run; load a trained run for translation.

    runs/<name>/checkpoints/latest/<step>/   the last states of training (training.keep_checkpoints of them)
    runs/<name>/checkpoints/best/<step>/     parameters of the best evaluation

A checkpoint holds `model` (parameters), for `latest` also `optimizer` and maybe `average`, and `meta`: step, position in the
data, stopper, minutes and the hashes of the tokenizers.  Orbax writes each under a temporary name and renames it when
complete, so a killed process leaves the checkpoint before it.  One that is damaged is passed over in favour of the one
before, and this is said.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp
from flax import nnx

from seq2seq.config import Config, ConfigError, load_config
from seq2seq.corpora import text_form
from seq2seq.model import EncoderDecoder, build_model
from seq2seq.tokenizer import Tokenizers, load_tokenizers

CHECKPOINTS = ("best", "latest", "average")
"""What a run can be loaded from."""


class CheckpointError(ValueError):
    """No usable checkpoint; the message says where and why."""


def warn(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr, flush=True)


class CheckpointStore:
    """The checkpoints of one kind ("latest" or "best") of a run."""

    def __init__(self, run_dir: str | Path, kind: str, *, keep: int):
        self.folder = Path(run_dir).resolve() / "checkpoints" / kind
        options = ocp.CheckpointManagerOptions(max_to_keep=keep, create=True, enable_async_checkpointing=False)
        self.manager = ocp.CheckpointManager(self.folder, options=options)

    @property
    def steps(self) -> list[int]:
        """Steps with a complete checkpoint, newest first."""
        return sorted(self.manager.all_steps(), reverse=True)

    def save(self, step: int, meta: dict[str, Any], **trees: Any) -> None:
        """Write the checkpoint of `step`; one already there is the same, since training is deterministic."""
        if step in self.manager.all_steps():
            return
        items = {name: ocp.args.StandardSave(tree) for name, tree in trees.items()}
        self.manager.save(step, args=ocp.args.Composite(meta=ocp.args.JsonSave(meta), **items))

    def restore(self, **templates: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """(meta, trees) of the newest checkpoint that can be read; templates give shapes, types and placement.

        Raises:
            CheckpointError: there is none.
        """
        if not self.steps:
            raise CheckpointError(f"{self.folder}: expected a checkpoint, found none")
        failures = []
        for step in self.steps:
            try:
                return self._restore_step(step, templates)
            except Exception as error:  # whatever a damaged file makes the readers raise
                failures.append(f"step {step}: {_first_line(error)}")
                warn(f"{self.folder / str(step)} cannot be read ({failures[-1]}); trying the one before")
        raise CheckpointError(f"{self.folder}: expected a readable checkpoint, but " + "; ".join(failures))

    def restore_mean(self, template: Any) -> tuple[dict[str, Any], Any]:
        """(meta of the newest, mean of the parameters) over all checkpoints (Vaswani et al. 2017, section 6.1).

        Raises:
            CheckpointError: there is none.
        """
        meta, trees = self.restore(model=template)
        models = [trees["model"]]
        for step in self.steps:
            if step < meta["step"]:
                try:
                    models.append(self._restore_step(step, {"model": template})[1]["model"])
                except Exception as error:
                    warn(f"{self.folder / str(step)} cannot be read ({_first_line(error)}); the average is without it")
        return meta, jax.tree.map(lambda *leaves: sum(leaves) / len(leaves), *models)

    def discard_after(self, step: int) -> None:
        """Remove checkpoints newer than `step`: damaged, or written after the state that training goes on from."""
        for later in self.steps:
            if later > step:
                self.manager.delete(later)

    def _restore_step(self, step: int, templates: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        for name, tree in templates.items():
            _expect_shapes(self.folder / str(step) / name, tree)
        items = {name: ocp.args.StandardRestore(jax.tree.map(abstract, tree)) for name, tree in templates.items()}
        restored = self.manager.restore(step, args=ocp.args.Composite(meta=ocp.args.JsonRestore(), **items))
        return restored.meta, {name: restored[name] for name in templates}


def _expect_shapes(item: Path, template: Any) -> None:
    """Raise CheckpointError with all arrays that only one of the two has, or that differ in shape."""
    saved, wanted = _shapes(ocp.PyTreeCheckpointHandler().metadata(item).tree), _shapes(template)
    lines = [
        f"{key} is {saved.get(key, 'not there')}, the model has {wanted.get(key, 'none')}"
        for key in sorted(saved.keys() | wanted.keys())
        if saved.get(key) != wanted.get(key)
    ]
    if lines:
        raise CheckpointError(f"not the {item.name} of this config: " + "; ".join(lines))


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of the arrays of a tree by their path."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): tuple(leaf.shape) for path, leaf in leaves}


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def abstract(leaf: jax.Array) -> jax.ShapeDtypeStruct:
    """Shape, type and placement of an array."""
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)


@dataclass(frozen=True)
class Run:
    """A trained run, ready to translate."""

    config: Config
    model: EncoderDecoder
    tokenizers: Tokenizers
    step: int
    run_dir: Path
    checkpoint: str


def load_run(run_dir: str | Path, checkpoint: str = "best") -> Run:
    """The model of a run at its "best" or "latest" checkpoint, or the "average" of its latest ones.

    Raises:
        ConfigError: the folder is no run, or its tokenizer is not the one the model was trained with.
        CheckpointError: it has no usable checkpoint.
    """
    run_dir = Path(run_dir)
    if checkpoint not in CHECKPOINTS:
        raise ConfigError("checkpoint", f"one of {', '.join(map(repr, CHECKPOINTS))}", repr(checkpoint))
    if not (run_dir / "config.toml").is_file():
        raise ConfigError("run", "a run folder with config.toml (made by scripts/train.py)", "none", run_dir)
    config = load_config(run_dir / "config.toml")
    tokenizers = load_tokenizers(run_dir, text_form(config.corpus))
    kind = "latest" if checkpoint == "average" else checkpoint
    if kind == "best" and not _has_checkpoint(run_dir, "best") and _has_checkpoint(run_dir, "latest"):
        warn(f"{run_dir} has no best checkpoint yet; using the latest")
        kind = "latest"
    if not _has_checkpoint(run_dir, kind):
        raise CheckpointError(f"{run_dir}: expected a {kind} checkpoint, found none (train first: scripts/train.py)")
    model = new_model(config, tokenizers)
    params = nnx.state(model, nnx.Param)
    store = CheckpointStore(run_dir, kind, keep=config.training.keep_checkpoints if kind == "latest" else 1)
    if checkpoint == "average":
        meta, mean = store.restore_mean(params)
    else:
        meta, trees = store.restore(model=params)
        mean = trees["model"]
    if meta["tokenizers"] != tokenizers.sha256:
        raise ConfigError("tokenizer", f"the model trained with, sha256 {meta['tokenizers']}", tokenizers.sha256, run_dir)
    nnx.update(model, mean)
    return Run(config, model, tokenizers, meta["step"], run_dir, "average" if checkpoint == "average" else kind)


def new_model(config: Config, tokenizers: Tokenizers) -> nnx.Module:
    """The model of `config` with fresh parameters."""
    return build_model(
        config.model,
        tokenizers.source.vocab_size,
        tokenizers.target.vocab_size,
        shared_vocab=tokenizers.joint,
        rngs=nnx.Rngs(config.seed),
        dtype=jnp.dtype(config.training.compute_dtype),
    )


def _has_checkpoint(run_dir: Path, kind: str) -> bool:
    folder = run_dir / "checkpoints" / kind
    return folder.is_dir() and any(entry.name.isdigit() for entry in folder.iterdir())
