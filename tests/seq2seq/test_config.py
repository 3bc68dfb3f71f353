"""A config fails at load with one line: file, key, what was expected, what came."""

import dataclasses
from pathlib import Path

import pytest

from seq2seq.config import Config, ConfigError, RNNConfig, TransformerConfig, load_config, save_config, to_dict
from seq2seq.config.reference import reference_toml

ROOT = Path(__file__).parents[2]
POSITIONS = '[model]\nkind = "transformer"\npositions ='


def load(tmp_path, text, **overrides):
    path = tmp_path / "c.toml"
    path.write_text(text)
    return load_config(path, overrides)


def test_empty_file_is_the_defaults(tmp_path):
    assert load(tmp_path, "") == Config()


def test_model_kind_chooses_the_dataclass(tmp_path):
    assert isinstance(load(tmp_path, '[model]\nkind = "transformer"').model, TransformerConfig)
    assert isinstance(load(tmp_path, '[model]\nkind = "rnn"').model, RNNConfig)


@pytest.mark.parametrize(
    ("text", "key", "expected", "got"),
    [
        ("[training]\nlable_smoothing = 0.1", "training.lable_smoothing", "label_smoothing", "unknown key"),
        ("modle = 1", "modle", "'model'", "unknown key"),
        ('[optimizer]\nlearning_rate = "1e-4"', "optimizer.learning_rate", "a number", "'1e-4' (str)"),
        ("[training]\nmax_steps = 1.5", "training.max_steps", "an integer", "1.5 (float)"),
        ("[training]\nmax_steps = true", "training.max_steps", "an integer", "True (bool)"),
        ("[tokenizer]\njoint = 1", "tokenizer.joint", "true or false", "1 (int)"),
        ("model = 3", "model", "a table", "3 (int)"),
        ("training = 3", "training", "a table", "3 (int)"),
        ('[model]\nkind = "transformr"', "model.kind", "'transformer'", "'transformr'"),
        ('[model]\nattention = "aditive"', "model.attention", "'additive'", "'aditive'"),
        ('[model]\nkind = "transformer"\nnum_heads = 3', "model.num_heads", "a divisor of model_dim = 256", "3"),
        (f'{POSITIONS} "roper"', "model.positions", "'rope'", "'roper'"),
        (f'{POSITIONS} "rope"\nmodel_dim = 12\nnum_heads = 4', "model.num_heads", "an even width of a head", "4"),
        (f'{POSITIONS} "rope"\nrope_base = 0.0', "model.rope_base", "> 0", "0.0"),
        (f'{POSITIONS} "t5"\nrelative_buckets = 3', "model.relative_buckets", ">= 4", "3"),
        (f'{POSITIONS} "t5"\nrelative_max_distance = 16', "model.relative_max_distance", "half of", "16"),
        (f'{POSITIONS} "shaw"\nshaw_distance = 0', "model.shaw_distance", ">= 1", "0"),
        ("[model]\nhidden_dim = 0", "model.hidden_dim", ">= 1", "0"),
        ("[model]\nmaxout_dim = 128", "model.maxout_dim", "embed_dim = 256", "128"),
        ("[model]\ndropout_rate = 1.0", "model.dropout_rate", "[0, 1)", "1.0"),
        ('[batches]\nlengths = [8, "x"]', "batches.lengths", "an integer", "'x' (str)"),
        ("[batches]\nlengths = [16, 8]", "batches.lengths", "increasing", "(16, 8)"),
        ("[batches]\ntokens = 64", "batches.tokens", "longest bucket", "64"),
        ("[decoding]\nn_best = 9", "decoding.n_best", "beam_size = 4", "9"),
        ('[training]\nmetric = "dev_blue"', "training.metric", "'dev_bleu'", "'dev_blue'"),
        ('[corpus]\npair = "en"', "corpus.pair", "source-target", "en"),
        ('[corpus]\ntrain = ["a", "b"]', "corpus.train", "no files", "('a', 'b')"),
        ('[corpus]\nname = "parallel"\ntrain = ["a"]', "corpus.train", "2 file(s)", "('a',)"),
        ('[optimizer]\nschedule = "cosine"\nwarmup_steps = 20000', "optimizer.warmup_steps", "max_steps", "20000"),
        ("seed = ", "config", "valid TOML", "Invalid value"),
    ],
)
def test_mistakes_end_as_one_line(tmp_path, text, key, expected, got):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'c.toml'}: {key}: expected ")
    assert expected in message
    assert got in message.split(", got ", 1)[1]
    assert "\n" not in message


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere.toml: config: expected an existing file, got no such file"):
        load_config(tmp_path / "nowhere.toml")
    with pytest.raises(ConfigError, match="got a folder"):
        load_config(tmp_path)


def test_overrides_are_checked_like_the_file(tmp_path):
    assert load(tmp_path, "", **{"optimizer.learning_rate": 1}).optimizer.learning_rate == 1.0
    with pytest.raises(ConfigError, match=r"optimizer\.learning_rate"):
        load(tmp_path, "", **{"optimizer.learning_rate": "fast"})
    with pytest.raises(ConfigError, match="unknown key 'lr'"):
        load(tmp_path, "", **{"optimizer.lr": 1.0})


def test_save_and_load_give_the_same_config(tmp_path):
    config = dataclasses.replace(Config(), model=TransformerConfig(num_heads=8), seed=3)
    save_config(config, tmp_path / "saved.toml")
    assert load_config(tmp_path / "saved.toml") == config
    assert to_dict(config)["model"]["num_heads"] == 8


@pytest.mark.parametrize("path", sorted((ROOT / "configs").rglob("*.toml")), ids=lambda path: path.stem)
def test_every_config_loads_and_opens_with_its_command(path):
    load_config(path)
    opening = path.read_text().split("\n[", 1)[0]
    assert f"python scripts/train.py {path.relative_to(ROOT)}" in opening
    assert "measured" in opening.lower() or path.stem == "reference"  # which is no run


def test_the_reference_file_is_in_step_with_the_dataclasses():
    path = ROOT / "configs" / "reference.toml"
    assert path.read_text(encoding="utf-8") == reference_toml()
    assert load_config(path) == Config()
    transformer = "\n".join(line[2:] for line in reference_toml().split("Or, in its place:\n")[1].split("\n\n")[0].split("\n"))
    keys = {field.name for field in dataclasses.fields(TransformerConfig)}
    assert {line.split(" = ")[0] for line in transformer.split("\n") if " = " in line and not line.startswith("#")} == keys
