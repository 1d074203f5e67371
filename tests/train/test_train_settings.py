"""Settings: layers, TOML, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lowtide.train.settings import Settings, from_toml, layered
from lowtide.train.trainer import passes_of, step_seed


def test_later_layers_win() -> None:
    settings = layered({"batch_size": 2, "seed": 5, "n_layer": 1}, {"batch_size": 3, "seed": 6}, {"batch_size": 4})
    assert (settings.batch_size, settings.seed, settings.n_layer) == (4, 6, 1)
    assert settings.n_embd == Settings().n_embd


def test_a_toml_file_uses_the_same_names(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('batch_size = 32\nlearning_rate = 1\ndata = "corpus"\ncompile = true\n')
    assert from_toml(path) == {"batch_size": 32, "learning_rate": 1.0, "data": "corpus", "compile": True}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('data = ""', r"run\.toml: data: expected text, got none\. Leave the line out to use the default"),
        ("batch_sise = 3", r"run\.toml: batch_sise: expected the name of a setting.*Did you mean 'batch_size'\?"),
        ("batch_size = 3.5", "batch_size: expected a whole number, got 3.5"),
        ("batch_size = true", "batch_size: expected a whole number, got True"),
        ("compile = 1", "compile: expected true or false, got 1"),
        ("data = 5", "data: expected text, got 5"),
        ("batch_size = = 3", "expected TOML"),
        ("\udcff\udcfe", r"run\.toml: expected TOML, got 'utf-8' codec"),
    ],
)
def test_a_wrong_toml_file_is_refused_with_the_way_out(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(os.fsencode(text))
    with pytest.raises(ValueError, match=message):
        from_toml(path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": 0}, "--batch-size: expected 1 or more, got 0"),
        ({"n_embd": 30, "n_head": 4}, "--n-embd: .* got 30. Use --n-embd 32"),
        ({"dtype": "uint16"}, "--dtype: expected one of .* The tokens' dtype is --data-dtype"),
        ({"dropout": 1.0}, "--dropout"),
        ({"budget": "lots"}, "--budget: expected a size"),
        ({"keep": 0}, "--keep: expected 1 or more"),
        (
            {"learning_rate": float("nan")},
            "--learning-rate: expected a finite number, got nan. Use --learning-rate 0.003",
        ),
        ({"weight_decay": float("inf")}, "--weight-decay: expected a finite number, got inf"),
        ({"seed": 2**63}, "--seed: expected a number of 64 bits, got 9223372036854775808"),
        ({"out_dir": ""}, "--out-dir: expected a directory, got empty text"),
    ],
)
def test_a_wrong_value_is_refused_by_its_flag(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layered(given)


@pytest.mark.parametrize(("batch", "accumulation"), [(12, 1), (4, 3), (6, 2), (2, 8), (8, 8)])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_a_step_has_the_same_rows_for_every_world_size(batch: int, accumulation: int, world: int) -> None:
    settings = Settings(batch_size=batch, gradient_accumulation_steps=accumulation)
    try:
        passes, rows = passes_of(settings, world)
    except ValueError:
        assert (batch * accumulation) % world or (batch * accumulation) % -(-accumulation // world)
        return
    assert passes * rows == batch * accumulation
    assert rows % world == 0
    assert rows // world <= batch  # what fitted one rank's memory still does


def test_ranks_that_cannot_share_are_told_a_batch_size_that_works() -> None:
    with pytest.raises(ValueError, match=r"2 ranks .* got 7 x 1 = 7\. Use --batch-size 8\.") as refused:
        passes_of(Settings(batch_size=7), 2)
    suggested = int(str(refused.value).rstrip(".").split()[-1])
    passes_of(Settings(batch_size=suggested), 2)


def test_dropout_seeds_differ_between_steps_ranks_and_seeds() -> None:
    seeds = {step_seed(seed, step, rank) for seed in range(4) for step in range(50) for rank in range(4)}
    assert len(seeds) == 800
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "examples").glob("train_*.toml")), ids=lambda p: p.name
)
def test_every_example_is_a_valid_run(path: Path) -> None:
    settings = layered(from_toml(path))
    for world in (1, 2, 4, 8):
        assert passes_of(settings, world)[0] >= 1
