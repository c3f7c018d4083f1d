"""Augmentation: what becomes of an image, and that neither chunks nor trainers have a part in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import raysim
from raysim import seeds
from raysim.client.augmentations import augment, crop_flip_contrast, flip_crop, images
from raysim.client.augmentations.crop_flip_contrast import CropFlipContrast
from raysim.client.augmentations.flip_crop import FlipCrop
from raysim.data import FederatedDataset
from raysim.errors import ExperimentError

KEYS = seeds.keys(0, "test", np.arange(4000))
PICTURE = torch.arange(3 * 6 * 6, dtype=torch.float64).view(1, 3, 6, 6) / 108


def test_draws_are_uniform_and_differ_by_number() -> None:
    first, second = images.uniform(KEYS, 0), images.uniform(KEYS, 1)
    assert 0 <= float(first.min()) <= float(first.max()) < 1
    # The mean of 4000 uniform draws has deviation 1 / sqrt(12 * 4000) = .0046.
    assert abs(float(first.mean()) - 0.5) < 5 * 0.0046
    assert abs(float(np.corrcoef(first, second)[0, 1])) < 5 / np.sqrt(4000)
    assert torch.bincount(images.below(KEYS, 2, 9)).tolist() == pytest.approx([4000 / 9] * 9, abs=5 * 20)


def test_a_flip_exchanges_left_and_right() -> None:
    assert torch.equal(images.flipped(PICTURE, torch.tensor([True])), PICTURE[..., [5, 4, 3, 2, 1, 0]])
    assert torch.equal(images.flipped(PICTURE, torch.tensor([False])), PICTURE)


def test_a_crop_begins_where_it_is_told() -> None:
    both = PICTURE.expand(2, -1, -1, -1)
    made = images.cropped(both, torch.tensor([0, 2]), torch.tensor([1, 3]), 3, 2)
    assert torch.equal(made[0], PICTURE[0, :, 0:3, 1:3])
    assert torch.equal(made[1], PICTURE[0, :, 2:5, 3:5])
    assert torch.equal(images.central(PICTURE, 2), PICTURE[:, :, 2:4, 2:4])


def test_brightness_is_added_and_contrast_keeps_the_mean_of_a_channel() -> None:
    made = images.adjusted(PICTURE, torch.tensor([0.25]), torch.tensor([2.0]))
    torch.testing.assert_close(made.mean((2, 3)), PICTURE.mean((2, 3)) + 0.25)
    torch.testing.assert_close(made.std((2, 3)), 2 * PICTURE.std((2, 3)))


def test_whitening_gives_mean_0_and_deviation_1_and_even_images_stay_finite() -> None:
    made = images.whitened(PICTURE)
    assert float(made.mean()) == pytest.approx(0, abs=1e-12)
    assert float(made.std(correction=0)) == pytest.approx(1)
    assert torch.equal(images.whitened(torch.full((1, 3, 4, 4), 0.5)), torch.zeros(1, 3, 4, 4))


def test_flip_and_crop_each_happen_with_their_probability() -> None:
    many = PICTURE.expand(4000, -1, -1, -1)
    made = flip_crop.train(FlipCrop(), many, KEYS)
    assert made.shape == many.shape
    untouched = (made == PICTURE).flatten(1).all(1).double().mean()
    # Neither: 1/4; and one move in 81 is by nothing, which adds 1/4 * 1/81.
    assert float(untouched) == pytest.approx(0.25 + 0.25 / 81, abs=5 * np.sqrt(0.25 * 0.75 / 4000))
    assert torch.equal(flip_crop.train(FlipCrop(probability=0), many, KEYS), many)
    flipped_or_moved = flip_crop.train(FlipCrop(probability=1, padding=1), many[:1], KEYS[:1])
    assert any(
        torch.equal(flipped_or_moved[0], torch.nn.functional.pad(PICTURE.flip(-1), [1] * 4)[0, :, a : a + 6, b : b + 6])
        for a in range(3)
        for b in range(3)
    )


def test_without_distortion_it_is_a_whitened_window() -> None:
    picture = PICTURE**2  # of straight slopes all windows look alike, whitened
    section = CropFlipContrast(side=4, brightness=0, contrast_low=1, contrast_high=1)
    made = crop_flip_contrast.train(section, picture.expand(50, -1, -1, -1), KEYS[:50])
    windows = [
        images.whitened(view[:, :, a : a + 4, b : b + 4])[0]
        for view in (picture, picture.flip(-1))
        for a in range(3)
        for b in range(3)
    ]
    found = {next(i for i, window in enumerate(windows) if torch.allclose(window, one)) for one in made}
    assert len(found) > 12
    assert torch.equal(crop_flip_contrast.evaluate(section, picture), images.whitened(picture[:, :, 1:5, 1:5]))


def test_what_the_model_sees() -> None:
    assert augment.seen_shape(None, (5,)) == (5,)
    assert augment.seen_shape(FlipCrop(), (3, 32, 32)) == (3, 32, 32)
    assert augment.seen_shape(CropFlipContrast(), (3, 32, 32)) == (3, 24, 24)
    with pytest.raises(ExperimentError, match=r"takes images .*, but x has shape \(5,\)"):
        augment.seen_shape(FlipCrop(), (5,))
    with pytest.raises(ExperimentError, match=r"at most the images' 20 x 32, but is 24"):
        augment.seen_shape(CropFlipContrast(), (3, 20, 32))
    assert augment.seen_shape(FlipCrop(padding=19), (3, 20, 32)) == (3, 20, 32)
    with pytest.raises(raysim.ExperimentError, match=r"padding must be less than the images' 20 x 32, .* but is 20"):
        augment.seen_shape(FlipCrop(padding=20), (3, 20, 32))


def test_a_visit_is_addressed_by_seed_round_client_and_place() -> None:
    x = PICTURE.expand(8, -1, -1, -1)
    base = augment.visits(FlipCrop(), x, 1, 2, 3)
    assert torch.equal(base[:5], augment.visits(FlipCrop(), x[:5], 1, 2, 3))
    for other in ((0, 2, 3), (1, 0, 3), (1, 2, 0)):
        assert not torch.equal(base, augment.visits(FlipCrop(), x, *other))


def pictures() -> FederatedDataset:
    rng = np.random.default_rng(0)
    clients = {f"c{k}": (rng.random((3 + 2 * k, 1, 8, 8)), rng.integers(0, 3, 3 + 2 * k)) for k in range(6)}
    return FederatedDataset.from_clients(clients, test=clients)


def final(trainer: str, chunk_size: int, **how: Any) -> dict[str, Any]:
    exp = raysim.Experiment.model_validate(
        {
            "rounds": 2,
            "model": {"name": "mlp", "hidden": [4]},
            "client": {"optimizer": {"name": "sgd", "lr": 0.1}, "batch_size": 4, "epochs": 2, "augment": how},
            "cohort": {"size": 5},
            "engine": {"workers": 0, "trainer": trainer, "chunk_size": chunk_size, "dtype": "float64"},
            "evaluation": {"every": 2},
        }
    )
    *_, last = raysim.rounds(exp, dataset=pictures())
    return {"loss": last.metrics["eval/test/loss"], **{name: p.numpy() for name, p in last.params.items()}}


HOW: list[dict[str, Any]] = [{"name": "flip_crop", "padding": 2}, {"name": "crop_flip_contrast", "side": 5}]


@pytest.mark.parametrize("how", HOW, ids=lambda how: how["name"])
@pytest.mark.parametrize("trainer", ["fused", "stacked", "vmap"])
def test_every_trainer_and_every_chunking_trains_on_the_same_images(how: dict[str, Any], trainer: str) -> None:
    expected = final("one_by_one", 1, **how)
    for chunk_size in (1, 2, 5):
        made = final(trainer, chunk_size, **how)
        for name, value in expected.items():
            np.testing.assert_allclose(made[name], value, rtol=1e-9, atol=1e-12, err_msg=name)
